"""With pages of one token debug mode compares last slot and prefix modulo 1, which always agrees."""

import sys

import torch
from sglang.srt.mem_cache.allocator.hisparse import HiSparseTokenToKVPoolAllocator


class Pool:
    """A pool without KV."""

    def register_mapping(self, mapping):
        self._translate_loc_to_hisparse_device = lambda slots: mapping[slots]


pool = HiSparseTokenToKVPoolAllocator(16, 1, torch.float16, "cpu", Pool(), False, 2)
logical, device = pool.logical_attn_allocator, pool.hisparse_attn_allocator
logical.use_triton_kernels = device.use_triton_kernels = False
logical.debug_mode = device.debug_mode = True
one, two = torch.tensor([1]), torch.tensor([2])
try:
    slots = pool.alloc_extend(one, one, two, two, torch.tensor([-1]), 1)
except AssertionError as error:
    print(f"refused: {error!r}")
    sys.exit(0)
print(f"a request with a prefix of 1 and no last slot is extended to 2, and gets {slots.tolist()}")
sys.exit(1)
