"""A size below zero slices both free lists from their ends, to different lengths if they have different lengths."""

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
try:
    print(f"alloc(-1) returns {pool.alloc(-1).tolist()}")
except Exception as error:
    print(f"alloc(-1) ends in {type(error).__name__}")
free = logical.available_size(), device.available_size()
print(f"of 32 and 16 slots {free} are free")
sys.exit(free != (32, 16))
