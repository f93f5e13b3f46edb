"""A free of part of a page gives back the page, while the rest of it is in use."""

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
pool.free(row[:1])
print(f"a request holds the slots {row.tolist()}; of 32 there are {logical.available_size()} free")
sys.exit(logical.available_size() == 32)
