"""A size that is no number of pages, or below zero, is rounded down, and what is left of the list is wrong."""

import sys

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(16, 4, torch.float16, "cpu", None, False)
three, negative = pool.alloc(3), pool.alloc(-4)
print(f"alloc(3) returns {len(three)} slots, alloc(-4) {len(negative)}, and {pool.available_size()} of 16 are free")
sys.exit(three is not None or negative is not None)
