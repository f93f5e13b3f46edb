"""A size below zero slices both free lists from their ends, to different lengths if they have different lengths."""

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
pool = SWATokenToKVPoolAllocator(8, 6, 1, torch.float16, "cpu", Pool(), False)
try:
    print(f"alloc(-1) returns {pool.alloc(-1).tolist()}")
except AssertionError as error:
    print(f"alloc(-1) ends in {error!r}")
free = pool.full_available_size(), pool.swa_available_size()
print(f"of 8 and 6 slots {free} are free")
sys.exit(free != (8, 6))
