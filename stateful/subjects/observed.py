"""What a subject shows of its state: its own snapshot, or one put together from the little that it shows.

    look = observer(subject, pools)
    state = look()

A slot allocator need not build a snapshot. It may have `free_pages()` (the ids that it lists as free, of its one pool
or pool -> ids), `queued_pages()` alike for an open free group, and `mapped()` (name of the second pool -> slots, their
slots there). An allocator that shows only what is available is compared by the count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...records import FIELDS
from ...snapshots import PoolState, Snapshot
from ..configuration import Configuration

Int64 = NDArray[np.int64]


def observer(subject: Any, pools: dict[str, int]) -> Callable[[], Snapshot]:
    """The function that reads the state; pools: name -> pages of each, in the order of `available()`."""
    if hasattr(subject, "snapshot"):
        snapshot: Callable[[], Snapshot] = subject.snapshot
        return snapshot
    return lambda: _put_together(subject, pools)


def shows_pages(subject: Any) -> bool:
    """Whether the subject tells which pages are free, not only how many."""
    return hasattr(subject, "snapshot") or hasattr(subject, "free_pages")


def shows_queue(subject: Any) -> bool:
    """Whether the subject tells what an open free group holds."""
    return hasattr(subject, "snapshot") or hasattr(subject, "queued_pages")


def _put_together(subject: Any, pools: dict[str, int]) -> Snapshot:
    config: Configuration = subject.config
    size, available = config.page_size, subject.available()
    free: dict[str, Int64]
    if shows_pages(subject):
        free = _by_pool(subject.free_pages(), pools)
    else:
        free = {name: np.zeros(tokens // size, dtype=np.int64) for name, tokens in zip(pools, available, strict=True)}
    queued = _by_pool(subject.queued_pages(), pools) if hasattr(subject, "queued_pages") else {}
    nothing = np.zeros(0, dtype=np.int64)
    states = {name: PoolState(pages, free[name], queued=queued.get(name, nothing)) for name, pages in pools.items()}
    maps = subject.mapped() if hasattr(subject, "mapped") else {}
    return slot_state(config, states, {name: np.asarray(pairs, dtype=np.int64) for name, pairs in maps.items()})


def slot_state(config: Configuration, pools: dict[str, PoolState], maps: dict[str, Int64]) -> Snapshot:
    """The snapshot of a slot allocator: no rows, no records; maps: name of the second pool -> slots, slots there."""
    records, rows = np.zeros((len(FIELDS), 1), dtype=np.int64), np.zeros((1, 1), dtype=np.int32)
    return Snapshot(config.page_size, config.context_len, pools, {}, (), records, rows, maps=maps)


def _by_pool(ids: dict[str, Iterable[int]] | Iterable[int], pools: Sequence[str] | dict[str, int]) -> dict[str, Int64]:
    """Ascending: which page comes next is the allocator's own affair, and may change in a call that is refused."""
    given = ids if isinstance(ids, dict) else {next(iter(pools)): ids}
    return {name: np.sort(np.asarray(pages, dtype=np.int64).reshape(-1)) for name, pages in given.items()}
