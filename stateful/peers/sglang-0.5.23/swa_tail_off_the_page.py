"""A tail that begins in the middle of a page is mapped to slots at other offsets."""

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
zero, eight = torch.tensor([0]), torch.tensor([8])
try:
    row = pool.alloc_extend_swa_tail(zero, zero, eight, eight, torch.tensor([-1]), 8, 3)
except (AssertionError, ValueError) as error:
    print(f"refused: {error!r}")
    sys.exit(0)
tail = row[-3:]
print(f"slots {tail.tolist()} have the window slots {pool.full_to_swa_index_mapping[tail].tolist()}")
sys.exit(1)
