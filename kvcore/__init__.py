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
    "release_overallocated": "release",
    "release_kv_cache": "release",
    "retract": "release",
    "PagedAllocator": "allocators.paged",
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
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from .allocation import (
        alloc_for_decode,
        alloc_for_extend,
        alloc_for_spec_decode,
        assign_req_to_token_pool_func,
        commit,
    )
    from .allocators.paged import PagedAllocator
    from .auditing import Violation, audit
    from .config import KVCacheConfig
    from .errors import (
        BadArgument,
        ContractError,
        DoubleFree,
        ForeignSlot,
        KVCacheError,
        KVCacheOutOfMemory,
        RowOverflow,
        StaleRow,
    )
    from .manager import Batch, KVCacheManager
    from .records import Req, ReqKvInfo
    from .release import release_kv_cache, release_overallocated, retract
    from .sizing import Speculation
    from .snapshots import Snapshot, snapshot


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kvcore' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
