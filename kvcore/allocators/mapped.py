"""Two pools in step, with a map from the pages of the first to those of the second: slot allocators for composites.

    allocator = WindowedAllocator(num_pages=256, window_pages=64, page_size=16)
    slots = allocator.alloc_extend([0], [40], torch.tensor([-1]))      # pages of both pools
    allocator.free_window(slots[:32])                                  # what lies behind the window

The paths of a manager do this with rows and records; here a caller keeps the slots. A call counts its demand on both
pools before it changes either, and looks pages up in the map when it is called, so that a free group is not surprised
by what happens to the map before it closes. The sets of slots that are looked up synchronise on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import arguments
from ..errors import BadArgument
from .paged import PagedAllocator


class MappedAllocator:
    """What both composites share. `first` hands out the slots that callers see, `map` (int64[num_pages + 1]) has the
    page of `second` that belongs to each of its pages, 0 for none."""

    names = ("full", "window")

    def __init__(
        self,
        num_pages: int,
        second_pages: int,
        page_size: int,
        device: str = "cpu",
        checked: bool = True,
        *,
        need_sort: bool = False,
    ) -> None:
        self.page_size = page_size
        self.first, self.second = (
            PagedAllocator(pages, page_size, device, checked, need_sort=need_sort, pool=name)
            for name, pages in zip(self.names, (num_pages, second_pages), strict=True)
        )
        self.map = torch.zeros(num_pages + 1, dtype=torch.int64, device=self.first.free_list.ids.device)

    def available_sizes(self) -> tuple[int, int]:
        """Free tokens of the first and of the second pool."""
        return self.first.available_size(), self.second.available_size()

    def alloc(self, need_size: int) -> torch.Tensor:
        """`need_size` tokens in whole pages of both pools. A page multiple only (KV-15)."""
        pages = self.first.pages_for(need_size)
        self._require(pages, pages)
        return self._mapped(self.first.alloc(need_size), pages, pages)

    def alloc_extend(self, prefix_lens: Any, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
        """As PagedAllocator.alloc_extend, with a mapped page of the second pool for each new page."""
        growth = self.first.plan_extend(prefix_lens, seq_lens, last_loc)
        self._require(growth.pages, growth.pages)
        return self._mapped(self.first.extend(growth), growth.pages, growth.pages)

    def free(self, slots: torch.Tensor) -> None:
        """Give back whole pages of both pools by a set of slots; pages without one of the second are fine."""
        self._give_back(self.first.pages_of_set(slots))

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        """Give back a row segment in both pools, as PagedAllocator.free_segment."""
        self._give_back(self.first.pages_of_segment(slots, start_pos))

    def free_group_begin(self) -> None:
        """From here on frees are queued, in both pools."""
        self.first.free_group_begin()
        self.second.free_group_begin()

    def free_group_end(self) -> None:
        """What was freed in the group is available, in both pools."""
        self.first.free_group_end()
        self.second.free_group_end()

    def clear(self) -> None:
        """Take everything back."""
        self.first.clear()
        self.second.clear()
        self.map.zero_()

    def _require(self, first: int, second: int) -> None:
        """KVCacheOutOfMemory naming the first pool that is short; before anything changes."""
        self.first.require(first)
        self.second.require(second)

    def _mapped(self, slots: torch.Tensor, taken: int, mapped: int) -> torch.Tensor:
        """Map the last `mapped` of the pages that the first pool has just handed out, `taken` in all."""
        if mapped:
            ids, head = self.first.free_list.ids, self.first.free_list.head
            self.map[ids[head - mapped : head]] = self._take(mapped)
        return slots

    def _take(self, count: int) -> torch.Tensor:
        """Pages of the second pool, a copy."""
        head = self.second.take(count)
        return self.second.free_list.ids[head : head + count].clone()

    def _unmap(self, pages: torch.Tensor) -> torch.Tensor:
        """What the pages were mapped to."""
        mapped = self.map[pages]
        self.map[pages] = 0
        return mapped[mapped > 0]

    def _give_back(self, pages: torch.Tensor) -> None:
        self.first.give_back(pages)
        self.second.give_back(self._unmap(pages))


class WindowedAllocator(MappedAllocator):
    """A full pool and a window pool: a page of each for what is in the window."""

    def alloc_decode(self, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
        """As PagedAllocator.alloc_decode, in both pools."""
        growth = self.first.plan_decode(seq_lens, last_loc)
        self._require(growth.pages, growth.pages)
        return self._mapped(self.first.decode(growth), growth.pages, growth.pages)

    def alloc_extend_tail(self, prefix_len: int, seq_len: int, last_loc: torch.Tensor, tail: int) -> torch.Tensor:
        """One request's positions [prefix_len, seq_len), with window pages for the last `tail` tokens only.

        The tail begins on a page edge, at or behind prefix_len (KV-15).
        """
        growth = self.first.plan_extend([prefix_len], [seq_len], last_loc)
        tail = arguments.integer("tail", tail, 0)
        if tail > seq_len - prefix_len or (tail and (seq_len - tail) % self.page_size):
            raise BadArgument(
                "KV-15", "tail", f"is {tail}; it has to begin on a page edge of [{prefix_len}, {seq_len})"
            )
        mapped = -(-tail // self.page_size)
        self._require(growth.pages, mapped)
        return self._mapped(self.first.extend(growth), growth.pages, mapped)

    def free_window(self, slots: torch.Tensor) -> None:
        """Give back the window pages of these whole pages, whose slots stay handed out. Twice is once."""
        self.second.give_back(self._unmap(self.first.pages_of_set(slots)))


class HiSparseAllocator(MappedAllocator):
    """A logical pool and a smaller device pool: an extend is resident, page by page, until its request gets a device
    buffer; what comes then is logical only."""

    names = ("logical", "device")

    def alloc_decode(self, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
        """As PagedAllocator.alloc_decode, logical only."""
        return self.first.alloc_decode(seq_lens, last_loc)

    def alloc_logical_only(self, prefix_lens: Any, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
        """As PagedAllocator.alloc_extend, logical only: the KV comes to the host first."""
        return self.first.alloc_extend(prefix_lens, seq_lens, last_loc)

    def alloc_device_buffer(self, slots: torch.Tensor, need_size: int) -> torch.Tensor:
        """The device slots int64[need_size] of a request's buffer: its resident pages, unmapped now, and then others.

        slots: all that the request holds. need_size: a page multiple (KV-15). Pages that do not fit go back.
        """
        count = self.second.pages_for(need_size)
        pages = self.first.pages_of_set(slots)
        resident = self.map[pages]
        resident = resident[resident > 0]
        more = max(count - len(resident), 0)
        self.second.require(more)
        self.map[pages] = 0
        if len(resident) > count:
            self.second.give_back(resident[count:])
        return self.second.slots_of(torch.cat((resident[:count], self._take(more))))

    def free_device_buffer(self, slots: torch.Tensor) -> None:
        """Give back a buffer, by all its device slots."""
        self.second.free(slots)
