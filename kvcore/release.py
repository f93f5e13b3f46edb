"""The paths that take slots back: finish, abort, retract, and trimming what speculation reserved too much.

    release_kv_cache(manager, [req], checkpoint=True)
    retract(manager, [victim])                        # resuming is an extend

A release counts pages by row segments: it searches nothing and every page comes back exactly once (KV-8).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import arguments
from .errors import BadArgument, DoubleFree
from .manager import KVCacheManager, bound_rows, rows_of
from .records import Req


def release_kv_cache(manager: KVCacheManager, reqs: Sequence[Req], *, checkpoint: bool) -> None:
    """Release requests whatever state they are in (finished, aborted, over-allocated): pages, rows, records.

    checkpoint: let the prefix cache keep what it can key. All or nothing for the batch; a request that holds no row
    is a DoubleFree.
    """
    if not isinstance(checkpoint, bool):
        raise BadArgument("KV-15", "checkpoint", f"is {checkpoint!r}; it has to be True or False")
    members = arguments.requests("reqs", reqs, Req)
    _give_back(manager, members)


def retract(manager: KVCacheManager, reqs: Sequence[Req]) -> None:
    """Take everything back from running requests to make room; each resumes by an extend. Errors as for release."""
    _give_back(manager, arguments.requests("reqs", reqs, Req))


def release_overallocated(manager: KVCacheManager, req: Req) -> int:
    """Free the pages past ceil_page(committed) and set allocated = committed: extend and decode are legal again.

    Returns the slots given back to the pool, in tokens (a page multiple). The page of the last committed token stays.
    """
    (member,) = arguments.requests("req", [req], Req)
    rows = bound_rows(manager, [member])
    records = manager.req_to_token_pool.records
    committed, allocated = records.committed[rows], records.allocated[rows]
    slots = _free_segments(manager, rows, first_free_position(committed, manager.page_size), allocated)
    records._move(rows, committed, committed)
    return slots


def first_free_position(committed: NDArray[np.int64], page_size: int) -> NDArray[np.int64]:
    """Where an over-allocated tail may be freed from: the page of position committed - 1 is live and stays."""
    return (committed + (page_size - 1)) & -page_size


def _give_back(manager: KVCacheManager, reqs: list[Req]) -> None:
    rows = rows_of(manager, reqs)
    if (rows == 0).any():
        gone = [req.rid for req in reqs if not req._row]
        raise DoubleFree("KV-8", "reqs", f"{gone} hold no row: released already, or never extended")
    records = manager.req_to_token_pool.records
    _free_segments(manager, rows, records.protected[rows], records.allocated[rows])
    manager.req_to_token_pool.unbind(rows)


def _free_segments(
    manager: KVCacheManager, rows: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> int:
    """Free row[start:end) of each row, start page aligned. Returns the tokens of the pages freed."""
    start = np.minimum(start, first_free_position(end, manager.page_size))
    pages = manager.kernels.gather_pages(manager.req_to_token_pool.req_to_token, rows, start, end, manager.page_size)
    manager.allocator.give_back(pages)
    return len(pages) * manager.page_size
