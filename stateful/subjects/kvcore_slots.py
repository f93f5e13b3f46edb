"""kvcore's own slot allocators as subjects: one pool, a window pool beside it, or HiSparse, as the configuration says.

subject = KvcoreSlots(config)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...allocators.mapped import HiSparseAllocator, WindowedAllocator
from ...allocators.paged import PagedAllocator
from ...snapshots import Snapshot, pool_state
from ..configuration import Configuration
from ..operations import SLOT_OPERATIONS
from .observed import slot_state
from .protocol import Capabilities

Int64 = NDArray[np.int64]
Guard = Callable[[], AbstractContextManager[Any]]


class KvcoreSlots:
    """A PagedAllocator, or the composite of two.

    What it frees it passes as a part of one tensor that it goes on using, as an engine does with its rows.
    """

    capabilities = Capabilities("slots", pools=("paged", "window", "hisparse"))

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.guard: Guard = nullcontext  # what is around every call that must not wait for the device
        sizes: dict[str, Any] = {"need_sort": config.need_sort}
        common = config.page_size, config.device, config.is_checked
        self.allocator: Any
        if config.window is not None:
            self.allocator = WindowedAllocator(config.num_pages, config.window.num_pages, *common, **sizes)
        elif config.hisparse is not None:
            self.allocator = HiSparseAllocator(config.num_pages, config.hisparse.device_pages, *common, **sizes)
        else:
            self.allocator = PagedAllocator(config.num_pages, *common, **sizes)
        self.second = None if isinstance(self.allocator, PagedAllocator) else self.allocator.second
        self.first: PagedAllocator = self.allocator if self.second is None else self.allocator.first
        if config.is_checked:  # its watch on the end of each page does not know that a draft ends earlier again
            drawn = tuple(c.name for c in SLOT_OPERATIONS if c.name != "alloc_draft")
            self.capabilities = replace(type(self).capabilities, operations=drawn)
        self.row = self._tensor([0] * (2 * config.num_pages + 2) * config.page_size)

    def alloc(self, need_size: int) -> Int64:
        with self.guard():
            slots = self.allocator.alloc(need_size)
        return self._taken(slots)

    def alloc_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        last = self._tensor(last_loc)
        with self.guard():
            slots = self.allocator.alloc_extend(prefix_lens, seq_lens, last)
        return self._taken(slots)

    def alloc_decode(self, seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        last = self._tensor(last_loc)
        with self.guard():
            slots = self.allocator.alloc_decode(seq_lens, last)
        return self._taken(slots)

    def alloc_draft(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        out, size, at = self.alloc_extend(prefix_lens, seq_lens, last_loc), self.config.page_size, 0
        for prefix, seq in zip(prefix_lens, seq_lens, strict=True):
            first_new = -(-prefix // size) * size
            if seq > first_new:
                self.free_segment(out[at + first_new - prefix : at + seq - prefix].tolist(), first_new)
            at += seq - prefix
        return out

    def alloc_extend_tail(self, seq_len: int, tail: int) -> Int64:
        last = self._tensor([-1])
        with self.guard():
            slots = self.allocator.alloc_extend_tail(0, seq_len, last, tail)
        return self._taken(slots)

    def alloc_logical_only(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        last = self._tensor(last_loc)
        with self.guard():
            slots = self.allocator.alloc_logical_only(prefix_lens, seq_lens, last)
        return self._taken(slots)

    def alloc_device_buffer(self, slots: Sequence[int], need_size: int) -> Int64:
        return self._taken(self.allocator.alloc_device_buffer(self._tensor(slots), need_size))

    def free(self, slots: Sequence[int]) -> None:
        self.allocator.free(self._in_a_row(slots))

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        segment = self._in_a_row(slots)
        with self.guard() if self.second is None else nullcontext():  # pages are looked up in the map by their value
            self.allocator.free_segment(segment, start_pos)

    def free_window(self, slots: Sequence[int], start_pos: int) -> None:
        self.allocator.free_window(self._in_a_row(slots))

    def free_device_buffer(self, slots: Sequence[int]) -> None:
        self.allocator.free_device_buffer(self._in_a_row(slots))

    def clear(self) -> None:
        self.allocator.clear()

    def free_group_begin(self) -> None:
        self.allocator.free_group_begin()

    def free_group_end(self) -> None:
        with self.guard():
            self.allocator.free_group_end()

    def available(self) -> list[int]:
        return [allocator.available_size() for allocator in (self.first, self.second) if allocator is not None]

    def snapshot(self) -> Snapshot:
        """Lists in their order, and the map by slots."""
        allocators = [allocator for allocator in (self.first, self.second) if allocator is not None]
        pools = {allocator.pool: pool_state(allocator) for allocator in allocators}
        maps = {} if self.second is None else {self.second.pool: self._map()}
        return slot_state(self.config, pools, maps)

    def _map(self) -> Int64:
        target = self.allocator.map.cpu().numpy()
        pages, offset = np.flatnonzero(target), np.arange(self.config.page_size)
        pairs = (ids[:, None] * self.config.page_size + offset for ids in (pages, target[pages]))
        return np.stack([slots.reshape(-1) for slots in pairs])

    def _taken(self, slots: torch.Tensor) -> Int64:
        taken: Int64 = slots.cpu().numpy()
        return taken

    def _tensor(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.first.free_list.ids.device)

    def _in_a_row(self, slots: Sequence[int]) -> torch.Tensor:
        if len(slots) > len(self.row):
            return self._tensor(slots)
        self.row[: len(slots)] = self._tensor(slots)
        return self.row[: len(slots)]
