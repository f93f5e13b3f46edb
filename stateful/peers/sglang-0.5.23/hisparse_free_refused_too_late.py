"""A free of what is free is noticed by an assertion that counts, once the list has changed."""

import sys

import torch
from sglang.srt.mem_cache.allocator.hisparse import HiSparseTokenToKVPoolAllocator


class Pool:
    """A pool without KV."""

    def register_mapping(self, mapping):
        self._translate_loc_to_hisparse_device = lambda slots: mapping[slots]


pool = HiSparseTokenToKVPoolAllocator(16, 4, torch.float16, "cpu", Pool(), False, 2)
logical, device = pool.logical_attn_allocator, pool.hisparse_attn_allocator
logical.use_triton_kernels = device.use_triton_kernels = False
try:
    pool.free(torch.arange(4, 8))
except AssertionError as error:
    print(f"refused: {error!r}")
print(f"of 32 slots {logical.available_size()} are free")
sys.exit(logical.available_size() != 32)
