"""The paths that hand out slots: extend, decode, speculative decode; and `commit`, which settles what was verified.

    out_cache_loc, batch = alloc_for_extend(manager, reqs, [len(r.token_ids) for r in reqs])
    out_cache_loc = alloc_for_decode(manager, batch)

Every path has one shape: validate the whole batch, count its exact demand on the host, compare with what is free
and reclaimable, and refuse there or never. Behind the commit point nothing can fail: bind rows and lock what they
hit, evict what is short, take pages, write the rows, move the record. So allocation and bookkeeping cannot part, and a
refused call leaves no trace (KV-7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from . import arguments, sizing
from .errors import BadArgument, KVCacheOutOfMemory, RowOverflow, StaleRow
from .kernels.alloc_decode import starts_a_page
from .kernels.alloc_extend import new_pages
from .kernels.dispatch import kernels_for
from .kernels.window import WindowPages
from .manager import Batch, KVCacheManager, check_batch, rows_of
from .offload import check_admitted, check_resident
from .prefix_cache.keys import Key
from .prefix_cache.radix import Hit
from .prefix_cache.windowed import WindowedCache
from .records import Req
from .window_eviction import NOTHING, GivenUp, behind_window, give_up

Int64 = NDArray[np.int64]


@dataclass
class Plan:
    """What a validated call will do to each row: lengthen [start, end), then record `committed` and `end`. Tokens.

    pages, window_pages, device_pages, host_pages: the exact demand on each pool. keys, hits: of each new row, where
    there is a prefix cache: what it is looked up by, and what that finds. given_up: what the batch's windows give back
    first. window_from: where a tail-only pre-allocation begins to have a window.
    """

    rows: Int64
    start: Int64
    end: Int64
    committed: Int64
    pages: int
    new_rows: int = 0
    keys: tuple[Key, ...] = ()
    hits: tuple[Hit, ...] = ()
    window_pages: int = 0
    given_up: GivenUp = NOTHING
    window_from: int | None = None
    device_pages: int = 0
    host_pages: int = 0


def alloc_for_extend(
    manager: KVCacheManager, reqs: Sequence[Req], seq_lens: Sequence[int]
) -> tuple[torch.Tensor, Batch]:
    """Lengthen requests to `seq_lens` tokens: a first prefill, a later chunk, a resume; committed = allocated = seq.

    A request without a row gets one (seq_len >= 1) and begins behind what the prefix cache holds of its tokens
    [0, seq_len - 1); one with a row continues at its allocated length, mid-page too, and seq_len may equal it.
    Returns the new slots (int64[sum], request-major, the caller's) and the Batch.
    Raises BadArgument, StaleRow, RowOverflow (seq_len > context_len), KVCacheOutOfMemory.
    """
    members = arguments.requests("reqs", reqs, Req)
    plan = _plan_extend(manager, members, arguments.lengths("seq_lens", seq_lens, len(members)))
    require_room(manager, plan)
    # Commit point.
    unbound = [req for req in members if not req._row]
    if unbound:
        bind_rows(manager, plan, unbound)
    give_up(manager, plan.given_up)
    out_cache_loc = take_slots(manager, plan)
    if manager.offload is not None:
        manager.req_to_token_pool.records._move_resident(plan.rows, plan.end)
    move_record(manager, plan)
    return out_cache_loc, Batch.of_rows(manager, members, plan.rows)


def alloc_for_decode(manager: KVCacheManager, batch: Batch) -> torch.Tensor:
    """One more token for each request: its slot, int64[bs]; committed and allocated move by one.

    Needs committed == allocated. Raises BadArgument, StaleRow, RowOverflow, KVCacheOutOfMemory.
    """
    plan = _plan_decode(manager, batch)
    require_room(manager, plan)
    # Commit point.
    give_up(manager, plan.given_up)
    head, window = manager.take_pages(plan.pages), manager.take_window_pages(plan.window_pages)
    table, ids = manager.req_to_token_pool.req_to_token, manager.allocator.free_list.ids
    page_size, mirror = manager.page_size, batch.mirror
    out_cache_loc = manager.kernels.decode_rows(table, plan.rows, plan.start, ids, head, page_size, mirror, window)
    move_record(manager, plan)
    return out_cache_loc


def alloc_for_spec_decode(manager: KVCacheManager, batch: Batch, reserve: int) -> None:
    """Room for `reserve` draft tokens past committed, in whole pages; allocated = max(allocated, ceil_page(committed +
    reserve)), committed stays.

    reserve: 1..R tokens (sizing.reserve_per_step). Any allocated length is legal. The slots are found in the rows.
    Raises BadArgument, StaleRow, KVCacheOutOfMemory.
    """
    plan = _plan_spec_decode(manager, batch, reserve)
    require_room(manager, plan)
    # Commit point. Also without a new page: after release_overallocated the reserve may continue a partial one.
    give_up(manager, plan.given_up)
    if (plan.end > plan.start).any():
        take_slots(manager, plan)
    move_record(manager, plan)


def commit(manager: KVCacheManager, batch: Batch, accepted: Sequence[int]) -> None:
    """Settle verified tokens: committed += accepted (the bonus token included). Tokens, one entry a request, 0 or more.

    Raises BadArgument (more than is allocated), StaleRow, RowOverflow (past context_len).
    """
    check_batch(manager, batch)
    accepted_lens = arguments.lengths("accepted", accepted, len(batch))
    records = manager.req_to_token_pool.records
    allocated = records.allocated[batch.rows]
    committed = records.committed[batch.rows] + accepted_lens
    if (committed > allocated).any():
        raise BadArgument(
            "KV-15", "accepted", f"{accepted_lens.tolist()} reach past the allocated {allocated.tolist()}"
        )
    if (committed > manager.config.context_len).any():
        raise RowOverflow(
            "KV-4", "accepted", f"{accepted_lens.tolist()} reach past context_len {manager.config.context_len}"
        )
    records._move(batch.rows, committed, allocated)


def assign_req_to_token_pool_func(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    batch_size: int,
) -> None:
    """The row write alone: req_to_token[row, start:end] = each request's part of out_cache_loc, request-major.

    req_pool_indices, start_offset, end_offset: integer[batch_size]; out_cache_loc: int64[sum(end - start)].
    Everything is on the device of req_to_token. Reads the lengths back where that is not the CPU; paths do not.
    """
    batch_size = arguments.integer("batch_size", batch_size, 0)
    rows, start, end = (
        arguments.slots(name, tensor, batch_size).cpu().numpy()
        for name, tensor in (
            ("req_pool_indices", req_pool_indices), ("start_offset", start_offset), ("end_offset", end_offset),
        )
    )  # fmt: skip
    height, width = req_to_token.shape
    if ((rows < 0) | (rows >= height)).any():
        raise StaleRow("KV-15", "req_pool_indices", f"{rows.tolist()} lie outside rows 0..{height - 1}")
    if ((start < 0) | (end < start)).any():
        raise BadArgument("KV-15", "end_offset", f"{end.tolist()} lie below start_offset {start.tolist()}")
    if (end > width).any():
        raise RowOverflow("KV-4", "end_offset", f"{end.tolist()} reach past the row's {width} entries")
    slots = arguments.slots("out_cache_loc", out_cache_loc, None)
    if len(slots) != int((end - start).sum()):
        raise BadArgument("KV-15", "out_cache_loc", f"has {len(slots)} slots for {int((end - start).sum())} positions")
    kernels_for(str(req_to_token.device)).assign_rows(req_to_token, rows, start, end, slots)


def _plan_extend(manager: KVCacheManager, members: list[Req], seq_lens: Int64) -> Plan:
    records = manager.req_to_token_pool.records
    rows = rows_of(manager, members)
    start = records.allocated[rows]
    unbound = rows == 0
    _check_hole(manager, "reqs", rows)
    if manager.offload is not None:
        check_resident(manager, members, rows)
    if (records.committed[rows] != start).any():
        raise BadArgument("KV-15", "reqs", "holds a request with an over-allocated tail: release_overallocated first")
    if (seq_lens < start + unbound).any():
        raise BadArgument(
            "KV-15", "seq_lens", f"{seq_lens.tolist()} lie below what is allocated ({start.tolist()}) or are 0"
        )
    tokens = [len(req.token_ids) for req in members]
    if (seq_lens > tokens).any():
        raise BadArgument("KV-15", "seq_lens", f"{seq_lens.tolist()} are more than the requests' tokens, {tokens}")
    _check_context(manager, "seq_lens", seq_lens)
    new = np.flatnonzero(unbound)
    keys, hits = look_up(manager, [members[i] for i in new], seq_lens[new] - 1)
    if hits:
        start[new] = [hit.pages * manager.page_size for hit in hits]
    pages = int(new_pages(start, seq_lens, manager.page_size).sum())
    plan = Plan(rows, start, seq_lens, seq_lens, pages, len(new), keys, hits)
    if manager.offload is not None:
        plan.device_pages = pages
    return with_window(manager, plan, evicts=manager.tree_cache is None)


def look_up(manager: KVCacheManager, reqs: Sequence[Req], lens: Int64) -> tuple[tuple[Key, ...], tuple[Hit, ...]]:
    """The keys of the first `lens` tokens of requests without a row, and what each finds. No effect."""
    cache = manager.tree_cache
    if cache is None:
        return (), ()
    keys = tuple(cache.key(req.token_ids, length) for req, length in zip(reqs, lens.tolist(), strict=True))
    return keys, tuple(cache.peek(key, req.extra_key) for key, req in zip(keys, reqs, strict=True))


def _plan_decode(manager: KVCacheManager, batch: Batch) -> Plan:
    check_batch(manager, batch)
    _check_hole(manager, "batch", batch.rows)
    if manager.offload is not None:
        check_admitted(manager, batch.rows)
    records = manager.req_to_token_pool.records
    start = records.allocated[batch.rows]
    if (records.committed[batch.rows] != start).any():
        raise BadArgument("KV-15", "batch", "holds a request with an over-allocated tail: release_overallocated first")
    end = start + 1
    _check_context(manager, "batch", end)
    pages = int(np.count_nonzero(starts_a_page(end, manager.page_size)))
    return with_window(manager, Plan(batch.rows, start, end, end, pages))


def _plan_spec_decode(manager: KVCacheManager, batch: Batch, reserve: int) -> Plan:
    check_batch(manager, batch)
    _check_hole(manager, "batch", batch.rows)
    if manager.offload is not None:
        check_admitted(manager, batch.rows)
    speculation, page_size = manager.config.speculation, manager.page_size
    if speculation is None:
        raise BadArgument("KV-15", "reserve", "the configuration has no speculation")
    reserve = arguments.integer("reserve", reserve, 1, sizing.reserve_per_step(speculation, page_size))
    records = manager.req_to_token_pool.records
    start, committed = records.allocated[batch.rows], records.committed[batch.rows]
    end = np.maximum(start, (committed + (reserve + page_size - 1)) & -page_size)
    if (end > manager.req_to_token_pool.row_width).any():
        raise RowOverflow(
            "KV-4", "reserve", f"{reserve} reaches past the row's {manager.req_to_token_pool.row_width} entries"
        )
    return with_window(manager, Plan(batch.rows, start, end, committed, int(new_pages(start, end, page_size).sum())))


def with_window(manager: KVCacheManager, plan: Plan, *, evicts: bool = True) -> Plan:
    """The plan with what it asks of the window pool, and what its bound rows give up first where it `evicts`."""
    if manager.config.window is not None:
        if manager.window_allocator is not None:
            plan.window_pages = plan.pages
        if evicts:
            plan.given_up = behind_window(manager, plan.rows[plan.rows > 0])
    return plan


def _check_hole(manager: KVCacheManager, name: str, rows: Int64) -> None:
    if manager.req_to_token_pool.records.hole_hi[rows].any():
        raise BadArgument("KV-15", name, "holds a request with an open hole: fill_hole first")


def _check_context(manager: KVCacheManager, name: str, lens: Int64) -> None:
    if (lens > manager.config.context_len).any():
        raise RowOverflow(
            "KV-4", name, f"reaches {int(lens.max())} tokens; context_len is {manager.config.context_len}"
        )


def require_room(manager: KVCacheManager, plan: Plan) -> None:
    """Refuse here or never (KV-6). Rows are the first pool."""
    free_rows = len(manager.req_to_token_pool.free_rows)
    if plan.new_rows > free_rows:
        raise KVCacheOutOfMemory("rows", plan.new_rows, free_rows)
    # Nothing is reclaimable while a free group is open: what is evicted waits for its end.
    cache = manager.tree_cache if manager.allocator.queued is None else None
    given_up = plan.given_up.pages if manager.allocator.queued is None else 0
    reclaimable = 0 if cache is None else cache.evictable_pages - cache.pinned(plan.hits)
    if manager.window_allocator is None:  # what a pure window gives up are pages of the one pool
        manager.allocator.require(plan.pages, reclaimable + given_up)
    else:
        manager.allocator.require(plan.pages, reclaimable)
        if isinstance(cache, WindowedCache):
            given_up += cache.evictable_window_pages - cache.pinned_window(plan.hits)
        manager.window_allocator.require(plan.window_pages, given_up)
    if manager.offload is not None:
        manager.offload.device.require(plan.device_pages)
        manager.offload.host.require(plan.host_pages)


def bind_rows(manager: KVCacheManager, plan: Plan, unbound: list[Req]) -> None:
    """Rows for the requests that have none, filled with what the prefix cache holds of them."""
    rows = manager.req_to_token_pool.bind(unbound)
    plan.rows[plan.rows == 0] = rows
    if manager.config.window is not None and manager.config.window.floor:
        manager.req_to_token_pool.records._set_floor(rows, manager.config.window.floor)
    cache = manager.tree_cache
    if cache is None:
        return
    shared = np.array([hit.pages * manager.page_size for hit in plan.hits], dtype=np.int64)
    if not shared.any():
        return
    # Looked up once more: a claim splits nodes that the next member's hit may lie in.
    claims = zip(rows.tolist(), plan.keys, unbound, strict=True)
    parts = [part for row, key, req in claims for part in cache.claim(row, key, req.extra_key)]
    table = manager.req_to_token_pool.req_to_token
    manager.kernels.write_pages(table, rows, np.zeros_like(shared), shared, torch.cat(parts), manager.page_size)
    manager.req_to_token_pool.records._protect(rows, shared)


def take_slots(manager: KVCacheManager, plan: Plan) -> torch.Tensor:
    """Pages for [start, end) of each row, written into the rows, and into the map. Returns the new slots,
    request-major."""
    head, window = manager.take_pages(plan.pages), manager.take_window_pages(plan.window_pages)
    table, ids, size = manager.req_to_token_pool.req_to_token, manager.allocator.free_list.ids, manager.page_size
    extend_rows = manager.kernels.extend_rows
    if plan.device_pages:
        resident = _device_pages(manager, plan)
        if window is None:
            window = resident  # the same launch maps them
        else:
            new = ids[head : head + plan.pages]
            resident.map.index_copy_(0, new, resident.ids[resident.head : resident.head + plan.pages])
    if plan.window_from is None or window is None:
        return extend_rows(table, plan.rows, plan.start, plan.end, ids, head, size, window)
    # What lies before the tail has no window.
    tail = np.array([plan.window_from])
    before = extend_rows(table, plan.rows, plan.start, tail, ids, head, size)
    head += int(new_pages(plan.start, tail, size).sum())
    return torch.cat((before, extend_rows(table, plan.rows, tail, plan.end, ids, head, size, window)))


def _device_pages(manager: KVCacheManager, plan: Plan) -> WindowPages:
    """Device pages for the logical pages of the plan, for a kernel that maps them."""
    assert manager.offload is not None
    device = manager.offload.device
    return WindowPages(device.free_list.ids, device.take(plan.device_pages), manager.offload.map)


def move_record(manager: KVCacheManager, plan: Plan) -> None:
    manager.req_to_token_pool.records._move(plan.rows, plan.committed, plan.end)
