"""With pages of one token a decode takes nothing from the free list: two steps hand out the same slots."""

import sys

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(16, 1, torch.float16, "cpu", None, False)
pool.use_triton_kernels = False
row, three = pool.alloc(4), torch.tensor([3, 3])
slots = pool.alloc_decode(three, three, row[1::2])
print(f"two requests hold {row.tolist()}; a decode of both returns {slots.tolist()}, {pool.available_size()} are free")
sys.exit(pool.available_size() != 10 or bool(set(slots.tolist()) & set(row.tolist())))
