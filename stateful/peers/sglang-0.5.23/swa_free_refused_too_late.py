"""A free of what is free is noticed by an assertion that counts, once the list has changed."""

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
try:
    pool.free(torch.arange(4, 8))
except AssertionError as error:
    print(f"refused: {error!r}")
print(f"of 32 slots {full.available_size()} are free")
sys.exit(full.available_size() != 32)
