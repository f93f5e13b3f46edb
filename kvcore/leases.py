"""Leases: pages that a step, a copy or a remote write still uses are not handed out, whatever becomes of the request.

    lease = begin_lease(manager, batch)             # before the launch
    ...                                             # the requests may finish, be aborted, retracted or trimmed
    late_result(manager, lease, accepted)           # the result arrives a step late
    retire(manager, lease)                          # the step has ended

What is freed under a lease waits in quarantine and comes back with the last lease that covers it; what is cached stays
locked. A lease covers the positions that its rows had when it began, and is told apart by the rows' generations: a row
that was released and bound anew is another request's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from . import arguments
from .errors import BadArgument, DoubleFree, RowOverflow
from .prefix_cache.radix import Node, RadixCache

if TYPE_CHECKING:
    from .manager import Batch, KVCacheManager

Int64 = NDArray[np.int64]
Binding = tuple[int, int]
"""A row and its generation: one request, from its bind to its release."""


@dataclass(eq=False)
class Lease:
    """The rows of a batch and how far they reached, in tokens, when the lease began. `active` until it is retired."""

    manager: KVCacheManager
    rows: Int64
    generations: Int64
    lens: Int64
    holds: dict[int, tuple[Node, int]] = field(default_factory=dict)  # row -> the cached pages that it keeps locked
    window_from: dict[int, int] = field(default_factory=dict)  # row -> the page from which it covers the window, too
    active: bool = True

    def relock(self, cache: RadixCache, row: int) -> None:
        """The row has published: what the lease covers of that stays locked, too."""
        old = self.holds.get(row)
        hold = cache.lend(row, int(self.lens[self.rows == row][0]), self.window_from[row])
        if hold is not None:
            self.holds[row] = hold
        if old is not None:
            cache.take_back(old)


@dataclass
class Quarantined:
    """Pages that a request has given up and a lease still covers, from page `first` of the request on."""

    binding: Binding
    first: int
    pages: torch.Tensor
    pool: str


class LeaseBook:
    """The active leases and what waits for them. former: of a request that has taken a back-up over, its binding before
    the retraction, as long as a lease on that is active: its host pages are the same."""

    def __init__(self) -> None:
        self.active: list[Lease] = []
        self.quarantine: list[Quarantined] = []
        self.former: dict[Binding, Binding] = {}

    def of(self, binding: Binding) -> list[Lease]:
        """The active leases on a row as it is bound now, the oldest first."""
        row, generation = binding
        return [lease for lease in self.active if ((lease.rows == row) & (lease.generations == generation)).any()]

    def on(self, pool: str, binding: Binding) -> bool:
        """Whether a lease is active on what a request has of that pool: on the host, an earlier binding's too."""
        former = self.former.get(binding) if pool == "host" else None
        return bool(self.of(binding)) or (former is not None and self.on(pool, former))

    def hand_on(self, former: Binding, binding: Binding) -> None:
        """The host pages of one binding are another's from now on."""
        if self.on("host", former):
            self.former[binding] = former

    def pages(self, binding: Binding, page_size: int) -> int:
        """How many of the first pages of a request some active lease covers."""
        covered = [int(lease.lens[lease.rows == binding[0]][0]) for lease in self.of(binding)]
        return -(-max(covered, default=0) // page_size)


def begin_lease(manager: KVCacheManager, batch: Batch) -> Lease:
    """Cover every position that the batch's rows have now. Retire it when what uses them has ended.

    Raises BadArgument, StaleRow.
    """
    from .freeing import dead_range  # both know the book of leases
    from .manager import check_batch

    check_batch(manager, batch)
    records = manager.req_to_token_pool.records
    lease = Lease(manager, batch.rows, batch.generations, records.allocated[batch.rows])
    cache = manager.tree_cache
    if cache is not None:
        live_from = (dead_range(manager, batch.rows)[1] // manager.page_size).tolist()
        for row, length, live in zip(batch.rows.tolist(), lease.lens.tolist(), live_from, strict=True):
            first = lease.window_from[row] = cache.window_from(row, length, live)
            if (hold := cache.lend(row, length, first)) is not None:
                lease.holds[row] = hold
    manager.leases.active.append(lease)
    return lease


def retire(manager: KVCacheManager, lease: Lease) -> None:
    """End a lease: what no other lease covers comes back. A second retirement is refused (DoubleFree)."""
    _check_lease(manager, lease)
    if not lease.active:
        raise DoubleFree("KV-16", "lease", "is retired already")
    lease.active = False
    book, size = manager.leases, manager.page_size
    book.active.remove(lease)
    for hold in lease.holds.values():
        assert manager.tree_cache is not None
        manager.tree_cache.take_back(hold)
    waiting, free = [], []
    for item in book.quarantine:
        covered = book.on("host", item.binding) if item.pool == "host" else book.pages(item.binding, size)
        keep = min(max(covered - item.first, 0), len(item.pages)) if covered else 0
        if keep:
            waiting.append(Quarantined(item.binding, item.first, item.pages[:keep], item.pool))
        if keep < len(item.pages):
            free.append((item.pool, item.pages[keep:]))
    book.quarantine = waiting
    book.former = {binding: former for binding, former in book.former.items() if book.on("host", former)}
    for pool, allocator in manager.allocators.items():
        if parts := [pages for name, pages in free if name == pool]:
            allocator.give_back(torch.cat(parts))


def late_result(manager: KVCacheManager, lease: Lease, accepted: object) -> NDArray[np.bool_]:
    """Settle the tokens of a leased step: committed += accepted for every member that still is what it was.

    accepted: tokens, one entry a member. A member that was released, retracted or bound anew meanwhile is passed over.
    Returns which were settled, bool[members]. Raises BadArgument (too many, a retired lease), RowOverflow.
    """
    _check_lease(manager, lease)
    if not lease.active:
        raise BadArgument("KV-16", "lease", "is retired: its result has to come before")
    lens = arguments.lengths("accepted", accepted, len(lease.rows))
    records = manager.req_to_token_pool.records
    current: NDArray[np.bool_] = records.generation[lease.rows] == lease.generations
    rows, lens = lease.rows[current], lens[current]
    committed, allocated = records.committed[rows] + lens, records.allocated[rows]
    if (committed > allocated).any():
        raise BadArgument("KV-15", "accepted", f"{lens.tolist()} reach past the allocated {allocated.tolist()}")
    if (committed > manager.config.context_len).any():
        raise RowOverflow("KV-4", "accepted", f"{lens.tolist()} reach past context_len {manager.config.context_len}")
    records._move(rows, committed, allocated)
    return current


def _check_lease(manager: KVCacheManager, lease: Lease) -> None:
    if not isinstance(lease, Lease):
        raise BadArgument("KV-15", "lease", f"is a {type(lease).__name__}; it has to be a Lease")
    if lease.manager is not manager:
        raise BadArgument("KV-15", "lease", "belongs to another manager")
