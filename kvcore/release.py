"""The paths that take slots back: finish, abort, retract, and trimming what speculation reserved too much.

    release_kv_cache(manager, [req], checkpoint=True)
    retract(manager, [victim])                        # resuming is an extend

A release counts pages by row segments: it searches nothing and every page comes back exactly once (KV-8).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from . import arguments
from .errors import BadArgument, DoubleFree
from .freeing import Freed, dead_range, end_of_pages, gather_pages, private_from
from .manager import KVCacheManager, bound_rows, rows_of
from .offload import free_offloaded
from .prefix_cache.keys import Key
from .prefix_cache.windowed import WindowedCache
from .records import Req

Int64 = NDArray[np.int64]


def release_kv_cache(manager: KVCacheManager, reqs: Sequence[Req], *, checkpoint: bool) -> None:
    """Release requests in whatever state they are (finished, aborted, over-allocated, with a hole): all they hold.

    checkpoint: let the prefix cache keep what it can key: the whole pages of the committed tokens that `token_ids`
    knows, up to an open hole. All or nothing for the batch; a request that holds no row is a DoubleFree.
    """
    if not isinstance(checkpoint, bool):
        raise BadArgument("KV-15", "checkpoint", f"is {checkpoint!r}; it has to be True or False")
    _give_back(manager, arguments.requests("reqs", reqs, Req), checkpoint)


def retract(manager: KVCacheManager, reqs: Sequence[Req], *, backup: bool = False) -> None:
    """Take everything back from running requests to make room; each resumes by an extend. Errors as for release.

    What a request has published stays in the prefix cache; nothing more is published. backup (HiSparse): what is on the
    host stays there, and a pre-allocation takes it over; see `offload`.
    """
    if not isinstance(backup, bool):
        raise BadArgument("KV-15", "backup", f"is {backup!r}; it has to be True or False")
    if backup and manager.offload is None:
        raise BadArgument("KV-15", "backup", "the configuration has no host pool")
    _give_back(manager, arguments.requests("reqs", reqs, Req), checkpoint=False, backup=backup)


def release_overallocated(manager: KVCacheManager, req: Req) -> int:
    """Free the pages past ceil_page(committed) and set allocated = committed: extend and decode are legal again.

    Returns the slots given back to the pool, in tokens (a page multiple). The page of the last committed token stays.
    """
    (member,) = arguments.requests("req", [req], Req)
    rows = bound_rows(manager, [member])
    records, size = manager.req_to_token_pool.records, manager.page_size
    committed, allocated = records.committed[rows], records.allocated[rows]
    start = np.minimum(first_free_position(committed, size), end_of_pages(allocated, size))
    pages = gather_pages(manager, rows, start, allocated)
    freed, row, first = Freed(manager), int(rows[0]), int(start[0]) // size
    freed.add(row, first, pages)
    freed.add_window(row, first, pages)
    freed.give_back()
    records._move(rows, committed, committed)
    return len(pages) * size


def first_free_position(committed: NDArray[np.int64], page_size: int) -> NDArray[np.int64]:
    """Where an over-allocated tail may be freed from: the page of position committed - 1 is live and stays."""
    return end_of_pages(committed, page_size)


def _give_back(manager: KVCacheManager, reqs: list[Req], checkpoint: bool, backup: bool = False) -> None:
    rows = rows_of(manager, reqs)
    if (rows == 0).any():
        gone = [req.rid for req in reqs if not req._row]
        raise DoubleFree("KV-8", "reqs", f"{gone} hold no row: released already, or never extended")
    start, end = private_from(manager, rows), manager.req_to_token_pool.records.allocated[rows]
    plain = manager.tree_cache is None and manager.config.window is None and manager.offload is None
    if plain and not manager.leases.active:
        manager.allocator.give_back(gather_pages(manager, rows, start, end))
    else:
        _give_back_one_by_one(manager, reqs, rows, start, end, checkpoint, backup)
    manager.req_to_token_pool.unbind(rows)


def _give_back_one_by_one(
    manager: KVCacheManager, reqs: list[Req], rows: Int64, start: Int64, end: Int64, checkpoint: bool, backup: bool
) -> None:
    """Publish what can be keyed, and free the rest: of the window pool what is not given back already."""
    size, cache, freed = manager.page_size, manager.tree_cache, Freed(manager)
    keys = publishable(manager, reqs, rows) if checkpoint and cache is not None else None
    first, last = start // size, end_of_pages(end, size) // size
    low, high = (np.clip(edge // size, first, last) for edge in dead_range(manager, rows))
    if manager.config.window is not None and manager.config.window.kind == "pure":
        # What is dead is gone: the row's pages lie on either side of it.
        pages = gather_pages(manager, np.repeat(rows, 2), *_around(first * size, low * size, high * size, end))
        counts = low - first + last - high
    else:
        pages, counts = gather_pages(manager, rows, start, end), last - first
    parts: tuple[torch.Tensor, ...] = torch.split(pages, counts.tolist())
    for i, (req, own) in enumerate(zip(reqs, parts, strict=True)):
        row, a, b, x, y = int(rows[i]), int(first[i]), int(last[i]), int(low[i]), int(high[i])
        if len(own) < b - a:  # pure, with a gap
            freed.add(row, a, own[: x - a])
            freed.add(row, y, own[x - a :])
            continue
        kept = a
        if keys is not None and len(keys[i]) > a:
            kept = len(keys[i])
            publish(manager, req, keys[i], own[: kept - a], freed)
        freed.add(row, kept, own[kept - a :])
        if manager.offload is not None:
            free_offloaded(manager, freed, req, own, backup=backup)
        if manager.window_allocator is not None:
            if x > kept:
                freed.add_window(row, kept, own[kept - a : x - a])
            if y < b:
                freed.add_window(row, max(y, kept), own[max(y, kept) - a :])
    if cache is not None:
        for row in rows.tolist():
            cache.release(row)
    freed.give_back()


def _around(start: Int64, low: Int64, high: Int64, end: Int64) -> tuple[Int64, Int64]:
    """The segments [start, low) and [high, end) of each row, one row's behind the other's."""
    return np.stack((start, high), axis=1).reshape(-1), np.stack((low, np.maximum(end, high)), axis=1).reshape(-1)


def publish(manager: KVCacheManager, req: Req, key: Key, pages: torch.Tensor, freed: Freed) -> torch.Tensor:
    """Insert a request's own `pages`, the last of its key's; its duplicates are `freed`. Returns the cached pages that
    stand in the place of these."""
    cache, row = manager.tree_cache, req._row
    assert cache is not None
    first, live_from = len(key) - len(pages), 0
    if isinstance(cache, WindowedCache):
        live_from = int(dead_range(manager, np.array([row]))[1][0]) // manager.page_size
        duplicates, cached, owners = cache.publish_live(row, key, pages, req.extra_key, live_from)
        for begin, part in owners:
            freed.add_window(row, begin, part)
    else:
        duplicates, cached = cache.publish(row, key, pages, req.extra_key)
    freed.add(row, first, pages[:duplicates])
    # What a lease covers has to stay locked where it lies now.
    binding = (row, int(manager.req_to_token_pool.records.generation[row]))
    for lease in manager.leases.of(binding):
        lease.relock(cache, row)
    return cached


def publishable(manager: KVCacheManager, reqs: Sequence[Req], rows: Int64) -> list[Key] | None:
    """What of each request can be keyed: its committed tokens as far as they are known, up to an open hole, and up to
    what a pure window has given up."""
    cache, records = manager.tree_cache, manager.req_to_token_pool.records
    if cache is None:
        return None
    lens = np.where(records.hole_hi[rows] > 0, records.hole_lo[rows], records.committed[rows])
    if manager.config.window is not None and manager.config.window.kind == "pure":
        lens = np.where(records.cursor[rows] > records.protected[rows], records.protected[rows], lens)
    return [cache.key(req.token_ids, length) for req, length in zip(reqs, lens.tolist(), strict=True)]
