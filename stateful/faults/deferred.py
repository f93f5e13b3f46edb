"""Faults of what is freed later: free groups, leases and their quarantine, late results, staged free pages.

kvcore faults --only a_retract_under_a_lease
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import allocation, caching
from ...allocators.free_list import FreeList
from ...allocators.paged import PagedAllocator
from ...freeing import Freed, gather_pages
from ...leases import Lease, LeaseBook
from ...manager import KVCacheManager
from ...prefix_cache.radix import RadixCache
from ...prefix_cache.windowed import WindowedCache
from ..subjects.kvcore import KvcoreEngine, KvcoreSlots
from . import replaced, slots
from .paths import enter, require_room


def _do_nothing(*call: Any, **named: Any) -> None:
    """What is forgotten."""


def _no_lease(*call: Any) -> int:
    """As if no page were under a lease."""
    return 0


_push, _group_end = PagedAllocator._push, PagedAllocator.free_group_end


# Free groups.


@enter("sgl-project/sglang#34067", "KV-8")
class a_deferred_free_that_keeps_a_view(KvcoreEngine):
    """A published chunk's duplicates are to be freed at the end, and what is kept of them until then is a view of the
    row. The row is given the cache's pages first, so these are freed, and the duplicates are lost."""

    def checkpoint(self, *call: Any) -> Any:
        views: list[torch.Tensor] = []
        write_pages = self.manager.kernels.write_pages

        def a_view(*call: Any) -> torch.Tensor:
            views.append(gather_pages(*call))
            return views[-1]

        def through_the_view(table: Any, rows: Any, start: Any, end: Any, pages: torch.Tensor, size: int) -> None:
            write_pages(table, rows, start, end, pages, size)
            views[-1][: len(pages)] = pages

        with (
            replaced(caching, "gather_pages", a_view),
            replaced(self.manager.kernels, "write_pages", through_the_view),
        ):
            return super().checkpoint(*call)


@slots.enter("sgl-project/sglang#34067", "KV-8")
class queued_pages_overwritten(KvcoreSlots):
    """An open group keeps the pages of each call where the next call puts its own. When it closes, the last pages are
    freed several times and the first ones never."""

    def free_segment(self, *call: Any) -> None:
        def shares_memory(allocator: PagedAllocator, pages: torch.Tensor) -> None:
            free_list = allocator.free_list
            kept = free_list.ids[free_list.head - len(pages) : free_list.head]
            if allocator.queued is not None and not free_list.need_sort:
                kept.copy_(pages)
                pages = kept
            _push(allocator, pages)

        with replaced(PagedAllocator, "_push", shares_memory):
            super().free_segment(*call)


@slots.enter("sgl-project/sglang#36646", "KV-15")
class a_nested_group_that_begins_anew(KvcoreSlots):
    """A second group may begin while one is open, and its queue is empty. What was queued is neither free nor
    anybody's."""

    def free_group_begin(self) -> None:
        if self.first.queued is None:
            return super().free_group_begin()
        for allocator in filter(None, (self.first, self.second)):
            allocator.queued = []


@enter("none known", "KV-8")
class a_group_flushed_twice(KvcoreEngine):
    """Closing a group pushes its pages, and so does the cleanup behind it. Each enters the free list twice."""

    def free_group_end(self) -> None:
        def twice(allocator: PagedAllocator) -> None:
            queued = list(allocator.queued or [])
            _group_end(allocator)
            for pages in queued:
                allocator.free_list.push(pages)

        with replaced(PagedAllocator, "free_group_end", twice):
            super().free_group_end()


@enter("none known", "KV-11")
class freed_in_a_group_and_available_at_once(KvcoreEngine):
    """A retract pushes its pages whether a group is open or not. They are handed out while whoever opened the group
    still counts on them."""

    def retract(self, *call: Any) -> Any:
        def at_once(allocator: PagedAllocator, pages: torch.Tensor) -> None:
            with replaced(allocator, "queued", None):
                _push(allocator, pages)

        with replaced(PagedAllocator, "_push", at_once):
            return super().retract(*call)


@enter("none known", "KV-6")
class evictable_pages_promised_in_a_group(KvcoreEngine):
    """The demand is compared with what could be evicted, although a free group is open. What is evicted waits for the
    group to close, and the pages are not there."""

    def extend(self, *call: Any) -> Any:
        def whatever_is_open(manager: KVCacheManager, plan: Any) -> None:
            with replaced(manager.allocator, "queued", None):
                require_room(manager, plan)

        with replaced(allocation, "require_room", whatever_is_open):
            return super().extend(*call)


# Leases.


@enter("vllm-project/vllm#45357", "KV-16")
class a_release_under_a_lease(KvcoreEngine):
    """A finished request gives its pages back while a step that writes them is in flight. Whoever gets them next has
    them overwritten."""

    def release(self, *call: Any) -> Any:
        with replaced(Freed, "_leased", _no_lease):
            return super().release(*call)


@enter("sgl-project/sglang#30899", "KV-16")
class a_retract_under_a_lease(KvcoreEngine):
    """A retracted request gives its pages back while a copy to the host is reading them. The copy ends up with what the
    next request has written."""

    def retract(self, *call: Any) -> Any:
        with replaced(Freed, "_leased", _no_lease):
            return super().retract(*call)


@enter("none known", "KV-16")
class a_trim_under_a_lease(KvcoreEngine):
    """The rejected part of a draft is given back while the step that writes it is in flight. The next request gets what
    that step still writes to."""

    def release_overallocated(self, *call: Any) -> Any:
        with replaced(Freed, "_leased", _no_lease):
            return super().release_overallocated(*call)


@enter("none known", "KV-16")
class a_window_given_up_under_a_lease(KvcoreEngine):
    """A request's window moves on while a step in flight still looks back to what is behind it. Its window pages are
    handed out at once."""

    def window_evict(self, *call: Any) -> Any:
        with replaced(Freed, "_leased", _no_lease):
            return super().window_evict(*call)


@enter("none known", "KV-16")
class a_lease_as_long_as_what_is_committed(KvcoreEngine):
    """A lease covers the tokens that are settled, and the step that it stands for writes the draft behind them. A
    rejected draft's pages go to the next request while they are being written."""

    def lease(self, *call: Any) -> Any:
        records = self.manager.req_to_token_pool.records
        with replaced(records, "allocated", records.committed):
            return super().lease(*call)


@enter("none known", "KV-9")
class a_lease_that_locks_nothing(KvcoreEngine):
    """A lease keeps private pages from reuse and leaves cached ones unlocked. When the request finishes, its prefix is
    evicted under the step that reads it."""

    def lease(self, *call: Any) -> Any:
        with replaced(RadixCache, "lend", _do_nothing), replaced(WindowedCache, "lend", _do_nothing):
            return super().lease(*call)


@enter("none known", "KV-9")
class published_under_a_lease_and_not_locked(KvcoreEngine):
    """A finished request's pages go to the prefix cache while a step in flight uses them, and the lease does not go
    with them. They can be evicted at once."""

    def release(self, *call: Any) -> Any:
        with replaced(Lease, "relock", _do_nothing):
            return super().release(*call)


@enter("none known", "KV-16")
class a_younger_lease_forgotten_at_retire(KvcoreEngine):
    """A lease that ends takes everything out of quarantine, as if leases ended in order and each covered what none
    else does. A younger step still writes to some of it."""

    def retire(self, *call: Any) -> Any:
        with replaced(LeaseBook, "pages", _no_lease):
            return super().retire(*call)


@enter("none known", "KV-8")
class quarantined_pages_lost(KvcoreEngine):
    """A lease ends and its pages leave the quarantine, and nobody pushes them. The pool drains with every request that
    finishes under a step in flight."""

    def retire(self, *call: Any) -> Any:
        with replaced(PagedAllocator, "give_back", _do_nothing):
            return super().retire(*call)


@enter("none known", "KV-15", "KV-4")
class a_late_result_for_somebody_else(KvcoreEngine):
    """The result of a step is settled by row, without asking whether the row is still bound to the same request.
    Another request's length moves, or that of a row that nobody has."""

    def late_result(self, lease: int, accepted: Sequence[int]) -> list[bool]:
        leased = self.leases.get(lease)
        if leased is None:
            return super().late_result(lease, accepted)
        generations = self.manager.req_to_token_pool.records.generation[leased.rows]
        with replaced(leased, "generations", generations):
            return super().late_result(lease, accepted)


# Free pages that are sorted in later.


@slots.enter("none known", "KV-1")
class staged_pages_counted_and_not_sorted_in(KvcoreSlots):
    """What came back is staged, and when it is needed the list grows by as many entries as are staged. Nobody writes
    them, so what stood there is handed out once more."""

    def alloc_extend(self, *call: Any) -> Any:
        def grow(free_list: FreeList) -> None:
            free_list.head, free_list.staged = free_list.head - free_list.staged, 0

        with replaced(FreeList, "_sort_in", grow):
            return super().alloc_extend(*call)
