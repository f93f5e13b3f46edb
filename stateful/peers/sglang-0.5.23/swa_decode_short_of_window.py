"""A decode that is short of the window pool takes its pages of the full pool and keeps none of them: they are lost."""

import sys

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool


class Pool(BaseSWAKVPool):
    """A pool without KV."""

    __init__ = object.__init__
    full_kv_pool = swa_kv_pool = swa_req_ring_size = None

    def register_mapping(self, mapping):
        self.full_to_swa_index_mapping, self.translate_loc_from_full_to_swa = mapping, mapping.__getitem__


Pool.__abstractmethods__ = frozenset()
pool = SWATokenToKVPoolAllocator(32, 12, 4, torch.float16, "cpu", Pool(), False)
full, window = pool.full_attn_allocator, pool.swa_attn_allocator
full.use_triton_kernels = window.use_triton_kernels = False


def extend(prefix, seq, last):
    prefix, seq, last = map(torch.tensor, (prefix, seq, last))
    return pool.alloc_extend(prefix, prefix, seq, seq, last, int((seq - prefix).sum()))


row, five = extend([0, 0], [4, 4], [-1, -1]), torch.tensor([5, 5])
before = full.available_size(), window.available_size()
slots = pool.alloc_decode(five, five, row[3::4])
after = full.available_size(), window.available_size()
print(f"a decode of two returns {slots}; free were {before}, now {after}")
sys.exit(slots is None and after != before)
