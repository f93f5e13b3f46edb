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
from .prefix_cache.radix import RadixCache
from .records import Req
from .req_to_token import ReqToTokenPool


class KVCacheManager:
    """Owns `req_to_token_pool` (rows, records), `allocator` (pages) and `tree_cache` (the prefix cache, or None).

    One thread and one stream use it.
    """

    def __init__(self, config: KVCacheConfig) -> None:
        if not isinstance(config, KVCacheConfig):
            raise BadArgument("KV-15", "config", f"is a {type(config).__name__}; it has to be a KVCacheConfig")
        self.config = config
        self.page_size = config.page_size
        self.kernels = kernels_for(config.device)
        width = sizing.row_width(config.context_len, config.page_size, config.speculation)
        self.req_to_token_pool = ReqToTokenPool(config.max_requests, width, config.tensor_device)
        self.allocator = PagedAllocator(config.num_pages, config.page_size, config.device, config.is_checked)
        self.tree_cache: RadixCache | None = None
        if config.prefix_cache == "radix":
            self.tree_cache = RadixCache(
                config.page_size, config.max_requests, config.eviction, config.has_bigram_keys, config.tensor_device
            )

    def take_pages(self, count: int) -> int:
        """Commit to `count` pages, evicting exactly what is short; returns the head at which their ids begin.

        Only behind a commit point: the caller has compared `count` with what is free and reclaimable.
        """
        short = count - self.allocator.free_list.count
        if short > 0 and self.tree_cache is not None:
            self.allocator.give_back(self.tree_cache.evict(short))
        return self.allocator.take(count)


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
