"""With pages of one token debug mode compares last slot and prefix modulo 1, which always agrees."""

import sys

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(16, 1, torch.float16, "cpu", None, False)
pool.debug_mode, pool.use_triton_kernels = True, False
one, two = torch.tensor([1]), torch.tensor([2])
try:
    slots = pool.alloc_extend(one, one, two, two, torch.tensor([-1]), 1)
except AssertionError as error:
    print(f"refused: {error!r}")
    sys.exit(0)
print(f"a request with a prefix of 1 and no last slot is extended to 2, and gets {slots.tolist()}")
sys.exit(1)
