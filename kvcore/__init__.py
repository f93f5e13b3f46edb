"""kvcore: a compact, checked KV-cache allocator core for LLM serving.

    from kvcore import Batch, KVCacheConfig, KVCacheManager, Req, alloc_for_decode, alloc_for_extend, release_kv_cache

    manager = KVCacheManager(KVCacheConfig(page_size=16, num_pages=256, max_requests=8, context_len=1024))
    req = Req("chat-1", token_ids=list(range(40)))
    slots, batch = alloc_for_extend(manager, [req], [40])
    slot = alloc_for_decode(manager, batch)
    release_kv_cache(manager, [req], checkpoint=False)

Names load on first use (PEP 562): `import kvcore` alone imports neither torch nor triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "KVCacheConfig": "config",
    "Speculation": "sizing",
    "KVCacheManager": "manager",
    "Batch": "manager",
    "Req": "records",
    "ReqKvInfo": "records",
    "alloc_for_extend": "allocation",
    "alloc_for_decode": "allocation",
    "alloc_for_spec_decode": "allocation",
    "commit": "allocation",
    "assign_req_to_token_pool_func": "allocation",
    "alloc_for_decode_prealloc": "preallocation",
    "fill_hole": "preallocation",
    "peek_prefix": "caching",
    "checkpoint_kv_cache": "caching",
    "evict_from_tree_cache": "caching",
    "release_overallocated": "release",
    "release_kv_cache": "release",
    "retract": "release",
    "Window": "window",
    "evict_window": "window_eviction",
    "Lease": "leases",
    "begin_lease": "leases",
    "retire": "leases",
    "late_result": "leases",
    "HiSparse": "hisparse",
    "alloc_for_decode_prealloc_hisparse": "offload",
    "swap_out": "offload",
    "device_buffer": "offload",
    "bind_newest": "offload",
    "drop_backup": "offload",
    "PagedAllocator": "allocators.paged",
    "WindowedAllocator": "allocators.mapped",
    "HiSparseAllocator": "allocators.mapped",
    "RadixCache": "prefix_cache.radix",
    "Snapshot": "snapshots",
    "snapshot": "snapshots",
    "Violation": "auditing",
    "audit": "auditing",
    "KVCacheError": "errors",
    "KVCacheOutOfMemory": "errors",
    "ContractError": "errors",
    "BadArgument": "errors",
    "StaleRow": "errors",
    "RowOverflow": "errors",
    "DoubleFree": "errors",
    "ForeignSlot": "errors",
    "LaneError": "kernels.jit",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:  # "as": a re-export, for type checkers
    from .allocation import alloc_for_decode as alloc_for_decode
    from .allocation import alloc_for_extend as alloc_for_extend
    from .allocation import alloc_for_spec_decode as alloc_for_spec_decode
    from .allocation import assign_req_to_token_pool_func as assign_req_to_token_pool_func
    from .allocation import commit as commit
    from .allocators.mapped import HiSparseAllocator as HiSparseAllocator
    from .allocators.mapped import WindowedAllocator as WindowedAllocator
    from .allocators.paged import PagedAllocator as PagedAllocator
    from .auditing import Violation as Violation
    from .auditing import audit as audit
    from .caching import checkpoint_kv_cache as checkpoint_kv_cache
    from .caching import evict_from_tree_cache as evict_from_tree_cache
    from .caching import peek_prefix as peek_prefix
    from .config import KVCacheConfig as KVCacheConfig
    from .errors import BadArgument as BadArgument
    from .errors import ContractError as ContractError
    from .errors import DoubleFree as DoubleFree
    from .errors import ForeignSlot as ForeignSlot
    from .errors import KVCacheError as KVCacheError
    from .errors import KVCacheOutOfMemory as KVCacheOutOfMemory
    from .errors import RowOverflow as RowOverflow
    from .errors import StaleRow as StaleRow
    from .hisparse import HiSparse as HiSparse
    from .kernels.jit import LaneError as LaneError
    from .leases import Lease as Lease
    from .leases import begin_lease as begin_lease
    from .leases import late_result as late_result
    from .leases import retire as retire
    from .manager import Batch as Batch
    from .manager import KVCacheManager as KVCacheManager
    from .offload import alloc_for_decode_prealloc_hisparse as alloc_for_decode_prealloc_hisparse
    from .offload import bind_newest as bind_newest
    from .offload import device_buffer as device_buffer
    from .offload import drop_backup as drop_backup
    from .offload import swap_out as swap_out
    from .preallocation import alloc_for_decode_prealloc as alloc_for_decode_prealloc
    from .preallocation import fill_hole as fill_hole
    from .prefix_cache.radix import RadixCache as RadixCache
    from .records import Req as Req
    from .records import ReqKvInfo as ReqKvInfo
    from .release import release_kv_cache as release_kv_cache
    from .release import release_overallocated as release_overallocated
    from .release import retract as retract
    from .sizing import Speculation as Speculation
    from .snapshots import Snapshot as Snapshot
    from .snapshots import snapshot as snapshot
    from .window import Window as Window
    from .window_eviction import evict_window as evict_window


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kvcore' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
