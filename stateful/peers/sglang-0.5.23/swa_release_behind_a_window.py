"""Releasing a row whose first window page has gone gives page 0, the padding, to the window's free list."""

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


row = extend([0, 0], [12, 4], [-1, -1])[:12]
pool.free_swa_segment(row[:4], start_pos=0)
pool.free_segment(row, start_pos=0)
listed = window.get_all_free_pages().tolist()
print(f"one page of 8 is held; listed as free in the window pool are {listed}")
sys.exit(0 in listed)
