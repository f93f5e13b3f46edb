"""A free of slot 0, of -1 or of part of a page is taken as it is: pages are listed that do not exist, or twice."""

import sys

import torch
from alone import attempt
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(16, 4, torch.float16, "cpu", None, False)
row = pool.alloc(8)
for slots in (torch.tensor([0, -1]), row[:1], row[1:4]):
    attempt(pool.free, slots)
listed = pool.free_pages.tolist()
print(f"of pages 1 to 4, of which page 2 is held, these are listed as free: {listed}")
sys.exit(sorted(listed) not in ([1, 3, 4], [3, 4]))
