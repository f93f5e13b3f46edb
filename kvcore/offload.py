"""The paths between logical, device and host pool: pre-allocation, back-up, admission, the newest token.

    alloc_for_extend(manager, [req], [1000])                                # logical and device pages
    host_loc = swap_out(manager, req)                                       # where the copy on the host goes
    buffer_loc = device_buffer(manager, req)                                # admitted: decodes out of its buffer
    alloc_for_decode(manager, batch)                                        # a logical slot
    bind_newest(manager, batch)                                             # its place in the buffer
    host_loc = alloc_for_decode_prealloc_hisparse(manager, req, fill_len=1000)      # the KV arrives on the host

A request is *resident* after its extends (every logical page has a device page, by the map), *admitted* once it has a
device buffer (the map has none of its pages). Every call counts its demand on all pools before it changes any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from . import arguments
from .errors import BadArgument
from .hisparse import HiSparse
from .leases import Binding
from .records import Req

if TYPE_CHECKING:
    from .allocators.paged import PagedAllocator
    from .freeing import Freed
    from .manager import Batch, KVCacheManager

Int64 = NDArray[np.int64]


class Backup(NamedTuple):
    """What a retraction has kept: host pages, the tokens on them, and the binding under which they were used."""

    pages: torch.Tensor
    hosted: int
    binding: Binding


class Offload:
    """The device and the host pool, and what lies in them for which row.

    map: int64[num_pages + 1] on the device, logical page -> device page, 0 for none. buffers: int64[rows, pages] on the
    device, each row's buffer, its reserved page first. newest: int64[rows] on the device, the logical slot of the token
    in the reserved page's first slot. host_pages: int64[rows, pages] on the host, each row's host pages in order.
    backups: by retracted request.
    """

    def __init__(
        self,
        hisparse: HiSparse,
        device: PagedAllocator,
        host: PagedAllocator,
        num_pages: int,
        rows: int,
        row_pages: int,
    ) -> None:
        self.hisparse, self.device, self.host = hisparse, device, host
        where, size = device.free_list.ids.device, device.page_size
        self.map = torch.zeros(num_pages + 1, dtype=torch.int64, device=where)
        widest = hisparse.buffer_pages(row_pages * size, size)
        self.buffers = torch.zeros((rows, widest), dtype=torch.int64, device=where)
        self.newest = torch.zeros(rows, dtype=torch.int64, device=where)
        self.host_pages = torch.zeros((rows, row_pages), dtype=torch.int64)
        self.backups: dict[Req, Backup] = {}

    def slots(self, pages: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """The slots of the whole groups of tokens [start, end), which lie on `pages` from the page of `start` on."""
        ratio, size = self.hisparse.ratio, self.device.page_size
        first = start // size * size // ratio
        token = torch.arange(start // ratio, end // ratio, device=pages.device) - first
        a_page = size // ratio
        return pages[token // a_page] * a_page + token % a_page


def alloc_for_decode_prealloc_hisparse(
    manager: KVCacheManager, req: Req, *, fill_len: int, swa_tail_len: int | None = None
) -> torch.Tensor:
    """A row, logical pages and host slots for `fill_len` tokens whose KV arrives on the host; nothing on the device.

    A back-up that a retraction has left is taken over. Returns the host slots of [0, fill_len), int64 on the host, one
    a token (one a whole group where the ratio is 4). swa_tail_len: as in alloc_for_decode_prealloc.
    Raises BadArgument, StaleRow, RowOverflow, KVCacheOutOfMemory.
    """
    from .allocation import bind_rows, move_record, require_room, take_slots
    from .preallocation import plan_prealloc, set_tail

    (member,) = arguments.requests("req", [req], Req)
    offload = _offload(manager, "req")
    plan = plan_prealloc(manager, member, fill_len, None, swa_tail_len)
    kept = offload.backups.get(member)
    if kept is not None and fill_len < kept.hosted:
        raise BadArgument("KV-15", "fill_len", f"is {fill_len}; the request has a back-up of {kept.hosted} tokens")
    pages = -(-fill_len // manager.page_size)
    plan.host_pages = pages - (0 if kept is None else len(kept.pages))
    require_room(manager, plan)
    # Commit point.
    bind_rows(manager, plan, [member])
    take_slots(manager, plan)
    set_tail(manager, plan)
    row, host = int(plan.rows[0]), _take(offload.host, plan.host_pages)
    if kept is not None:
        host = torch.cat((kept.pages, host))
        del offload.backups[member]
        manager.leases.hand_on(kept.binding, (row, int(manager.req_to_token_pool.records.generation[row])))
    offload.host_pages[row, :pages] = host
    move_record(manager, plan)
    manager.req_to_token_pool.records._move_hosted(plan.rows, fill_len)
    return offload.slots(host, 0, fill_len)


def swap_out(manager: KVCacheManager, req: Req) -> torch.Tensor:
    """Host slots for what a resident request has committed and the host has not: int64 on the host, one a token (one
    a whole group where the ratio is 4). The copy itself is the caller's.

    Raises BadArgument (not resident), StaleRow, KVCacheOutOfMemory.
    """
    from .manager import bound_rows

    (member,) = arguments.requests("req", [req], Req)
    rows, records = bound_rows(manager, [member]), manager.req_to_token_pool.records
    offload, size = _offload(manager, "req"), manager.page_size
    hosted, committed = int(records.hosted[rows[0]]), int(records.committed[rows[0]])
    if not records.resident[rows[0]]:
        raise BadArgument("KV-15", "req", f"{member.rid!r} is not resident: nothing of it is on the device to copy")
    old, new = -(-hosted // size), -(-committed // size)
    offload.host.require(new - old)
    # Commit point.
    offload.host_pages[rows[0], old:new] = _take(offload.host, new - old)
    records._move_hosted(rows, committed)
    return offload.slots(offload.host_pages[rows[0], hosted // size : new], hosted, committed)


def device_buffer(manager: KVCacheManager, req: Req) -> torch.Tensor:
    """Admit a request whose KV is on the host: a device buffer, int64[pages * slots a page] of device slots.

    Its resident pages become the buffer as far as they go; what is left of them comes back, what is missing is taken.
    Raises BadArgument (admitted already, not on the host), StaleRow, KVCacheOutOfMemory.
    """
    from .freeing import Freed, gather_pages
    from .manager import bound_rows

    (member,) = arguments.requests("req", [req], Req)
    rows, records = bound_rows(manager, [member]), manager.req_to_token_pool.records
    offload, size, row = _offload(manager, "req"), manager.page_size, int(rows[0])
    if records.buffered[row]:
        raise BadArgument("KV-15", "req", f"{member.rid!r} has a device buffer already")
    if not records.hosted[row] == records.committed[row] == records.allocated[row]:
        raise BadArgument("KV-15", "req", f"{member.rid!r} is not on the host yet: swap_out first")
    pages = offload.hisparse.buffer_pages(int(records.allocated[row]), size)
    resident = -(-int(records.resident[row]) // size)
    offload.device.require(max(pages - resident, 0))
    # Commit point. The map is cleared only now that nothing can fail.
    logical = gather_pages(manager, rows, np.zeros(1, dtype=np.int64), records.resident[rows])
    own = manager.kernels.take_window_pages(offload.map, logical)
    freed = Freed(manager)
    freed.add_all("device", row, own[pages:])
    freed.give_back()
    buffer = torch.cat((own[:pages], _take(offload.device, max(pages - resident, 0))))
    offload.buffers[row, :pages] = buffer
    records._move_resident(rows, 0)
    records._move_buffer(rows, pages, 0)
    a_page = size // offload.hisparse.ratio
    return (buffer[:, None] * a_page + torch.arange(a_page, device=buffer.device)).reshape(-1)


def bind_newest(manager: KVCacheManager, batch: Batch) -> torch.Tensor:
    """Put the last committed token of each admitted request into the reserved slot of its buffer, after the one that
    was there has got its place on the host; let buffers that may grow, grow. Returns the device slots, int64[bs].

    Raises BadArgument (not admitted), StaleRow, KVCacheOutOfMemory.
    """
    from .manager import check_batch

    check_batch(manager, batch)
    offload, records, size, rows = (
        _offload(manager, "batch"),
        manager.req_to_token_pool.records,
        manager.page_size,
        batch.rows,
    )
    buffered, committed = records.buffered[rows], records.committed[rows]
    if not buffered.all():
        raise BadArgument("KV-15", "batch", "holds a request without a device buffer: device_buffer first")
    hosted = np.maximum(records.hosted[rows], committed - 1)
    old_host, new_host = -(-records.hosted[rows] // size), -(-hosted // size)
    grown = np.array([offload.hisparse.buffer_pages(length, size) for length in committed.tolist()])
    grown = np.maximum(grown, buffered)
    device_pages, host_pages = int((grown - buffered).sum()), int((new_host - old_host).sum())
    offload.device.require(device_pages)
    offload.host.require(host_pages)
    # Commit point.
    device, host, at, host_at = _take(offload.device, device_pages), _take(offload.host, host_pages), 0, 0
    spans = zip(rows.tolist(), buffered.tolist(), grown.tolist(), old_host.tolist(), new_host.tolist(), strict=True)
    for row, low, high, host_low, host_high in spans:
        if high > low:
            offload.buffers[row, low:high] = device[at : at + high - low]
            at += high - low
        if host_high > host_low:
            offload.host_pages[row, host_low:host_high] = host[host_at : host_at + host_high - host_low]
            host_at += host_high - host_low
    where = batch.device_rows.long()
    slots = manager.kernels.get_last_loc(manager.req_to_token_pool.req_to_token, rows, committed)
    # One entry a row: the token that was there before has none any more.
    offload.newest.index_copy_(0, where, slots)
    records._move_hosted(rows, hosted)
    records._move_buffer(rows, grown, committed)
    return offload.buffers.index_select(0, where)[:, 0] * (size // offload.hisparse.ratio)


def drop_backup(manager: KVCacheManager, req: Req) -> None:
    """Give back what a retraction has kept on the host for a request that will not resume. Raises BadArgument."""
    from .freeing import Freed

    (member,) = arguments.requests("req", [req], Req)
    offload = _offload(manager, "req")
    if member not in offload.backups:
        raise BadArgument("KV-15", "req", f"{member.rid!r} has no back-up")
    backup, freed = offload.backups.pop(member), Freed(manager)
    freed.add_of("host", backup.binding, backup.pages)
    freed.give_back()


def free_offloaded(manager: KVCacheManager, freed: Freed, req: Req, own: torch.Tensor, *, backup: bool) -> None:
    """What a request holds beside its logical pages `own`: device pages and host pages, each once. `backup`: the host
    pages stay, under the request, until it resumes or they are dropped."""
    offload, records, size, row = manager.offload, manager.req_to_token_pool.records, manager.page_size, req._row
    assert offload is not None
    resident, buffered = -(-int(records.resident[row]) // size), int(records.buffered[row])
    if resident:
        freed.add_all("device", row, manager.kernels.take_window_pages(offload.map, own[:resident]))
    if buffered:
        freed.add_all("device", row, offload.buffers[row, :buffered].clone())
    hosted = int(records.hosted[row])
    pages = offload.host_pages[row, : -(-hosted // size)].clone()
    if backup and hosted:
        offload.backups[req] = Backup(pages, hosted, (row, int(records.generation[row])))
    else:
        freed.add_all("host", row, pages)


def check_resident(manager: KVCacheManager, reqs: list[Req], rows: Int64) -> None:
    """An extend computes on the device: what it continues has to lie there, and nothing of it on the host."""
    records = manager.req_to_token_pool.records
    assert manager.offload is not None
    if any(req in manager.offload.backups for req in reqs):
        raise BadArgument("KV-15", "reqs", "holds a request with a back-up: pre-allocate it, or drop_backup")
    if (records.resident[rows] != records.allocated[rows]).any():
        raise BadArgument("KV-15", "reqs", "holds a request that is not resident: it decodes, or was pre-allocated")


def check_admitted(manager: KVCacheManager, rows: Int64) -> None:
    """A decode works out of the device buffer."""
    if not manager.req_to_token_pool.records.buffered[rows].all():
        raise BadArgument("KV-15", "batch", "holds a request without a device buffer: device_buffer first")


def _offload(manager: KVCacheManager, name: str) -> Offload:
    if manager.offload is None:
        raise BadArgument("KV-15", name, "the configuration has no HiSparse pools")
    return manager.offload


def _take(allocator: PagedAllocator, count: int) -> torch.Tensor:
    head = allocator.take(count)
    return allocator.free_list.ids[head : head + count].clone()
