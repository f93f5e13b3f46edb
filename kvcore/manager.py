"""One KV cache: its rows, its records and its pool. The paths in `allocation` and `release` work on it.

manager = KVCacheManager(KVCacheConfig(page_size=16, num_pages=1024, max_requests=64, context_len=4096))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from . import arguments, sizing
from .allocators.paged import PagedAllocator
from .config import KVCacheConfig
from .errors import BadArgument, StaleRow
from .kernels.decode_rows import Mirror
from .kernels.dispatch import kernels_for
from .kernels.upload import upload
from .kernels.window import WindowPages
from .leases import LeaseBook
from .offload import Offload
from .prefix_cache.radix import RadixCache
from .prefix_cache.windowed import WindowedCache
from .records import Req
from .req_to_token import ReqToTokenPool


class KVCacheManager:
    """Owns `req_to_token_pool` (rows, records), the pools, `tree_cache` (the prefix cache, or None) and `leases`.

    allocator: the pool that rows name. window_allocator: the window pool, or None; window_map (int64[num_pages + 1], on
    the device) has the window page of each page of the main pool, 0 for none. offload: the device and the host pool, or
    None. One thread and one stream use it.
    """

    def __init__(self, config: KVCacheConfig) -> None:
        if not isinstance(config, KVCacheConfig):
            raise BadArgument("KV-15", "config", f"is a {type(config).__name__}; it has to be a KVCacheConfig")
        self.config = config
        self.page_size = config.page_size
        self.kernels = kernels_for(config.device)
        width = sizing.row_width(config.context_len, config.page_size, config.speculation)
        self.req_to_token_pool = ReqToTokenPool(config.max_requests, width, config.tensor_device)
        window = config.window
        self.allocator = self._pool(config.num_pages, _main_pool(config))
        self.allocators = {self.allocator.pool: self.allocator}
        self.window_allocator: PagedAllocator | None = None
        self.window_map = torch.zeros(0, dtype=torch.int64, device=config.tensor_device)
        if window is not None and window.kind == "pool":
            self.window_allocator = self.allocators["window"] = self._pool(window.num_pages, "window")
            self.window_map = torch.zeros(config.num_pages + 1, dtype=torch.int64, device=config.tensor_device)
        self.offload = self._offload(width)
        self.tree_cache = self._cache()
        self.leases = LeaseBook()

    def free_group_begin(self) -> None:
        """From here on, what any path frees is queued, and nothing is reclaimable. A second begin is refused."""
        self._require_groups(False)
        for allocator in self.allocators.values():
            allocator.free_group_begin()

    def free_group_end(self) -> None:
        """Close the group: what was freed in it is available. An end without a begin is refused."""
        self._require_groups(True)
        for allocator in self.allocators.values():
            allocator.free_group_end()

    def _require_groups(self, is_open: bool) -> None:
        # Of every pool before any changes: one of them alone may have been opened.
        for allocator in self.allocators.values():
            allocator.require_group(is_open)

    def evict(self, pages: int) -> None:
        """Evict exactly `pages` <= evictable pages of the prefix cache, and the window pages that go with them."""
        cache = self.tree_cache
        assert cache is not None
        self.allocator.give_back(cache.evict(pages))
        if isinstance(cache, WindowedCache):
            self._free_window_of(cache.evicted_owners())

    def take_pages(self, count: int) -> int:
        """Commit to `count` pages, evicting exactly what is short; returns the head at which their ids begin.

        Only behind a commit point: the caller has compared `count` with what is free and reclaimable.
        """
        short = count - self.allocator.free_list.count
        if short > 0:
            self.evict(short)
        return self.allocator.take(count)

    def take_window_pages(self, count: int) -> WindowPages | None:
        """The same for `count` pages of the window pool, for a kernel that maps them; None without one."""
        if self.window_allocator is None:
            return None
        short = count - self.window_allocator.free_list.count
        if short > 0:
            assert isinstance(self.tree_cache, WindowedCache)
            self._free_window_of(self.tree_cache.evict_window(short))
        return WindowPages(self.window_allocator.free_list.ids, self.window_allocator.take(count), self.window_map)

    def _free_window_of(self, owners: torch.Tensor) -> None:
        assert self.window_allocator is not None
        if len(owners):
            self.window_allocator.give_back(self.kernels.take_window_pages(self.window_map, owners))

    def _pool(self, num_pages: int, name: str) -> PagedAllocator:
        config = self.config
        checked, need_sort = config.is_checked, config.need_sort
        device = "cpu" if name == "host" else config.device  # the host pool is counted on the host
        return PagedAllocator(num_pages, config.page_size, device, checked, need_sort=need_sort, pool=name)

    def _offload(self, row_width: int) -> Offload | None:
        config = self.config
        if config.hisparse is None:
            return None
        device, host = (
            self._pool(config.hisparse.device_pages, "device"),
            self._pool(config.hisparse.host_pages, "host"),
        )
        self.allocators |= {"device": device, "host": host}
        rows, row_pages = config.max_requests + 1, sizing.pages_for(row_width, config.page_size)
        return Offload(config.hisparse, device, host, config.num_pages, rows, row_pages)

    def _cache(self) -> RadixCache | None:
        config = self.config
        if config.prefix_cache == "none":
            return None
        sizes = config.page_size, config.max_requests, config.eviction, config.has_bigram_keys, config.tensor_device
        if config.window is None or self.window_allocator is None:
            return RadixCache(*sizes)
        return WindowedCache(*sizes, window=config.window, window_map=self.window_map)


def _main_pool(config: KVCacheConfig) -> str:
    """What the pool that rows name is called."""
    if config.hisparse is not None:
        return "logical"
    return "window" if config.window is not None and config.window.kind == "pure" else "full"


class Batch:
    """The rows of some requests: made when the composition changes, reused for every step.

    `rows` is int64[bs] on the host, read-only. It remembers the generation of each row: once a member is released or
    bound anew, every path refuses the batch (StaleRow).
    """

    __slots__ = ("_device_rows", "generations", "manager", "mirror", "reqs", "rows")

    def __init__(self, manager: KVCacheManager, reqs: Sequence[Req]) -> None:
        members = arguments.requests("reqs", reqs, Req)
        self._of(manager, members, bound_rows(manager, members))

    @classmethod
    def of_rows(cls, manager: KVCacheManager, reqs: Sequence[Req], rows: NDArray[np.int64]) -> Batch:
        """The batch of requests that are known to hold these rows, which then belong to it."""
        batch = cls.__new__(cls)
        batch._of(manager, reqs, rows)
        return batch

    def _of(self, manager: KVCacheManager, reqs: Sequence[Req], rows: NDArray[np.int64]) -> None:
        self.manager = manager
        self.reqs = tuple(reqs)
        self.rows = rows
        self.rows.flags.writeable = False
        self.generations = manager.req_to_token_pool.records.generation[self.rows]
        self._device_rows: torch.Tensor | None = None
        self.mirror = Mirror()  # What the device keeps from one decode step to the next.

    @property
    def device_rows(self) -> torch.Tensor:
        """int32[bs] on the device, copied there on first use."""
        if self._device_rows is None:
            self._device_rows = upload((self.rows,), torch.int32, self.manager.req_to_token_pool.req_to_token.device)
        return self._device_rows

    def __len__(self) -> int:
        return len(self.rows)


def check_batch(manager: KVCacheManager, batch: Batch) -> None:
    """Refuse what is no batch of this manager, and one whose rows were released or bound anew since it was made."""
    if not isinstance(batch, Batch):
        raise BadArgument("KV-15", "batch", f"is a {type(batch).__name__}; it has to be a Batch")
    if batch.manager is not manager:
        raise StaleRow("KV-15", "batch", "belongs to another manager")
    if (manager.req_to_token_pool.records.generation[batch.rows] != batch.generations).any():
        raise StaleRow("KV-15", "batch", "holds a row that was released or bound anew since the batch was made")


def rows_of(manager: KVCacheManager, reqs: Sequence[Req]) -> NDArray[np.int64]:
    """The requests' rows, int64[len(reqs)], 0 where a request has none; a request of another manager is refused."""
    pool = manager.req_to_token_pool
    rows = [req._row for req in reqs if req._pool is pool or req._pool is None]
    if len(rows) != len(reqs):
        elsewhere = [req.rid for req in reqs if req._pool is not pool and req._pool is not None]
        raise StaleRow("KV-15", "reqs", f"requests {elsewhere} hold rows of another manager")
    return np.array(rows, dtype=np.int64)


def bound_rows(manager: KVCacheManager, reqs: Sequence[Req]) -> NDArray[np.int64]:
    """The requests' rows, int64[len(reqs)]; a request without a row is refused."""
    rows = rows_of(manager, reqs)
    if not rows.all():
        raise StaleRow("KV-15", "reqs", f"requests {[req.rid for req in reqs if not req._row]} hold no row")
    return rows
