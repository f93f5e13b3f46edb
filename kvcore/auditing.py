"""Recount a state from its raw tensors and name the broken clause.

    for violation in audit(snapshot(manager)):
        print(violation.clause, violation.message)

One function for every allocator under test. It recounts ownership as a map from page to state and not as a sum:
the worst public bugs keep the sum while one page is owned twice and another is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .snapshots import PoolState, Snapshot

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Violation:
    """A broken clause: what is wrong, the pages and rows to look at. `only_lost`: pages are nowhere, none is twice."""

    clause: str
    message: str
    pages: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    only_lost: bool = False


def audit(state: Snapshot) -> list[Violation]:
    """All violations of KV-1 to KV-4, KV-9 and KV-10 that the state shows, records first; empty for a sound state."""
    found = _records(state)
    if found:
        return found  # Rows cannot be read by a record that is wrong.
    rows = np.fromiter(state.bound, dtype=np.int64, count=len(state.bound))
    lens = state.records[2, rows]
    # One entry a token of every bound row: its row, its position, its slot.
    owner = np.repeat(rows, lens)
    ends = np.cumsum(lens)
    position = np.arange(len(owner)) - np.repeat(ends - lens, lens)
    present = (position < state.records[5, owner]) | (position >= state.records[6, owner])  # not in an open hole
    dead = _is_dead(state, owner, position)
    if next(iter(state.pools)) == "window":  # a pure window: what is dead is gone
        present &= ~dead
    owner, position, dead = owner[present], position[present], dead[present]
    slots = state.slots[owner, position].astype(np.int64)
    private = (position >= state.records[0, owner]) & (position & (state.page_size - 1) == 0)
    owner_of_page, pages = owner[private], slots[private] // state.page_size
    return [
        *_layout(state, owner, position, slots),
        *_owners(state, owner_of_page, pages),
        *_cache(state),
        *_window(state, pages[~dead[private]]),
        *_offload(state, owner_of_page, position[private], pages),
    ]


def _is_dead(state: Snapshot, owner: Int64, position: Int64) -> NDArray[np.bool_]:
    """Whether a position lies behind the window of its row, between what is never given up and the cursor."""
    protected, _, _, cursor, floor = state.records[:5]
    low = np.maximum(protected, (floor + (state.page_size - 1)) & -state.page_size)[owner]
    dead: NDArray[np.bool_] = (position >= low) & (position < cursor[owner])
    return dead


def _records(state: Snapshot) -> list[Violation]:
    found = []
    height, width = state.slots.shape
    rows = sorted([*state.bound, *state.free_rows])
    if 0 in state.bound or 0 in state.free_rows:
        found.append(Violation("KV-2", "row 0, the padding row, is bound or free to be bound", rows=(0,)))
    elif rows != list(range(1, height)):
        odd = tuple(row for row in range(1, height) if rows.count(row) != 1)
        found.append(Violation("KV-1", f"rows {odd} are bound and free, listed twice, or lost", rows=odd))
    protected, committed, allocated = state.records[:3]
    ordered = (protected >= 0) & (protected <= committed) & (committed <= allocated) & (allocated <= width)
    sound = ordered & (protected % state.page_size == 0) & (committed <= state.context_len)
    low, high = state.records[5:7]
    sound &= (low % state.page_size == 0) & (high % state.page_size == 0) & (high <= allocated)
    sound &= ((low == 0) & (high == 0)) | ((low == protected) & (low < high))
    cursor = state.records[3]
    sound &= (cursor % state.page_size == 0) & (cursor >= 0) & (cursor <= allocated)
    empty = (state.records[:-1] == 0).all(axis=0)
    for row in np.flatnonzero(~sound).tolist():
        found.append(Violation("KV-4", f"row {row} has the record {state.record(row)}, row width {width}", rows=(row,)))
    for row in np.flatnonzero(~empty).tolist():
        if row not in state.bound:
            found.append(Violation("KV-4", f"row {row} is not bound, its record is {state.record(row)}", rows=(row,)))
    return found


def _layout(state: Snapshot, owner: Int64, position: Int64, slots: Int64) -> list[Violation]:
    """One page for each page_size positions, at equal offsets; never the padding page."""
    offset = position & (state.page_size - 1)
    first = slots[np.arange(len(slots)) - offset]
    wrong = (slots - first != offset) | (first & (state.page_size - 1) != 0)
    found = []
    if wrong.any():
        at = int(wrong.argmax())
        row = int(owner[at])
        found.append(
            Violation(
                "KV-3",
                f"row {row}, position {position[at]}: slot {slots[at]}, on a page that begins at slot {first[at]}",
                rows=(row,),
            )
        )
    return found


def _owners(state: Snapshot, owner: Int64, held: Int64) -> list[Violation]:
    """Each page 1..N of the main pool in exactly one place: free, in quarantine, cached, or private to a row."""
    pool = next(iter(state.pools.values()))
    cached = np.flatnonzero(state.cache[0])

    def places(page: int) -> list[str]:
        found = _listings(pool, page)
        found += ["the prefix cache"] * bool(page < state.cache.shape[1] and state.cache[0, page] > 0)
        return found + [f"row {int(row)} ({state.bound[int(row)]})" for row in owner[held == page]]

    def rows(pages: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted({int(row) for row, page in zip(owner, held, strict=True) if page in pages}))

    where = "is free, cached or in a row"
    return _once_each(pool, np.concatenate((cached, held)), where, "nor cached, nor in a row", places, rows)


def _once_each(
    pool: PoolState,
    used: Int64,
    where: str,
    nor: str,
    places: Callable[[int], list[str]],
    rows: Callable[[tuple[int, ...]], tuple[int, ...]],
    of: str = "",
) -> list[Violation]:
    """Each page of a pool in one place: in one of its lists, or among those that are `used`."""
    listed = np.concatenate((pool.free, pool.staged, pool.queued, pool.quarantined, used))
    if len(listed) and (listed.min() < 1 or listed.max() > pool.num_pages):
        bad = tuple(sorted({int(page) for page in listed if not 1 <= page <= pool.num_pages}))
        wrong = where if 0 in bad else f"lies outside 1..{pool.num_pages}"
        return [Violation("KV-2" if 0 in bad else "KV-1", f"page {bad[0]}{of} {wrong}", pages=bad)]
    counts = np.bincount(listed, minlength=pool.num_pages + 1)[1:]
    if (counts == 1).all():
        return []
    twice = tuple((np.flatnonzero(counts > 1) + 1).tolist())
    lost = tuple((np.flatnonzero(counts == 0) + 1).tolist())
    holders = {page: places(page) for page in twice[:4]}
    message = "; ".join(
        [f"page {page}{of} is in {len(found)} places: {', '.join(found)}" for page, found in holders.items()]
        + ([f"pages {list(lost[:8])}{of} are lost: neither free, {nor}"] if lost else [])
    )
    return [Violation("KV-1", message, pages=twice + lost, rows=rows(twice), only_lost=not twice)]


def _listings(pool: PoolState, page: int) -> list[str]:
    """The lists of a pool that name a page."""
    lists = {"the free list": pool.free, "the staged pages": pool.staged, "the queue": pool.queued}
    lists["the quarantine"] = pool.quarantined
    return [name for name, pages in lists.items() for _ in range(int(np.count_nonzero(pages == page)))]


def _window(state: Snapshot, live: Int64) -> list[Violation]:
    """The map has the live pages, private and cached, and nothing else; each window page is in one place (KV-10)."""
    if "window" not in state.maps:
        return []
    mapped, target = state.maps["window"]
    cached = np.flatnonzero((state.cache[0] > 0) & (state.cache[7] == 0))
    should = np.concatenate((live, cached))
    should.sort()
    if not np.array_equal(mapped, should):
        missing, extra = np.setdiff1d(should, mapped), np.setdiff1d(mapped, should)
        message = f"live pages without a window page: {missing[:8].tolist()}, others with one: {extra[:8].tolist()}"
        return [Violation("KV-10", message, pages=(*missing.tolist(), *extra.tolist()))]
    pool = state.pools["window"]

    def places(page: int) -> list[str]:
        return _listings(pool, page) + [f"the map of page {int(at)}" for at in mapped[target == page]]

    nobody: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda pages: ()  # noqa: E731
    return _once_each(pool, target, "is free or mapped", "nor mapped", places, nobody, " of pool window")


def _offload(state: Snapshot, owner: Int64, position: Int64, pages: Int64) -> list[Violation]:
    """HiSparse: resident pages are mapped and no others, and each device and host page is in one place (KV-10)."""
    if "device" not in state.maps:
        return []
    mapped, target = state.maps["device"]
    should = np.sort(pages[position < state.records[7, owner]])
    if not np.array_equal(mapped, should):
        missing, extra = np.setdiff1d(should, mapped), np.setdiff1d(mapped, should)
        message = f"resident pages without a device page: {missing[:8].tolist()}, others with one: {extra[:8].tolist()}"
        return [Violation("KV-10", message, pages=(*missing.tolist(), *extra.tolist()))]
    held = state.held
    used = {"device": [("the map", {0: target.tolist()}), ("the buffer of row", held["buffer"])]}
    used["host"] = [("row", held["host"]), ("the back-up of", held["backup"])]
    found = []
    for name, parts in used.items():

        def places(page: int, name: str = name, parts: list[Any] = parts) -> list[str]:
            holders = [f"{what} {key}" for what, part in parts for key, pages in part.items() if page in pages]
            return _listings(state.pools[name], page) + holders

        listed = [page for _, part in parts for pages in part.values() for page in pages]
        array = np.array(listed, dtype=np.int64)
        pool, of = state.pools[name], f" of pool {name}"
        found += _once_each(pool, array, "is free or held", "nor held", places, lambda pages: (), of)
    return found


def _cache(state: Snapshot) -> list[Violation]:
    """What rows have protected is cached, at its place, and locked by as many rows as hold it (KV-9)."""
    end, parent, _, locks = state.cache[:4]
    size, found = state.page_size, []
    holders = np.zeros_like(locks)
    for leased in state.leases:
        np.add.at(holders, list(leased), 1)
    for row, rid in state.bound.items():
        pages = state.slots[row, : state.records[0, row] : size].astype(np.int64) // size
        expected = np.arange(1, len(pages) + 1) * size
        if len(pages) and (pages.max() >= len(end) or (end[pages] != expected).any()):
            found.append(
                Violation("KV-9", f"row {row} ({rid}) protects pages that are not cached at their place", rows=(row,))
            )
            continue
        if (parent[pages[1:]] != pages[:-1]).any():
            found.append(Violation("KV-9", f"row {row} ({rid}) protects pages of several prefixes", rows=(row,)))
        holders[pages] += 1
    wrong = np.flatnonzero(holders != locks)
    if len(wrong) and not found:
        page = int(wrong[0])
        message = f"cached page {page} has {locks[page]} locks, {holders[page]} rows and leases hold it"
        found.append(Violation("KV-9", message, pages=tuple(wrong.tolist())))
    for page in np.flatnonzero((end > 0) & (end != np.where(parent > 0, end[parent], 0) + size)).tolist():
        found.append(Violation("KV-9", f"cached page {page} does not follow on the page before it", pages=(page,)))
    return found
