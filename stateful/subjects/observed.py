"""What a subject shows of its state: its own snapshot, or one put together from the little that it shows.

    look = observer(subject, pools)
    state = look()

A slot allocator need not build a snapshot. It may have `free_pages()` (the ids that it lists as free, of its one pool
or pool -> ids), `queued_pages()` alike for an open free group, and `mapped()` (name of the second pool -> slots, their
slots there). An allocator that shows only what is available is compared by the count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...records import FIELDS
from ...snapshots import PoolState, Snapshot
from ..configuration import Configuration
from ..verdicts import Broken
from . import UnusableSubject, in_words

Int64 = NDArray[np.int64]

_NONE = np.zeros(0, dtype=np.int64)
_NO_RECORDS, _NO_ROWS = np.zeros((len(FIELDS), 1), dtype=np.int64), np.zeros((1, 1), dtype=np.int32)


def observer(subject: Any, pools: dict[str, int]) -> Callable[[], Snapshot]:
    """The function that reads the state; pools: name -> pages of each, in the order of `available()`."""
    if hasattr(subject, "snapshot"):
        snapshot: Callable[[], Snapshot] = subject.snapshot
        return snapshot
    return _Puzzle(subject, pools).look


def shows_pages(subject: Any) -> bool:
    """Whether the subject tells which pages are free, not only how many."""
    return hasattr(subject, "snapshot") or hasattr(subject, "free_pages")


def shows_queue(subject: Any) -> bool:
    """Whether the subject tells what an open free group holds."""
    return hasattr(subject, "snapshot") or hasattr(subject, "queued_pages")


class _Puzzle:
    """The state of a subject that has no snapshot of its own. What it shows is looked up once, the call is frequent."""

    def __init__(self, subject: Any, pools: dict[str, int]) -> None:
        self.subject, self.pools = subject, pools
        self.shows = {name for name in ("free_pages", "queued_pages", "mapped") if hasattr(subject, name)}

    def look(self) -> Snapshot:
        subject, pools = self.subject, self.pools
        config: Configuration = subject.config
        free: dict[str, Int64]
        if "free_pages" in self.shows:
            free = _by_pool(subject, "free_pages", pools)
        else:
            size = config.page_size
            free = {name: np.zeros(n // size, dtype=np.int64) for name, n in available(subject, pools).items()}
        queued = _by_pool(subject, "queued_pages", pools) if "queued_pages" in self.shows else {}
        states = {name: PoolState(count, free[name], queued=queued.get(name, _NONE)) for name, count in pools.items()}
        maps = _ask(subject, "mapped") if "mapped" in self.shows else {}
        return slot_state(config, states, {name: np.asarray(pairs, dtype=np.int64) for name, pairs in maps.items()})


def available(subject: Any, pools: Iterable[str]) -> dict[str, int]:
    """By pool, the free tokens as the subject counts them."""
    names, said = list(pools), _ask(subject, "available")
    if not isinstance(said, (list, tuple, np.ndarray)) or len(said) != len(names):
        raise UnusableSubject(f"returns {said!r} from available(); expected is a list: the free tokens of {names}")
    return {name: int(tokens) for name, tokens in zip(names, said, strict=True)}


def integers(value: Any) -> Int64:
    """int64[n], from a list, an array or a tensor of integers on any device; TypeError for anything else."""
    given = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"a {type(value).__name__} of {given.dtype} holds no integers")
    return given.astype(np.int64, copy=False).reshape(-1)


def _ask(subject: Any, method: str) -> Any:
    """What the subject shows; that it cannot is a failure of its own."""
    try:
        return getattr(subject, method)()
    except Exception as error:
        raise Broken("KV-1", f"{method}() ended in {in_words(error)}") from error


def slot_state(config: Configuration, pools: dict[str, PoolState], maps: dict[str, Int64]) -> Snapshot:
    """The snapshot of a slot allocator: no rows, no records; maps: name of the second pool -> slots, slots there."""
    return Snapshot(config.page_size, config.context_len, pools, {}, (), _NO_RECORDS, _NO_ROWS, maps=maps)


def _by_pool(subject: Any, method: str, pools: dict[str, int]) -> dict[str, Int64]:
    """Ascending: which page comes next is the allocator's own affair, and may change in a call that is refused."""
    said = _ask(subject, method)
    given = said if isinstance(said, dict) else {next(iter(pools)): said}
    if set(given) != set(pools):
        raise UnusableSubject(f"says nothing of a pool in {method}(): it has {list(pools)}, told are {list(given)}")
    try:
        return {name: np.sort(integers(pages)) for name, pages in given.items()}
    except (TypeError, ValueError) as error:
        raise UnusableSubject(f"returns {said!r} from {method}(), no page ids: {in_words(error)}") from None
