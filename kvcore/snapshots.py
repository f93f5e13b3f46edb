"""A state as plain data, read from the raw tensors and never from counters.

before = snapshot(manager)
...
assert snapshot(manager) == before        # what "a refused call changes nothing" means, to the bit
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from .allocators.paged import PagedAllocator
from .leases import Lease
from .manager import KVCacheManager
from .prefix_cache.radix import Node
from .records import FIELDS

Int64 = NDArray[np.int64]
_NONE = np.zeros(0, dtype=np.int64)
_NO_CACHE = np.zeros((9, 0), dtype=np.int64)


@dataclass(frozen=True)
class PoolState:
    """The free pages of one pool, in order: listed, staged (to be sorted in), queued (in an open free group); and those
    in quarantine, which wait for a lease."""

    num_pages: int
    free: Int64
    staged: Int64 = field(default_factory=lambda: _NONE)
    queued: Int64 = field(default_factory=lambda: _NONE)
    quarantined: Int64 = field(default_factory=lambda: _NONE)


CACHE_FIELDS = ("end", "parent", "digest", "locks", "last_use", "hits", "born", "window_dead", "window_locks")
"""Rows of `Snapshot.cache`, a column a page, all zero for a page that is not cached. `end`: the tokens of the prefix
that ends with this page; `parent`: the page before it, 0 for none; `digest`: of its key, the extra key included;
`window_dead`: 1 if it has no window page."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything that the contract speaks about, copied to the host.

    pools: by name. bound: row -> request id. free_rows: in order. records: int64[len(FIELDS), rows], a column a row.
    slots: int32[rows, row_width], the whole table, stale entries too. cache: int64[len(CACHE_FIELDS), num_pages + 1], a
    column a page. cache_nodes: how its pages hang together, by their first page. maps: name -> (from, to) pages,
    int64[2, n], ascending. leases: of each active lease the cached pages that it keeps locked. held: "buffer" and
    "host": row -> pages; "newest": row -> (logical slot, device slot); "backup": request id -> host pages.
    """

    page_size: int
    context_len: int
    pools: dict[str, PoolState]
    bound: dict[int, Any]
    free_rows: tuple[int, ...]
    records: Int64
    slots: NDArray[np.int32]
    cache: Int64 = field(default_factory=lambda: _NO_CACHE)
    cache_nodes: tuple[tuple[int, ...], ...] = ()
    maps: dict[str, Int64] = field(default_factory=dict)
    leases: tuple[tuple[int, ...], ...] = ()
    held: dict[str, dict[Any, tuple[int, ...]]] = field(default_factory=dict)

    def record(self, row: int) -> dict[str, int]:
        """The record of a row by field name."""
        return dict(zip(FIELDS, self.records[:, row].tolist(), strict=True))

    def row_slots(self, row: int) -> NDArray[np.int32]:
        """The slots of a row, [0, allocated)."""
        return self.slots[row, : self.records[2, row]]

    def differences(self, other: Snapshot) -> list[str]:
        """What is not bit for bit the same, in words; empty if nothing."""
        found = []
        for name, mine in self.pools.items():
            theirs = other.pools[name]
            for part in ("free", "staged", "queued", "quarantined"):
                if not _same(getattr(mine, part), getattr(theirs, part)):
                    found.append(f"pool {name}: {part} pages")
        found += [
            name
            for name in ("bound", "free_rows", "cache_nodes", "leases", "held")
            if getattr(self, name) != getattr(other, name)
        ]
        found += [
            name for name in ("records", "slots", "cache") if not _same(getattr(self, name), getattr(other, name))
        ]
        if self.maps.keys() != other.maps.keys():
            return [*found, "maps"]
        return found + [f"map {name}" for name in self.maps if not _same(self.maps[name], other.maps[name])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and not self.differences(other)

    __hash__ = None  # type: ignore[assignment]


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.nbytes > 1 << 16:
        return np.array_equal(a, b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()  # a fifth of array_equal's time where both are small


def snapshot(manager: KVCacheManager) -> Snapshot:
    """Copy the manager's state to the host. On a device this synchronises."""
    pool = manager.req_to_token_pool
    cache, cache_nodes = _cache_of(manager)
    return Snapshot(
        page_size=manager.page_size,
        context_len=manager.config.context_len,
        pools={name: _pool_of(manager, allocator) for name, allocator in manager.allocators.items()},
        bound={row: req.rid for row, req in pool.reqs.items()},
        free_rows=tuple(pool.free_rows),
        records=pool.records.table.copy(),
        slots=_to_host(pool.req_to_token).copy(),
        cache=cache,
        cache_nodes=cache_nodes,
        maps=_maps_of(manager),
        leases=tuple(_locked_by(lease) for lease in manager.leases.active),
        held=_held_by(manager),
    )


def _pool_of(manager: KVCacheManager, allocator: PagedAllocator) -> PoolState:
    waiting = [item.pages for item in manager.leases.quarantine if item.pool == allocator.pool]
    return pool_state(allocator, _joined(waiting))


def pool_state(allocator: PagedAllocator, quarantined: Int64 = _NONE) -> PoolState:
    """The free pages of an allocator, copied to the host."""
    free_list = allocator.free_list
    ids = _to_host(free_list.ids)
    staged = ids[: free_list.staged].copy() if free_list.staged else _NONE
    queued = _joined(allocator.queued) if allocator.queued else _NONE
    return PoolState(allocator.num_pages, ids[free_list.head :].copy(), staged, queued, quarantined)


def _joined(parts: list[torch.Tensor]) -> Int64:
    return _to_host(torch.cat(parts)) if parts else _NONE


def _maps_of(manager: KVCacheManager) -> dict[str, Int64]:
    maps = {}
    if manager.window_allocator is not None:
        maps["window"] = manager.window_map
    if manager.offload is not None:
        maps["device"] = manager.offload.map
    return {name: _pairs(_to_host(tensor)) for name, tensor in maps.items()}


def _pairs(target: NDArray[Any]) -> Int64:
    mapped = np.flatnonzero(target)
    return np.stack((mapped, target[mapped]))


def _held_by(manager: KVCacheManager) -> dict[str, dict[Any, tuple[int, ...]]]:
    offload, records = manager.offload, manager.req_to_token_pool.records
    if offload is None:
        return {}
    buffers, newest, host = _to_host(offload.buffers), _to_host(offload.newest), offload.host_pages.numpy()
    a_page = manager.page_size // offload.hisparse.ratio
    held: dict[str, dict[Any, tuple[int, ...]]] = {"buffer": {}, "host": {}, "newest": {}, "backup": {}}
    for row in sorted(manager.req_to_token_pool.reqs):
        if buffered := int(records.buffered[row]):
            held["buffer"][row] = tuple(buffers[row, :buffered].tolist())
            if records.newest[row]:
                held["newest"][row] = (int(newest[row]), int(buffers[row, 0]) * a_page)
        if hosted := int(records.hosted[row]):
            held["host"][row] = tuple(host[row, : -(-hosted // manager.page_size)].tolist())
    held["backup"] = {req.rid: tuple(backup.pages.tolist()) for req, backup in offload.backups.items()}
    return held


def _locked_by(lease: Lease) -> tuple[int, ...]:
    pages: list[int] = []
    for held, _ in lease.holds.values():
        node: Node | None = held
        while node is not None and len(node):
            pages += _to_host(node.pages).tolist()
            node = node.parent
    return tuple(sorted(pages))


def _cache_of(manager: KVCacheManager) -> tuple[Int64, tuple[tuple[int, ...], ...]]:
    tree = manager.tree_cache
    if tree is None:
        return _NO_CACHE, ()
    table = np.zeros((len(CACHE_FIELDS), manager.config.num_pages + 1), dtype=np.int64)
    nodes = list(tree.nodes())
    if not nodes:
        return table, ()
    pages, size = _joined([node.pages for _, node in nodes]), manager.page_size
    ends: dict[int, tuple[int, int]] = {}  # of each node: the tokens that it ends at, and its last page
    per_node, at, last = [], 0, pages.tolist()
    for extra_key, node in nodes:
        count = len(node)
        begin, parent = ends.get(id(node.parent), (0, 0))
        salted = digest_of_extra_key(extra_key)
        lives = (begin - at * size, salted, node.locks, node.last_use, node.hits, node.born, node.dead + at)
        per_node.append((count, at, parent, node.window_locks, *lives))
        at += count
        ends[id(node)] = begin + count * size, last[at - 1]
    columns = np.array(per_node, dtype=np.int64).T
    first, number = columns[1], np.arange(len(pages))
    _, _, _, window_locks, begin_of, salt, *history, dead = np.repeat(columns, columns[0], axis=1)
    parents = np.concatenate((pages[:1], pages[:-1]))
    parents[first] = columns[2]
    digests = digests_of([node.key for _, node in nodes]) + salt
    end = begin_of + (number + 1) * size
    table[:, pages] = (end, parents, digests, *history, number < dead, window_locks)
    return table, tuple(sorted(zip(pages[first].tolist(), columns[0].tolist(), strict=True)))


def digests_of(keys: Sequence[NDArray[Any]]) -> Int64:
    """A digest of each page of some keys, int64: equal for equal elements."""
    elements = np.concatenate(keys).astype(np.int64)
    odd = np.arange(1, 2 * elements.shape[1], 2, dtype=np.int64) * 0x2545F4914F6CDD1D
    mixed: Int64 = ((elements ^ (elements >> 29)) * odd).sum(axis=1)
    return mixed


def digest_of_extra_key(extra_key: Hashable) -> int:
    """What an extra key adds to the digests of its pages; nothing for None."""
    return 0 if extra_key is None else crc32(repr(extra_key).encode())


def _to_host(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()
