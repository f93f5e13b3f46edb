"""A state as plain data, read from the raw tensors and never from counters.

before = snapshot(manager)
...
assert snapshot(manager) == before        # what "a refused call changes nothing" means, to the bit
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .manager import KVCacheManager
from .records import FIELDS

Int64 = NDArray[np.int64]
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class PoolState:
    """The free pages of one pool, in order: listed, staged (to be sorted in), queued (in an open free group)."""

    num_pages: int
    free: Int64
    staged: Int64 = field(default_factory=lambda: _NONE)
    queued: Int64 = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything that the contract speaks about, copied to the host.

    pools: by name. bound: row -> request id. free_rows: in order. records: int64[len(FIELDS), rows], a column a row.
    slots: int32[rows, row_width], the whole table, stale entries too. cache: entries (key digest, pages, locks, last
    use, window-dead). maps: name -> (from, to) pairs. leases: leased pages.
    """

    page_size: int
    context_len: int
    pools: dict[str, PoolState]
    bound: dict[int, Any]
    free_rows: tuple[int, ...]
    records: Int64
    slots: NDArray[np.int32]
    cache: tuple[Any, ...] = ()
    maps: dict[str, Int64] = field(default_factory=dict)
    leases: tuple[int, ...] = ()

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
            for part in ("free", "staged", "queued"):
                if not _same(getattr(mine, part), getattr(theirs, part)):
                    found.append(f"pool {name}: {part} pages")
        found += [
            name for name in ("bound", "free_rows", "cache", "leases") if getattr(self, name) != getattr(other, name)
        ]
        found += [name for name in ("records", "slots") if not _same(getattr(self, name), getattr(other, name))]
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
    free_list = manager.allocator.free_list
    free = _to_host(free_list.ids)[free_list.head :].copy()
    return Snapshot(
        page_size=manager.page_size,
        context_len=manager.config.context_len,
        pools={manager.allocator.pool: PoolState(manager.config.num_pages, free)},
        bound={row: req.rid for row, req in pool.reqs.items()},
        free_rows=tuple(pool.free_rows),
        records=pool.records.table.copy(),
        slots=_to_host(pool.req_to_token).copy(),
    )


def _to_host(tensor: torch.Tensor) -> NDArray[Any]:
    return (tensor if tensor.device.type == "cpu" else tensor.cpu()).numpy()
