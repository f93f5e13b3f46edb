"""With pages of one token a decode takes no logical page: the slot that it returns is somebody else's, or free."""

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


def extend(prefix, seq, last):
    prefix, seq, last = map(torch.tensor, (prefix, seq, last))
    return pool.alloc_extend(prefix, prefix, seq, seq, last, int((seq - prefix).sum()))


row, two = extend([0, 0], [1, 1], [-1, -1]), torch.tensor([2])
before = logical.available_size()
slots = pool.alloc_decode(two, two, row[:1])
taken = before - logical.available_size()
print(f"two requests hold {row.tolist()}; a decode of the first returns {slots.tolist()} and takes {taken} slots")
sys.exit(taken == 0)
