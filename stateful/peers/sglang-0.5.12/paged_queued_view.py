"""A queued free keeps a view of the row: what is written there before the group ends is freed instead."""

import sys

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(8, 1, torch.float16, "cpu", None, False)
row = pool.alloc(2)
pool.free_group_begin()
pool.free(row[:1])
row[0] = row[1]
pool.free_group_end()
listed = pool.free_pages.tolist()
print(f"slot 1 was freed and slot 2 is held; listed as free are {listed}")
sys.exit(2 in listed)
