"""A small manager with a prefix cache, and what the tests of the core do with one.

    manager = radix_manager(device, num_pages=8)
    serve(manager, range(12))                    # its three pages are cached
    req = start(manager, range(20), 13)          # hits them
    sound(manager)

`sound` follows every step: it audits the state and returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest

from ..allocation import alloc_for_extend
from ..auditing import audit
from ..config import KVCacheConfig
from ..errors import ContractError, KVCacheOutOfMemory
from ..manager import KVCacheManager
from ..prefix_cache.radix import RadixCache
from ..records import Req
from ..release import release_kv_cache
from ..snapshots import Snapshot, snapshot

PAGE = 4

Error = TypeVar("Error", bound=Exception)


def radix_manager(device: str, **changes: Any) -> KVCacheManager:
    """Sixteen pages of four tokens and four rows, with a prefix cache."""
    sizes: dict[str, Any] = {"page_size": PAGE, "num_pages": 16, "max_requests": 4, "context_len": 64}
    return KVCacheManager(KVCacheConfig(**sizes | {"device": device, "prefix_cache": "radix"} | changes))


def cache_of(manager: KVCacheManager) -> RadixCache:
    assert manager.tree_cache is not None
    return manager.tree_cache


def sound(manager: KVCacheManager) -> Snapshot:
    """The state, which keeps the contract; what the cache counts is what is there."""
    state, cache = snapshot(manager), cache_of(manager)
    assert audit(state) == []
    cached = state.cache[0] > 0
    assert cache.cached_pages == np.count_nonzero(cached)
    assert cache.evictable_pages == np.count_nonzero(cached & (state.cache[3] == 0))
    return state


def start(manager: KVCacheManager, tokens: Iterable[int], length: int | None = None, extra_key: Hashable = None) -> Req:
    """A running request of these tokens, extended to `length` of them, or all."""
    req = Req(f"r{manager.req_to_token_pool.records.generation.sum()}", list(tokens), extra_key)
    alloc_for_extend(manager, [req], [len(req.token_ids) if length is None else length])
    sound(manager)
    return req


def finish(manager: KVCacheManager, *reqs: Req) -> None:
    """Release with a checkpoint."""
    release_kv_cache(manager, reqs, checkpoint=True)
    sound(manager)


def serve(manager: KVCacheManager, tokens: Iterable[int], extra_key: Hashable = None) -> list[int]:
    """A request that comes and goes; returns the pages that it had, those of its last partial page too."""
    req = start(manager, tokens, extra_key=extra_key)
    pages = pages_of(manager, req)
    finish(manager, req)
    return pages


def pages_of(manager: KVCacheManager, req: Req) -> list[int]:
    """The pages of a request's row, by position."""
    slots = manager.req_to_token_pool.req_to_token[req._row, : req.kv.kv_allocated_len : PAGE]
    return [int(slot) // PAGE for slot in slots.tolist()]


def cached_pages(manager: KVCacheManager) -> set[int]:
    return set(np.flatnonzero(sound(manager).cache[0]).tolist())


def free_pages(manager: KVCacheManager) -> set[int]:
    return set(manager.allocator.free_list.live.tolist())


def refused(manager: KVCacheManager, error: type[Error], call: Callable[[], object]) -> Error:
    """The error that `call` ends in; it has changed nothing, to the bit."""
    before = snapshot(manager)
    clock = cache_of(manager).clock
    with pytest.raises(error) as caught:
        call()
    assert snapshot(manager).differences(before) == []
    assert cache_of(manager).clock == clock
    return caught.value


def short(manager: KVCacheManager, call: Callable[[], object]) -> tuple[str, int, int, int]:
    """A refusal for lack of room: pool, need, free, reclaimable."""
    error = refused(manager, KVCacheOutOfMemory, call)
    return error.pool, error.need, error.free, error.reclaimable


def bad_call(manager: KVCacheManager, call: Callable[[], object]) -> tuple[type[ContractError], str]:
    """A refusal of a call that cannot be right: its kind, and the argument that it names."""
    error = refused(manager, ContractError, call)
    return type(error), error.argument


def extend(manager: KVCacheManager, reqs: Sequence[Req], *seq_lens: int) -> None:
    alloc_for_extend(manager, reqs, seq_lens)
    sound(manager)
