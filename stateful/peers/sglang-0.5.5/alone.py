"""The allocators of SGLang 0.5.5 alone, their path in torch on the CPU: what the scripts beside this file share.

That path is the one for Ascend. The operator that it calls is replaced by the engine's own version in torch, which
takes the extends of 200 pages and more.
"""

import sys
import types

import torch
from sglang.srt.mem_cache.allocator import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator_ascend import AscendPagedTokenToKVPoolAllocator, alloc_extend_kernel_ascend
from sglang.srt.mem_cache.memory_pool import SWAKVPool

sys.modules["sgl_kernel_npu"] = types.ModuleType("sgl_kernel_npu")
torch.ops.npu.alloc_extend = lambda prefix, seq, last, free, page_size, out, pages: alloc_extend_kernel_ascend(
    prefix, seq, last, free, out, page_size, "cpu"
)


class Pool(SWAKVPool):
    """A KV pool without KV: all that an allocator does with one is to hand it its map."""

    __init__ = object.__init__
    full_kv_pool = swa_kv_pool = None


def paged(tokens, page_size):
    return AscendPagedTokenToKVPoolAllocator(tokens, page_size, torch.float16, "cpu", None, False)


def swa(full_tokens, window_tokens):
    """In this release it has pages of one token only."""
    return SWATokenToKVPoolAllocator(full_tokens, window_tokens, torch.float16, "cpu", Pool(), False)


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
