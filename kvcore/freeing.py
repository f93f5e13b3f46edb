"""Giving back what a request holds: which pages of which pool, and which of them have to wait for a lease.

    freed = Freed(manager)
    freed.add(row, first=2, pages=pages)                  # full pages, from page 2 of the request on
    freed.add_window(row, first=2, owners=pages)          # the window pages of these full pages
    freed.give_back()

Which pages are mapped to the window pool is known on the host from the records: a map is never searched.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .leases import Binding, Quarantined
from .manager import KVCacheManager

Int64 = NDArray[np.int64]
_ALL = -(2**40)
"""In the place of a page's number: covered by every lease on its request."""


class Freed:
    """What one call gives back, collected, and pushed at the end: once a pool."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self._free: dict[str, list[torch.Tensor]] = {pool: [] for pool in manager.allocators}
        self._owners: list[torch.Tensor] = []
        self._waiting: list[tuple[Binding, int, torch.Tensor]] = []

    def add(self, row: int, first: int, pages: torch.Tensor) -> None:
        """Pages of the main pool, from page `first` of the row on."""
        leased = self._leased(row, first, pages)
        if leased:
            pool = self.manager.allocator.pool
            item = Quarantined(self._binding(row), first, pages[:leased], pool)
            self.manager.leases.quarantine.append(item)
        self._free[self.manager.allocator.pool].append(pages[leased:])

    def add_window(self, row: int, first: int, owners: torch.Tensor) -> None:
        """The window pages of these full pages, all of which have one."""
        leased = self._leased(row, first, owners)
        if leased:
            self._waiting.append((self._binding(row), first, owners[:leased]))
        self._owners.append(owners[leased:])

    def add_all(self, pool: str, row: int, pages: torch.Tensor) -> None:
        """Pages of another pool; while any lease covers the row, all of them wait."""
        self.add_of(pool, self._binding(row), pages)

    def add_of(self, pool: str, binding: Binding, pages: torch.Tensor) -> None:
        """The same for what a row had under an earlier binding."""
        if self.manager.leases.on(pool, binding):
            self.manager.leases.quarantine.append(Quarantined(binding, _ALL, pages, pool))
        else:
            self._free[pool].append(pages)

    def give_back(self) -> None:
        """Clear the maps and push the pages."""
        manager = self.manager
        if manager.window_allocator is not None:
            for binding, first, owners in self._waiting:
                pages = manager.kernels.take_window_pages(manager.window_map, owners)
                manager.leases.quarantine.append(Quarantined(binding, first, pages, "window"))
            if self._owners:
                pages = manager.kernels.take_window_pages(manager.window_map, torch.cat(self._owners))
                self._free["window"].append(pages)
        for pool, parts in self._free.items():
            if parts:
                manager.allocators[pool].give_back(torch.cat(parts))

    def _binding(self, row: int) -> Binding:
        return row, int(self.manager.req_to_token_pool.records.generation[row])

    def _leased(self, row: int, first: int, pages: torch.Tensor) -> int:
        if not self.manager.leases.active:
            return 0
        covered = self.manager.leases.pages(self._binding(row), self.manager.page_size)
        return min(max(covered - first, 0), len(pages))


def gather_pages(manager: KVCacheManager, rows: Int64, start: Int64, end: Int64) -> torch.Tensor:
    """The pages under row[start:end) of each row, start page aligned, one request's behind the other's."""
    return manager.kernels.gather_pages(manager.req_to_token_pool.req_to_token, rows, start, end, manager.page_size)


def end_of_pages(tokens: Int64, page_size: int) -> Int64:
    """Where the last page of so many tokens ends."""
    return (tokens + (page_size - 1)) & -page_size


def private_from(manager: KVCacheManager, rows: Int64) -> Int64:
    """Where each row's own pages begin: behind what the cache protects, and behind an open hole."""
    records = manager.req_to_token_pool.records
    begin: Int64 = np.maximum(records.protected[rows], records.hole_hi[rows])
    return begin


def dead_range(manager: KVCacheManager, rows: Int64) -> tuple[Int64, Int64]:
    """Of each row's own pages, those whose window is given back already: [from, to), tokens, page aligned."""
    records = manager.req_to_token_pool.records
    low = np.maximum(records.protected[rows], end_of_pages(records.floor[rows], manager.page_size))
    return low, np.maximum(records.cursor[rows], low)
