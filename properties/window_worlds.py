"""A small manager with a window, and what the tests of windows, free groups and leases do with one.

    manager = windowed(device, size=8, num_pages=16, window_pages=16)
    req = begin(manager, range(20))
    assert live(manager, req) == [0, 1, 2, 3, 4]        # pages of its row that have a window page
    sound(manager)

Also for managers without a prefix cache, of which `worlds` does not speak. `sound` follows every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeVar

import numpy as np
import pytest

from ..allocation import alloc_for_extend
from ..auditing import audit
from ..errors import ContractError, KVCacheOutOfMemory
from ..manager import Batch, KVCacheManager
from ..preallocation import alloc_for_decode_prealloc
from ..prefix_cache.windowed import WindowedCache
from ..records import Req
from ..release import release_kv_cache, retract
from ..snapshots import Snapshot, snapshot
from ..window import Window
from . import worlds

PAGE = worlds.PAGE
_numbers = count()

Error = TypeVar("Error", bound=Exception)

WAYS: dict[str, Callable[[KVCacheManager, Req], object]] = {
    "finish": lambda manager, req: release_kv_cache(manager, [req], checkpoint=True),
    "abort": lambda manager, req: release_kv_cache(manager, [req], checkpoint=False),
    "retract": lambda manager, req: retract(manager, [req]),
}
"""How a request leaves."""


def plain(device: str, **changes: Any) -> KVCacheManager:
    """Sixteen pages of four tokens and four rows, without a prefix cache."""
    return worlds.radix_manager(device, **{"prefix_cache": "none"} | changes)


def windowed(
    device: str,
    size: int = 8,
    window_pages: int = 16,
    *,
    kind: str = "pool",
    interval: int = 0,
    floor: int = 0,
    **changes: Any,
) -> KVCacheManager:
    """The same with a window of `size` tokens, whose pool has sixteen pages, too."""
    window = Window(size, window_pages if kind == "pool" else 0, kind, interval, floor)
    return plain(device, **{"window": window} | changes)


def sound(manager: KVCacheManager) -> Snapshot:
    """The state, which keeps the contract; what the cache counts is what is there."""
    if manager.tree_cache is None:
        state = snapshot(manager)
        assert audit(state) == []
        return state
    state = worlds.sound(manager)
    if isinstance(manager.tree_cache, WindowedCache):
        end, dead, held = state.cache[0], state.cache[7], state.cache[8]
        assert manager.tree_cache.evictable_window_pages == np.count_nonzero((end > 0) & (dead == 0) & (held == 0))
    return state


def begin(manager: KVCacheManager, tokens: Iterable[int], length: int | None = None) -> Req:
    """A running request of these tokens, extended to `length` of them, or all."""
    req = Req(f"w{next(_numbers)}", list(tokens))
    extend(manager, req, len(req.token_ids) if length is None else length)
    return req


def extend(manager: KVCacheManager, req: Req, length: int) -> None:
    alloc_for_extend(manager, [req], [length])
    sound(manager)


def prealloc(manager: KVCacheManager, req: Req, fill: int, total: int | None = None, tail: int | None = None) -> Req:
    alloc_for_decode_prealloc(manager, req, fill_len=fill, total_prefix_len=total, swa_tail_len=tail)
    return req


def leave(manager: KVCacheManager, *reqs: Req, checkpoint: bool = False) -> None:
    release_kv_cache(manager, reqs, checkpoint=checkpoint)
    sound(manager)


def batch_of(manager: KVCacheManager, *reqs: Req) -> Batch:
    return Batch(manager, reqs)


def pages(manager: KVCacheManager, req: Req) -> list[int]:
    """The pages of the request's row by position, those of a hole and those that are gone included."""
    size = manager.page_size
    slots = manager.req_to_token_pool.req_to_token[req._row, : req.kv.kv_allocated_len : size]
    return [int(slot) // size for slot in slots.tolist()]


def window_pages(manager: KVCacheManager, req: Req) -> list[int]:
    """The window page of each page of the row, 0 where it has none."""
    return [int(manager.window_map[page]) for page in pages(manager, req)]


def live(manager: KVCacheManager, req: Req) -> list[int]:
    """Which pages of the row have a window page."""
    return [index for index, page in enumerate(window_pages(manager, req)) if page]


def counts(manager: KVCacheManager) -> list[int]:
    """Free pages of each pool, counted from the lists."""
    return [len(pool.free) + len(pool.staged) for pool in snapshot(manager).pools.values()]


def free_sets(manager: KVCacheManager) -> list[set[int]]:
    """The free pages of each pool."""
    return [{*pool.free.tolist(), *pool.staged.tolist()} for pool in snapshot(manager).pools.values()]


def quarantined(manager: KVCacheManager) -> list[set[int]]:
    """The pages of each pool that wait for a lease."""
    return [set(pool.quarantined.tolist()) for pool in sound(manager).pools.values()]


def refused(manager: KVCacheManager, error: type[Error], call: Callable[[], object]) -> Error:
    """The error that `call` ends in; it has changed nothing, to the bit."""
    before = sound(manager)
    with pytest.raises(error) as caught:
        call()
    assert snapshot(manager).differences(before) == []
    return caught.value


def short(manager: KVCacheManager, call: Callable[[], object]) -> tuple[str, int, int, int]:
    """A refusal for lack of room: pool, need, free, reclaimable."""
    error = refused(manager, KVCacheOutOfMemory, call)
    return error.pool, error.need, error.free, error.reclaimable


def bad_call(manager: KVCacheManager, call: Callable[[], object]) -> tuple[type[ContractError], str, str]:
    """A refusal of a call that cannot be right: its kind, its clause, and the argument that it names."""
    error = refused(manager, ContractError, call)
    return type(error), error.clause, error.argument
