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
from .manager import KVCacheManager, bound_rows, rows_of
from .prefix_cache.keys import Key
from .records import Req


def release_kv_cache(manager: KVCacheManager, reqs: Sequence[Req], *, checkpoint: bool) -> None:
    """Release requests in whatever state they are (finished, aborted, over-allocated, with a hole): all they hold.

    checkpoint: let the prefix cache keep what it can key: the whole pages of the committed tokens that `token_ids`
    knows, up to an open hole. All or nothing for the batch; a request that holds no row is a DoubleFree.
    """
    if not isinstance(checkpoint, bool):
        raise BadArgument("KV-15", "checkpoint", f"is {checkpoint!r}; it has to be True or False")
    _give_back(manager, arguments.requests("reqs", reqs, Req), checkpoint)


def retract(manager: KVCacheManager, reqs: Sequence[Req]) -> None:
    """Take everything back from running requests to make room; each resumes by an extend. Errors as for release.

    What a request has published stays in the prefix cache; nothing more is published.
    """
    _give_back(manager, arguments.requests("reqs", reqs, Req), checkpoint=False)


def release_overallocated(manager: KVCacheManager, req: Req) -> int:
    """Free the pages past ceil_page(committed) and set allocated = committed: extend and decode are legal again.

    Returns the slots given back to the pool, in tokens (a page multiple). The page of the last committed token stays.
    """
    (member,) = arguments.requests("req", [req], Req)
    rows = bound_rows(manager, [member])
    records = manager.req_to_token_pool.records
    committed, allocated = records.committed[rows], records.allocated[rows]
    start = np.minimum(first_free_position(committed, manager.page_size), end_of_pages(allocated, manager.page_size))
    pages = gather_pages(manager, rows, start, allocated)
    manager.allocator.give_back(pages)
    records._move(rows, committed, committed)
    return len(pages) * manager.page_size


def first_free_position(committed: NDArray[np.int64], page_size: int) -> NDArray[np.int64]:
    """Where an over-allocated tail may be freed from: the page of position committed - 1 is live and stays."""
    return end_of_pages(committed, page_size)


def end_of_pages(tokens: NDArray[np.int64], page_size: int) -> NDArray[np.int64]:
    """Where the last page of so many tokens ends."""
    return (tokens + (page_size - 1)) & -page_size


def gather_pages(
    manager: KVCacheManager, rows: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> torch.Tensor:
    """The pages under row[start:end) of each row, start page aligned, one request's behind the other's."""
    return manager.kernels.gather_pages(manager.req_to_token_pool.req_to_token, rows, start, end, manager.page_size)


def private_from(manager: KVCacheManager, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each row's own pages begin: behind what the cache protects, and behind an open hole."""
    records = manager.req_to_token_pool.records
    begin: NDArray[np.int64] = np.maximum(records.protected[rows], records.hole_hi[rows])
    return begin


def _give_back(manager: KVCacheManager, reqs: list[Req], checkpoint: bool) -> None:
    rows = rows_of(manager, reqs)
    if (rows == 0).any():
        gone = [req.rid for req in reqs if not req._row]
        raise DoubleFree("KV-8", "reqs", f"{gone} hold no row: released already, or never extended")
    start, end = private_from(manager, rows), manager.req_to_token_pool.records.allocated[rows]
    keys = publishable(manager, reqs, rows) if checkpoint else None
    pages = gather_pages(manager, rows, start, end)
    if manager.tree_cache is not None:
        counts = (end_of_pages(end, manager.page_size) - start) // manager.page_size
        parts: tuple[torch.Tensor, ...] = torch.split(pages, counts.tolist())
        if keys is not None:
            parts = tuple(part for triple in zip(reqs, keys, parts, strict=True) for part in _publish(manager, *triple))
        for row in rows.tolist():
            manager.tree_cache.release(row)
        pages = torch.cat(parts)
    manager.allocator.give_back(pages)
    manager.req_to_token_pool.unbind(rows)


def _publish(manager: KVCacheManager, req: Req, key: Key, pages: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Insert what can be keyed of a request's own `pages`; returns those that stay the request's."""
    assert manager.tree_cache is not None
    own = len(key) - int(manager.req_to_token_pool.records.protected[req._row]) // manager.page_size
    if own <= 0:
        return (pages,)
    duplicates, _ = manager.tree_cache.publish(req._row, key, pages[:own], req.extra_key)
    return pages[:duplicates], pages[own:]


def publishable(manager: KVCacheManager, reqs: Sequence[Req], rows: NDArray[np.int64]) -> list[Key] | None:
    """What of each request can be keyed: its committed tokens as far as they are known, up to an open hole."""
    cache, records = manager.tree_cache, manager.req_to_token_pool.records
    if cache is None:
        return None
    hole = records.hole_hi[rows] > 0
    lens = np.where(hole, records.hole_lo[rows], records.committed[rows])
    return [cache.key(req.token_ids, length) for req, length in zip(reqs, lens.tolist(), strict=True)]
