"""What a release of SGLang has, found by name: its modules have moved between releases.

allocator_class = find("SWATokenToKVPoolAllocator")
paged_class("cpu")             # the paged allocator whose path runs there

In the lane cpu that is the torch path. Older releases have one for Ascend only, where extends of fewer than 200 pages
go to a kernel in C++: their own torch version, which takes the larger ones, takes all of them here.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from ...config import PAGE_SIZES

PLACES = (
    "mem_cache.allocator", "mem_cache.allocator.swa", "mem_cache.allocator.hisparse", "mem_cache.swa_memory_pool",
    "mem_cache.hisparse_memory_pool", "mem_cache.base_swa_memory_pool", "mem_cache.memory_pool",
    "hardware_backend.npu.allocator_npu", "mem_cache.allocator_ascend",
)  # fmt: skip
PAGED = "PagedTokenToKVPoolAllocator"


def find(*names: str) -> Any:
    """The first module's of the release that has one of these."""
    for place in PLACES:
        try:
            module = import_module(f"sglang.srt.{place}")
        except ModuleNotFoundError:
            continue
        for name in names:
            if hasattr(module, name):
                return getattr(module, name)
    raise ImportError(f"this release of SGLang has no {names[0]}")


def has(name: str) -> bool:
    """Whether the release has something of this name."""
    try:
        find(name)
    except ImportError:
        return False
    return True


def page_sizes(name: str) -> tuple[int, ...]:
    """The page sizes that an allocator can be made with: one token where its constructor knows no pages."""
    if has(name) and "page_size" not in inspect.signature(find(name)).parameters:
        return (1,)
    return PAGE_SIZES


def hisparse_page_sizes(name: str) -> tuple[int, ...]:
    """The same of the HiSparse allocator: more than one token where its `alloc` hands nothing out."""
    if has(name) and "logical_attn_allocator" in find(name).alloc.__code__.co_names:
        return PAGE_SIZES
    return tuple(size for size in PAGE_SIZES if size > 1)


def fake_pool(base: Any) -> Any:
    """A KV pool without KV: what an allocator asks of one is the map that it registers."""

    def register_mapping(self: Any, mapping: Any) -> None:
        self.mapping = self.full_to_swa_index_mapping = mapping

    members: dict[str, Any] = dict.fromkeys(("full_kv_pool", "swa_kv_pool", "swa_req_ring_size"))
    members |= {"__init__": lambda self: None, "register_mapping": register_mapping}
    for name in ("translate_loc_from_full_to_swa", "_translate_loc_to_hisparse_device"):
        members[name] = lambda self, slots: self.mapping[slots]
    kind = type("Pool", (base,), members)
    kind.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return kind()


def paged_class(device: str) -> Any:
    """The paged allocator that runs on this device."""
    found = find(PAGED)
    if device != "cpu" or "alloc_extend_naive" in found.alloc_extend.__code__.co_names:
        return found
    ascend = find(f"NPU{PAGED}", f"Ascend{PAGED}")
    _stand_in(find("alloc_extend_kernel_ascend", "alloc_extend_naive"))

    class Wide(ascend):  # type: ignore[misc,valid-type]
        """Ascend's slots are int32, which what is around it elsewhere does not expect."""

        def alloc_extend(self, *call: Any, **named: Any) -> Any:
            return _wide(super().alloc_extend(*call, **named))

        def alloc_decode(self, *call: Any) -> Any:
            return _wide(super().alloc_decode(*call))

    return Wide


def _wide(slots: Any) -> Any:
    return None if slots is None else slots.long()


def _stand_in(in_torch: Callable[..., None]) -> None:
    """What Ascend's allocator launches: the operator of 0.5.5, the kernel of 0.5.12."""
    for name in ("sgl_kernel_npu", "sgl_kernel_npu.mem_cache", "sgl_kernel_npu.mem_cache.allocator"):
        sys.modules[name] = types.ModuleType(name)
    module: Any = sys.modules["sgl_kernel_npu.mem_cache.allocator"]
    module.alloc_extend_kernel = _Kernel(in_torch)
    operators: Any = torch.ops.npu
    operators.alloc_extend = lambda prefix, seq, last, free, page_size, out, pages: in_torch(
        prefix, seq, last, free, out, page_size, "cpu"
    )


class _Kernel:
    """kernel[grid](prefix, seq, last, free, out, upper, page_size, ...)"""

    def __init__(self, in_torch: Callable[..., None]) -> None:
        self.in_torch = in_torch

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda prefix, seq, last, free, out, upper, page_size, *_: self.in_torch(
            prefix, seq, last, free, out, page_size, "cpu"
        )
