"""The allocators of SGLang 0.5.23 alone, their path in torch on the CPU: what the scripts beside this file share."""

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.hisparse import HiSparseTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool


class Pool(BaseSWAKVPool):
    """A KV pool without KV: all that an allocator asks of one is the map that it registers."""

    __init__ = object.__init__
    full_kv_pool = swa_kv_pool = swa_req_ring_size = None

    def register_mapping(self, mapping):
        self.full_to_swa_index_mapping = mapping
        self.translate_loc_from_full_to_swa = self._translate_loc_to_hisparse_device = lambda slots: mapping[slots]


Pool.__abstractmethods__ = frozenset()


def paged(tokens, page_size):
    return in_torch(PagedTokenToKVPoolAllocator(tokens, page_size, torch.float16, "cpu", None, False))


def swa(full_tokens, window_tokens, page_size=1):
    pool = SWATokenToKVPoolAllocator(full_tokens, window_tokens, page_size, torch.float16, "cpu", Pool(), False)
    return in_torch(pool, pool.full_attn_allocator, pool.swa_attn_allocator)


def hisparse(device_tokens, page_size, ratio=2):
    """With `ratio` logical slots for one on the device."""
    pool = HiSparseTokenToKVPoolAllocator(device_tokens, page_size, torch.float16, "cpu", Pool(), False, ratio)
    return in_torch(pool, pool.logical_attn_allocator, pool.hisparse_attn_allocator)


def in_torch(pool, *parts):
    for part in parts or (pool,):
        part.use_triton_kernels = False
    return pool


def extend(pool, prefix, seq, last):
    prefix, seq, last = (torch.as_tensor(numbers, dtype=torch.int64) for numbers in (prefix, seq, last))
    return pool.alloc_extend(prefix, prefix, seq, seq, last, int(seq.sum() - prefix.sum()))


def decode(pool, seq, last):
    seq, last = (torch.as_tensor(numbers, dtype=torch.int64) for numbers in (seq, last))
    return pool.alloc_decode(seq, seq, last)


def attempt(call, *given, **named):
    """What a call returns, or the error that ends it."""
    try:
        return call(*given, **named)
    except Exception as error:
        return error
