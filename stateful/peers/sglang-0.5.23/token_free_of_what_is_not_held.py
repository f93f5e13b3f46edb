"""A free of slot 0, of one that does not exist or of one that is free is taken as it is."""

import sys

import torch
from alone import attempt
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

pool = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False)
row = pool.alloc(2)
for slots in (row, row, torch.tensor([0, 99])):
    attempt(pool.free, slots)
print(f"{pool.available_size()} of 8 are free: {pool.get_all_free_pages().tolist()}")
sys.exit(pool.available_size() != 8)
