"""The allocators of SGLang 0.5.12 alone, their path in torch on the CPU: what the scripts beside this file share.

That path is the one for Ascend. The kernel that it launches is replaced by the engine's own version in torch, which
takes the extends of 200 pages and more.
"""

import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from sglang.srt.hardware_backend.npu.allocator_npu import NPUPagedTokenToKVPoolAllocator
from sglang.srt.mem_cache import hisparse_memory_pool, swa_memory_pool
from sglang.srt.mem_cache.allocator import alloc_extend_naive
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool


def kernel(prefix, seq, last, free, out, upper, page_size, most):
    alloc_extend_naive(prefix, seq, last, free, out, page_size, "cpu")


class Paged(NPUPagedTokenToKVPoolAllocator):
    """Ascend's slots are int32; the maps of the composites take int64."""

    def alloc_extend(self, *given, **named):
        slots = super().alloc_extend(*given, **named)
        return None if slots is None else slots.long()

    def alloc_decode(self, *given):
        slots = super().alloc_decode(*given)
        return None if slots is None else slots.long()


# It is launched as kernel[grid](...).
sys.modules["sgl_kernel_npu.mem_cache.allocator"] = SimpleNamespace(alloc_extend_kernel=defaultdict(lambda: kernel))
swa_memory_pool.PagedTokenToKVPoolAllocator = hisparse_memory_pool.PagedTokenToKVPoolAllocator = Paged


class Pool(BaseSWAKVPool):
    """A KV pool without KV: all that an allocator asks of one is the map that it registers."""

    __init__ = object.__init__
    full_kv_pool = swa_kv_pool = None

    def register_mapping(self, mapping):
        self.full_to_swa_index_mapping = mapping
        self.translate_loc_from_full_to_swa = self._translate_loc_to_hisparse_device = lambda slots: mapping[slots]


Pool.__abstractmethods__ = frozenset()


def paged(tokens, page_size):
    return Paged(tokens, page_size, torch.float16, "cpu", None, False)


def swa(full_tokens, window_tokens, page_size=1):
    kind = swa_memory_pool.SWATokenToKVPoolAllocator
    return kind(full_tokens, window_tokens, page_size, torch.float16, "cpu", Pool(), False)


def hisparse(device_tokens, page_size, ratio=2):
    """With `ratio` logical slots for one on the device."""
    kind = hisparse_memory_pool.HiSparseTokenToKVPoolAllocator
    return kind(device_tokens, page_size, torch.float16, "cpu", Pool(), False, ratio)


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
