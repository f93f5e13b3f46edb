"""A queued free keeps a view of the row: what is written there before the group ends is freed instead."""

import sys

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(8, 1, torch.float16, "cpu", None, False)
mine, other = pool.alloc(2), pool.alloc(2)
row = mine.clone()
pool.free_group_begin()
pool.free(row)
row.copy_(other)
pool.free_group_end()
listed = pool.free_pages.tolist()
print(f"{mine.tolist()} were freed and {other.tolist()} are held; listed as free are {listed}")
sys.exit(bool(set(listed) & set(other.tolist())))
