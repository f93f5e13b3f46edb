"""Faults of the slot allocator: what comes back, and at what granularity.

kvcore faults --only a_set_freed_slot_by_slot
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...allocators.paged import PagedAllocator
from ..configuration import Configuration
from ..subjects.kvcore import KvcoreEngine, KvcoreSlots
from . import fault, replaced


def enter(source: str, *clauses: str) -> Any:
    def enter_class(cls: type[KvcoreSlots]) -> Any:
        def factory(config: Configuration) -> Any:
            return cls(config) if config.level == "slots" else KvcoreEngine(config)

        factory.__name__, factory.__doc__, factory.__module__ = cls.__name__, cls.__doc__, cls.__module__
        return fault(source, *clauses)(factory)

    return enter_class


@enter("sgl-project/sglang#25590", "KV-8")
class a_set_freed_in_pieces(KvcoreSlots):
    """A set of slots comes back in two calls and each counts its pages by itself. A page that straddles them enters the
    free list twice."""

    def free(self, slots: Sequence[int]) -> None:
        if self.second is not None:
            return super().free(slots)
        self.allocator._check_set(self._tensor(slots))
        pages = [torch.unique(self._tensor(part) // self.config.page_size) for part in (slots[:1], slots[1:])]
        for part in pages:
            if len(part) <= self.allocator.free_list.head - self.allocator.free_list.staged:
                self.allocator._push(part)


@enter("none known", "KV-8", "KV-5")
class a_partial_last_page_not_freed(KvcoreSlots):
    """A segment's pages are counted by rounding its end down. The last page of every request that ends mid-page stays
    behind."""

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        whole = len(slots) - len(slots) % self.config.page_size
        super().free_segment(slots[:whole], start_pos)


@enter("seen in SGLang 0.5.23", "KV-15")
class sizes_off_the_page_accepted(KvcoreSlots):
    """A size that is no page multiple is rounded down without a word. The caller gets fewer slots than it asked for."""

    def alloc(self, need_size: int) -> Any:
        return super().alloc(need_size - need_size % self.config.page_size)


@enter("sgl-project/sglang#34399", "KV-7")
class pages_taken_before_the_check(KvcoreSlots):
    """The free list's head moves before the demand is compared with what is free. A refused extend leaves it there."""

    def alloc_extend(self, *call: Any) -> Any:
        require, free = self.first.require, self.first.free_list

        def take_first(pages: int) -> None:
            if pages > free.count:
                free.advance(free.count)
            require(pages)

        with replaced(self.first, "require", take_first):
            return super().alloc_extend(*call)


@enter("none known", "KV-8", "KV-1")
class a_neighbour_freed_in_its_place(KvcoreSlots):
    """A free gives back a page of somebody else in the place of its own last one, and the core's own book of what is
    handed out follows the free list. List, book and counts agree, so that only who knows the owners can tell."""

    def free(self, *call: Any) -> None:
        push = PagedAllocator._push

        def a_neighbour(allocator: PagedAllocator, pages: torch.Tensor) -> None:
            free = allocator.free_list
            in_no_place = torch.ones(free.num_pages + 1, dtype=torch.bool)
            for known in (pages, free.live, free.ids[: free.staged], *(allocator.queued or [])):
                in_no_place[known] = False
            others = in_no_place[1:].nonzero().flatten()[:1] + 1
            push(allocator, torch.cat([pages[: len(pages) - len(others)], others]) if len(pages) else pages)

        with replaced(PagedAllocator, "_push", a_neighbour):
            super().free(*call)
