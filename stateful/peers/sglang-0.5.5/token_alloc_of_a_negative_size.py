"""A size below zero slices the free list from its end: nearly all slots are handed out, or dropped."""

import sys

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

pool = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False)
slots = pool.alloc(-1)
print(f"alloc(-1) returns {slots.tolist()}, and {pool.available_size()} of 8 are free")
sys.exit(slots is not None)
