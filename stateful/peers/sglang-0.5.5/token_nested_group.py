"""A free group begun inside another one throws away what the outer one has queued."""

import sys

import torch
from alone import attempt
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

pool = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False)
row = pool.alloc(4)
for part in (row[:2], row[2:]):
    attempt(pool.free_group_begin)
    pool.free(part)
pool.free_group_end()
print(f"everything was freed; of 8 slots {pool.available_size()} are free")
sys.exit(pool.available_size() != 8)
