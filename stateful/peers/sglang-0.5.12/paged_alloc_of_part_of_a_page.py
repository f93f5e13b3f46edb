"""A size that is no number of pages, or below zero, is rounded down, and what is left of the list is wrong."""

import sys

import torch
from alone import attempt
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(16, 4, torch.float16, "cpu", None, False)
three, negative = attempt(pool.alloc, 3), attempt(pool.alloc, -4)
print(f"alloc(3): {three!r}; alloc(-4): {negative!r}; of 16 slots {pool.available_size()} are free")
sys.exit(isinstance(three, torch.Tensor) or isinstance(negative, torch.Tensor))
