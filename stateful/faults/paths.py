"""Faults of the paths: bookkeeping that parts from allocation, shortages that leave a trace, rows that go wrong.

kvcore faults --only a_shortage_that_leaks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import allocation, release, sizing
from ...allocators.paged import PagedAllocator
from ...errors import KVCacheOutOfMemory
from ...kernels import alloc_decode, assign_req_to_token_pool, decode_rows, extend_rows
from ..configuration import Configuration
from ..subjects.kvcore import KvcoreEngine, KvcoreSlots
from . import fault, replaced


def engine_fault(cls: type[KvcoreEngine]) -> Callable[[Configuration], Any]:
    """A factory of the broken engine; on the slot level the sound allocator stands in."""

    def factory(config: Configuration) -> Any:
        return KvcoreSlots(config) if config.level == "slots" else cls(config)

    factory.__name__, factory.__doc__, factory.__module__ = cls.__name__, cls.__doc__, cls.__module__
    return factory


def enter(source: str, *clauses: str) -> Any:
    def enter_class(cls: type[KvcoreEngine]) -> Any:
        return fault(source, *clauses)(engine_fault(cls))

    return enter_class


def forget_record(manager: Any, plan: Any) -> None:
    """The record stays where it was."""


def _too_early(manager: Any, plan: Any) -> None:
    """The record moves, then the room is looked at."""
    bound = plan.rows > 0
    manager.req_to_token_pool.records._move(plan.rows[bound], plan.committed[bound], plan.end[bound])
    require_room(manager, plan)


require_room = allocation.require_room
_alloc_decode = alloc_decode.alloc_decode_reference
_assign = assign_req_to_token_pool.assign_req_to_token_pool_reference


@enter("sgl-project/sglang#29432", "KV-4")
class record_forgotten_in_extend(KvcoreEngine):
    """An extend takes its pages and writes its rows, and leaves the record as it was. Bookkeeping that lives apart from
    the allocation is forgotten on one path sooner or later."""

    def extend(self, *call: Any) -> Any:
        with replaced(allocation, "move_record", forget_record):
            return super().extend(*call)


@enter("sgl-project/sglang#29432", "KV-4")
class record_forgotten_in_decode(KvcoreEngine):
    """A decode step hands out its slots and leaves the record as it was. The next step overwrites the entry and the
    slot is lost."""

    def decode(self, *call: Any) -> Any:
        with replaced(allocation, "move_record", forget_record):
            return super().decode(*call)


@enter("sgl-project/sglang#13826", "KV-4")
class record_forgotten_in_spec_decode(KvcoreEngine):
    """The draft's pages are taken and never recorded, so no release ever finds them. The pool drains by a few pages a
    step until decode runs out of memory."""

    def spec_reserve(self, *call: Any) -> Any:
        with replaced(allocation, "move_record", forget_record):
            return super().spec_reserve(*call)


@enter("sgl-project/sglang#29432", "KV-7")
class record_moved_before_the_check_in_extend(KvcoreEngine):
    """A chunk's length is recorded first and the room looked at afterwards. After a refusal the record speaks of slots
    that do not exist."""

    def extend(self, *call: Any) -> Any:
        with replaced(allocation, "require_room", _too_early):
            return super().extend(*call)


@enter("sgl-project/sglang#29432", "KV-7")
class record_moved_before_the_check_in_decode(KvcoreEngine):
    """The decode step counts its token before it knows that there is a slot. A refused step leaves the request one
    token too long."""

    def decode(self, *call: Any) -> Any:
        with replaced(allocation, "require_room", _too_early):
            return super().decode(*call)


@enter("sgl-project/sglang#29432", "KV-7")
class record_moved_before_the_check_in_spec_decode(KvcoreEngine):
    """The reserve is recorded before the room is looked at. A refused reserve leaves an over-allocated tail that no
    page stands behind."""

    def spec_reserve(self, *call: Any) -> Any:
        with replaced(allocation, "require_room", _too_early):
            return super().spec_reserve(*call)


@enter("sgl-project/sglang#12224", "KV-8", "KV-1")
class a_page_freed_twice(KvcoreEngine):
    """Two places release the last page of a finished request. It enters the free list twice and two requests get it."""

    def release(self, *call: Any) -> Any:
        give_back = PagedAllocator.give_back

        def twice(allocator: PagedAllocator, pages: torch.Tensor) -> None:
            room = len(pages) < allocator.free_list.head
            give_back(allocator, torch.cat([pages, pages[-1:]]) if room else pages)

        with replaced(PagedAllocator, "give_back", twice):
            return super().release(*call)


@enter("sgl-project/sglang#22862", "KV-8")
class over_allocated_tail_freed_from_mid_page(KvcoreEngine):
    """The tail is freed from the committed length instead of from the next page edge. The page that holds the last
    committed tokens goes with it, while they are live."""

    def release_overallocated(self, *call: Any) -> Any:
        with replaced(release, "first_free_position", lambda committed, page_size: committed & -page_size):
            return super().release_overallocated(*call)


@enter("none known", "KV-3", "KV-6")
class off_by_one_at_the_page_edge(KvcoreEngine):
    """Decode takes a page for the last offset of a page as well as for the first. The token lands at the start of the
    new page, where the row has no place for it."""

    def decode(self, *call: Any) -> Any:
        def also_the_last(seq_lens: Any, page_size: int) -> Any:
            return (seq_lens & (page_size - 1)) <= 1 % page_size

        with (
            replaced(alloc_decode, "starts_a_page", also_the_last),
            replaced(allocation, "starts_a_page", also_the_last),
        ):
            return super().decode(*call)


@enter("sgl-project/sglang#35338", "KV-7")
class a_shortage_that_leaks(KvcoreEngine):
    """A decode step takes what pages there are before it finds that they are too few. It is refused, and the pages it
    took are gone."""

    def decode(self, *call: Any) -> Any:
        def take_first(manager: Any, plan: Any) -> None:
            try:
                require_room(manager, plan)
            except KVCacheOutOfMemory:
                manager.allocator.free_list.advance(manager.allocator.free_list.count)
                raise

        with replaced(allocation, "require_room", take_first):
            return super().decode(*call)


@enter("RBLN-SW/vllm-rbln#662", "KV-3")
class a_stale_row_entry(KvcoreEngine):
    """The row write of an extend stops one short where the extend ends mid-page. The entry keeps the slot of whoever
    had the row before."""

    def extend(self, *call: Any) -> Any:
        size = self.manager.page_size

        def one_short(rows: Any, table: Any, start: Any, end: Any, out: Any, positions: Any) -> None:
            stale = table[rows, np.maximum(end, 1) - 1].copy()
            _assign(rows, table, start, end, out)
            skipped = (end > start) & (end % size != 0)
            table[rows[skipped], end[skipped] - 1] = stale[skipped]

        with replaced(extend_rows, "assign_req_to_token_pool_reference", one_short):
            return super().extend(*call)


@enter("none known", "KV-1")
class one_page_for_two_requests(KvcoreEngine):
    """Two requests of a batch cross a page edge in the same step and both read the first entry of the free list. The
    rank within the batch is forgotten."""

    def decode(self, *call: Any) -> Any:
        def without_rank(seq_lens: Any, last_loc: Any, free_pages: Any, page_size: int) -> Any:
            return _alloc_decode(seq_lens, last_loc, np.repeat(free_pages[:1], len(seq_lens)), page_size)

        with replaced(decode_rows, "alloc_decode_reference", without_rank):
            return super().decode(*call)


@enter("sgl-project/sglang#33579", "KV-4")
class row_too_narrow_at_page_size_1(KvcoreEngine):
    """The head-room of a row is a few slots and the draft, and only above page size 1 the doubled reserve. Near the
    context limit a reserve at page size 1 does not fit its row."""

    def __init__(self, config: Configuration) -> None:
        headroom = sizing.row_headroom

        def narrow(speculation: Any, page_size: int) -> int:
            return 4 + speculation.draft_tokens if speculation and page_size == 1 else headroom(speculation, page_size)

        with replaced(sizing, "row_headroom", narrow):
            super().__init__(config)


@enter("sgl-project/sglang#26972", "KV-4")
class row_too_narrow_for_a_tree(KvcoreEngine):
    """Each branch of a draft tree has page-aligned pages of its own, and a row is widened by the tokens of the draft.
    Near the context limit the reserve does not fit its row."""

    def __init__(self, config: Configuration) -> None:
        headroom = sizing.row_headroom

        def narrow(speculation: Any, page_size: int) -> int:
            tree = speculation and speculation.topk > 1 and page_size > 1
            return 4 + speculation.draft_tokens if tree else headroom(speculation, page_size)

        with replaced(sizing, "row_headroom", narrow):
            super().__init__(config)


@enter("sgl-project/sglang#31616", "KV-4")
class reserve_not_rounded_to_the_page(KvcoreEngine):
    """The reserve is recorded as committed plus a constant while whole pages are handed out. Up to a page less one of
    slots is owned and not recorded."""

    def spec_reserve(self, requests: Any, reserve: int, kept: bool) -> Any:
        def unrounded(manager: Any, plan: Any) -> None:
            end = np.maximum(plan.start, plan.committed + reserve)
            manager.req_to_token_pool.records._move(plan.rows, plan.committed, end)

        with replaced(allocation, "move_record", unrounded):
            return super().spec_reserve(requests, reserve, kept)


@enter("none known", "KV-3")
class reserve_without_a_new_page_not_written(KvcoreEngine):
    """A reserve that ends on the request's own partial page needs no page, and the row write is skipped with the
    allocation. The recorded length then covers entries that nobody wrote."""

    def spec_reserve(self, *call: Any) -> Any:
        take_slots = allocation.take_slots

        def only_with_pages(manager: Any, plan: Any) -> Any:
            return take_slots(manager, plan) if plan.pages else None

        with replaced(allocation, "take_slots", only_with_pages):
            return super().spec_reserve(*call)


@enter("sgl-project/sglang#10871", "KV-4")
class a_row_kept_after_release(KvcoreEngine):
    """A finished request gives its pages back and keeps its row. The row pool drains by one a request."""

    def release(self, *call: Any) -> Any:
        with replaced(self.manager.req_to_token_pool, "unbind", lambda rows: None):
            return super().release(*call)
