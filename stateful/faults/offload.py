"""Faults of HiSparse: three pools that are short apart, device pages by a map and in buffers, host pages and back-ups.

kvcore faults --only a_map_cleared_before_a_failing_buffer
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ... import allocation, preallocation, release
from ...allocators.paged import PagedAllocator
from ...errors import KVCacheOutOfMemory
from ...freeing import Freed, gather_pages
from ...manager import KVCacheManager
from ...offload import free_offloaded
from ..configuration import Configuration
from ..subjects.kvcore import KvcoreEngine
from . import replaced
from .paths import enter, forget_record, require_room
from .preallocation import recorded_too_early

_add, _add_all, _require = Freed.add, Freed.add_all, PagedAllocator.require
_plan_prealloc, _free_offloaded = preallocation.plan_prealloc, free_offloaded


def _but_for(pool: str) -> Any:
    """Whatever is given back of other pools; what is of this one is forgotten."""

    def add_all(freed: Freed, name: str, row: int, pages: torch.Tensor) -> None:
        if name != pool:
            _add_all(freed, name, row, pages)

    return add_all


# One demand on logical, device and host pool.


@enter("seen in SGLang 0.5.23", "KV-7")
class a_map_cleared_before_a_failing_buffer(KvcoreEngine):
    """An admission takes the request's pages out of the map, and only then asks the device pool for the rest of the
    buffer. It is refused, and no release finds the device pages any more."""

    def device_buffer(self, request: int) -> Any:
        manager, req = self.manager, self._req(request)

        def clear_then_ask(allocator: PagedAllocator, *demand: int) -> None:
            try:
                _require(allocator, *demand)
            except KVCacheOutOfMemory:
                rows = np.array([req._row])
                resident = manager.req_to_token_pool.records.resident[rows]
                there = manager.offload
                assert there is not None
                manager.kernels.take_window_pages(there.map, gather_pages(manager, rows, rows * 0, resident))
                raise

        with replaced(PagedAllocator, "require", clear_then_ask):
            return super().device_buffer(request)


@enter("seen in SGLang 0.5.23", "KV-7")
class logical_pages_kept_when_the_host_is_short(KvcoreEngine):
    """A pre-allocation takes its logical pages before it asks for room on the host. It is refused, and the logical
    pages are nobody's."""

    def prealloc_hisparse(self, *call: Any) -> Any:
        def take_first(manager: KVCacheManager, plan: Any) -> None:
            try:
                require_room(manager, plan)
            except KVCacheOutOfMemory as error:
                if error.pool == "host":
                    manager.take_pages(plan.pages)
                raise

        with replaced(allocation, "require_room", take_first):
            return super().prealloc_hisparse(*call)


@enter("sgl-project/sglang#24039", "KV-6")
class a_demand_in_pages_of_the_compressed_pool(KvcoreEngine):
    """The wrapper says that its pages are as small as those of the compressed pool, and admission counts a page of
    those for each request. Batches that do not fit are accepted and fail in the allocation."""

    def extend(self, *call: Any) -> Any:
        def by_small_pages(manager: KVCacheManager, plan: Any) -> None:
            ratio = 1 if manager.offload is None else manager.offload.hisparse.ratio
            require_room(manager, replace(plan, pages=plan.pages // ratio, device_pages=plan.device_pages // ratio))

        with replaced(allocation, "require_room", by_small_pages):
            return super().extend(*call)


@enter("sgl-project/sglang#30408", "KV-5", "KV-6")
class a_tail_that_the_wrapper_hides(KvcoreEngine):
    """The wrapper of the pools does not pass on that a prompt's tail alone needs a window, so that the whole prompt is
    given window pages. Prompts longer than the window pool are never admitted."""

    def prealloc_hisparse(self, *call: Any) -> Any:
        def for_the_whole_prompt(manager: KVCacheManager, *demand: Any) -> Any:
            plan = _plan_prealloc(manager, *demand)
            if plan.window_from is not None:
                plan.window_pages = plan.pages
            return plan

        with replaced(preallocation, "plan_prealloc", for_the_whole_prompt):
            return super().prealloc_hisparse(*call)


# Records and tables.


@enter("sgl-project/sglang#29432", "KV-4")
class record_forgotten_in_prealloc_hisparse(KvcoreEngine):
    """A pre-allocation takes logical and host pages and leaves the record of the new row as it was. One path more, one
    more place where the bookkeeping is forgotten."""

    def prealloc_hisparse(self, *call: Any) -> Any:
        with replaced(allocation, "move_record", forget_record):
            return super().prealloc_hisparse(*call)


@enter("sgl-project/sglang#29432", "KV-7")
class record_moved_before_the_check_in_prealloc_hisparse(KvcoreEngine):
    """The lengths of a pre-allocation are recorded first and the room on the host looked at afterwards. After a refusal
    a row that nobody holds has a length."""

    def prealloc_hisparse(self, *call: Any) -> Any:
        with replaced(allocation, "require_room", recorded_too_early):
            return super().prealloc_hisparse(*call)


@enter("none known", "KV-10")
class the_newest_token_under_its_former_slot(KvcoreEngine):
    """The reserved page is given to the newest token, and the entry of the token before it is not cleared. Attention
    takes the new token's KV for that of the old one."""

    def bind_newest(self, requests: Any, kept: bool) -> Any:
        there, records = self.manager.offload, self.manager.req_to_token_pool.records
        if there is None:
            return super().bind_newest(requests, kept)
        before, has_one = there.newest.clone(), torch.from_numpy(records.newest > 0)
        slots = super().bind_newest(requests, kept)
        there.newest[has_one] = before[has_one]
        return slots


@enter("none known", "KV-1", "KV-10")
class a_buffer_that_grows_over_its_reserved_page(KvcoreEngine):
    """A buffer grows with its request, and the new page is written over the reserved one. Two places of the buffer are
    one page, and the page with the newest token is lost."""

    def bind_newest(self, requests: Any, kept: bool) -> Any:
        there, records = self.manager.offload, self.manager.req_to_token_pool.records
        before = records.buffered.copy()
        slots = super().bind_newest(requests, kept)
        for row in np.flatnonzero(records.buffered > before).tolist():
            assert there is not None
            there.buffers[row, 0] = there.buffers[row, before[row]]
        return slots


@enter("none known", "KV-15")
class a_step_where_the_tokens_are_not(KvcoreEngine):
    """A request that decodes out of its buffer is extended from the middle of a page, and one without a buffer decodes.
    The map has nothing for the page of that chunk, and its tokens are computed into the padding page."""

    def extend(self, *call: Any) -> Any:
        with replaced(allocation, "check_resident", lambda *call: None):
            return super().extend(*call)

    def decode(self, *call: Any) -> Any:
        with replaced(allocation, "check_admitted", lambda *call: None):
            return super().decode(*call)


# Giving back.


@enter("none known", "KV-2", "KV-8")
class a_draft_given_back_with_its_device_pages(KvcoreEngine):
    """The slots of a rejected draft are given back as ordinary ones, those that the map has for them too. The map has
    none for a request that decodes out of its buffer, and the padding page comes back to the device pool."""

    def release_overallocated(self, request: int) -> Any:
        def as_ordinary_ones(freed: Freed, row: int, first: int, pages: torch.Tensor) -> None:
            _add(freed, row, first, pages)
            there = freed.manager.offload
            if there is not None:
                _add_all(freed, "device", row, freed.manager.kernels.take_window_pages(there.map, pages))

        with replaced(Freed, "add", as_ordinary_ones):
            return super().release_overallocated(request)


@enter("sgl-project/sglang#40729", "KV-1", "KV-8")
class a_retraction_that_forgets_the_device(KvcoreEngine):
    """A retraction lets go of the buffer before it backs up what lay there, and nobody gives the device pages back. The
    device pool drains by what each victim had."""

    def retract(self, *call: Any) -> Any:
        with replaced(Freed, "add_all", _but_for("device")):
            return super().retract(*call)


@enter("none known", "KV-1", "KV-8")
class host_pages_forgotten_at_release(KvcoreEngine):
    """A finished request gives its logical and device pages back and keeps those on the host. The larger pool drains
    for hours before a pre-allocation is refused."""

    def release(self, *call: Any) -> Any:
        with replaced(Freed, "add_all", _but_for("host")):
            return super().release(*call)


@enter("none known", "KV-1", "KV-8")
class a_backup_that_is_free_already(KvcoreEngine):
    """A retraction keeps the host pages as a back-up and gives them back with the rest. The next request gets them, and
    they come back once more when the back-up is dropped."""

    def retract(self, requests: Any, backup: bool) -> Any:
        def kept_and_given_back(manager: KVCacheManager, freed: Freed, req: Any, own: Any, *, backup: bool) -> None:
            _free_offloaded(manager, freed, req, own, backup=backup)
            there = manager.offload
            if there is not None and req in there.backups:
                freed.add_all("host", req._row, there.backups[req].pages)

        with replaced(release, "free_offloaded", kept_and_given_back):
            return super().retract(requests, backup)


@enter("none known", "KV-1")
class a_backup_that_outlives_its_resumption(KvcoreEngine):
    """A resumed request takes its back-up over, and the book still has it as one to be dropped. Whoever drops it frees
    host pages that the request works on."""

    def __init__(self, config: Configuration) -> None:
        super().__init__(config)
        if self.manager.offload is not None:
            self.manager.offload.backups = _Kept()


class _Kept(dict[Any, Any]):
    """A book that forgets nothing when something is taken out."""

    def __delitem__(self, key: Any) -> None:
        pass


@enter("none known", "KV-1", "KV-5")
class resident_pages_lost_beyond_the_buffer(KvcoreEngine):
    """A prompt longer than the buffer is admitted, and of its resident pages only those that become the buffer are
    looked after. The rest leave the map and come back to no list."""

    def device_buffer(self, request: int) -> Any:
        with replaced(Freed, "add_all", _but_for("device")):
            return super().device_buffer(request)


@enter("sgl-project/sglang#30899", "KV-16", "KV-8")
class host_pages_free_while_a_copy_writes_them(KvcoreEngine):
    """A request is aborted while the copy of its KV to the host is under way, and its host pages are free at once. The
    copy ends in the pages of whoever has got them."""

    def release(self, *call: Any) -> Any:
        def at_once(freed: Freed, pool: str, row: int, pages: torch.Tensor) -> None:
            freed._free[pool].append(pages) if pool == "host" else _add_all(freed, pool, row, pages)

        with replaced(Freed, "add_all", at_once):
            return super().release(*call)


@enter("sgl-project/sglang#30899", "KV-16")
class a_backup_dropped_while_a_copy_writes_it(KvcoreEngine):
    """A back-up is dropped while the copy to its host pages is under way, and they are free at once. Leases are looked
    for on rows, and the request has none any more."""

    def drop_backup(self, request: int) -> None:
        with replaced(Freed, "add_of", _at_once):
            super().drop_backup(request)


def _at_once(freed: Freed, pool: str, binding: Any, pages: torch.Tensor) -> None:
    """No lease is asked."""
    freed._free[pool].append(pages)
