"""A free of part of a page gives back the page, while the rest of it is in use."""

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
pool = SWATokenToKVPoolAllocator(32, 32, 4, torch.float16, "cpu", Pool(), False)
full, window = pool.full_attn_allocator, pool.swa_attn_allocator
full.use_triton_kernels = window.use_triton_kernels = False


def extend(prefix, seq, last):
    prefix, seq, last = map(torch.tensor, (prefix, seq, last))
    return pool.alloc_extend(prefix, prefix, seq, seq, last, int((seq - prefix).sum()))


row = extend([0], [4], [-1])
pool.free(row[:1])
print(f"a request holds the slots {row.tolist()}; of 32 there are {full.available_size()} free")
sys.exit(full.available_size() == 32)
