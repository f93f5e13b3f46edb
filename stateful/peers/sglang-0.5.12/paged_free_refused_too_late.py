"""In debug mode a page that is freed twice is noticed, but only once it is in the list twice."""

import sys

import torch
from alone import attempt
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(16, 4, torch.float16, "cpu", None, False)
pool.debug_mode = True
row = pool.alloc(4)
pool.free(row)
ended = attempt(pool.free, row)
print(f"the second free: {ended!r}; listed are {pool.free_pages.tolist()}")
sys.exit(pool.available_size() != 16)
