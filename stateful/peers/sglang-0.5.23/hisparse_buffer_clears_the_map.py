"""A device buffer for which there is no room has cleared the request's map when it finds that out."""

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


def extend(prefix, seq, last):
    prefix, seq, last = map(torch.tensor, (prefix, seq, last))
    return pool.alloc_extend(prefix, prefix, seq, seq, last, int((seq - prefix).sum()))


row = extend([0], [4], [-1])
try:
    pool.alloc_device_buffer(row, 20)
except AssertionError as error:
    print(f"refused: {error!r}")
mapped = pool.full_to_hisparse_device_index_mapping[row].tolist()
pool.free(row)
print(f"the request is mapped to {mapped}; after its release {device.available_size()} of 16 device slots are free")
sys.exit(0 in mapped)
