"""A size below zero slices the free list from its end: nearly all slots are handed out, or dropped."""

import sys

import torch
from alone import attempt
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

pool = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False)
slots = attempt(pool.alloc, -1)
print(f"alloc(-1) of 8 slots: {slots!r}, and {pool.available_size()} are free")
sys.exit(pool.available_size() != 8)
