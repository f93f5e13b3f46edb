"""What a request has left behind its window goes back while the request goes on.

    tokens = evict_window(manager, batch)        # at any time; the paths do the same for their members

The decode paths evict for the batch before they take anything; an extend does where prefixes are not shared (where
they are, a checkpoint between two chunks makes the window pages evictable in the cache). What is given up counts as
reclaimable: it is there before the call takes its pages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import BadArgument
from .freeing import Freed, dead_range, gather_pages
from .manager import Batch, KVCacheManager, check_batch
from .window import next_cursor

Int64 = NDArray[np.int64]


class GivenUp(NamedTuple):
    """Rows that give up their window pages of [start, end); `pages` of them are free at once, under no lease."""

    rows: Int64
    start: Int64
    end: Int64
    pages: int


NOTHING = GivenUp(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)


def evict_window(manager: KVCacheManager, batch: Batch) -> int:
    """Give up what lies behind the window of each request. Returns the tokens of the pages that went, 0 without one.

    Raises BadArgument (an open hole), StaleRow.
    """
    check_batch(manager, batch)
    if manager.req_to_token_pool.records.hole_hi[batch.rows].any():
        raise BadArgument("KV-15", "batch", "holds a request with an open hole: fill_hole first")
    given_up = behind_window(manager, batch.rows)
    give_up(manager, given_up)
    return int((given_up.end - given_up.start).sum())


def behind_window(manager: KVCacheManager, rows: Int64) -> GivenUp:
    """What the rows, all of them bound, would give up now. No effect."""
    window = manager.config.window
    if window is None or window.kind == "ring" or not len(rows):
        return NOTHING
    records, size = manager.req_to_token_pool.records, manager.page_size
    low, _ = dead_range(manager, rows)
    start, end = next_cursor(
        window,
        size,
        records.committed[rows],
        low,
        records.cursor[rows],
        shares=manager.tree_cache is not None,
        bigram=manager.config.has_bigram_keys,
    )
    moves = end > start
    if not moves.any():
        return NOTHING
    rows, start, end = rows[moves], start[moves], end[moves]
    pages = (end - start) // size
    if manager.leases.active:
        generations = records.generation[rows].tolist()
        covered = [manager.leases.pages(binding, size) for binding in zip(rows.tolist(), generations, strict=True)]
        pages -= np.clip(np.array(covered) - start // size, 0, pages)
    return GivenUp(rows, start, end, int(pages.sum()))


def give_up(manager: KVCacheManager, given_up: GivenUp) -> None:
    """Free it and move the cursors."""
    rows, start, end, _ = given_up
    if not len(rows):
        return
    assert manager.config.window is not None
    pages, at, size = gather_pages(manager, rows, start, end), 0, manager.page_size
    freed = Freed(manager)
    add = freed.add if manager.config.window.kind == "pure" else freed.add_window
    for row, first, count in zip(
        rows.tolist(), (start // size).tolist(), ((end - start) // size).tolist(), strict=True
    ):
        add(row, first, pages[at : at + count])
        at += count
    freed.give_back()
    manager.req_to_token_pool.records._move_cursor(rows, end)
