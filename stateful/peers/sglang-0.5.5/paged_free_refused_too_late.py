"""In debug mode a page that is freed twice is noticed, but only once it is in the list twice."""

import sys

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(16, 4, torch.float16, "cpu", None, False)
pool.debug_mode = True
row = pool.alloc(4)
pool.free(row)
try:
    pool.free(row)
except AssertionError:
    print(f"the second free is refused; listed are {torch.cat((pool.free_pages, pool.release_pages)).tolist()}")
sys.exit(pool.available_size() != 16)
