"""A device buffer for which there is no room ends in an assertion, where other shortages are answered with None."""

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
    slots = pool.alloc_device_buffer(torch.tensor([], dtype=torch.int64), 20)
except AssertionError as error:
    print(f"a buffer of 20 tokens out of 16 ends in {error!r}")
    sys.exit(1)
print(f"a buffer of 20 tokens out of 16 returns {slots}")
sys.exit(slots is not None)
