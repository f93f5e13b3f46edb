"""Room for a request whose KV arrives from elsewhere: the decode side of a disaggregated prefill.

    kv_loc = alloc_for_decode_prealloc(manager, req, fill_len=1000)                           # where the KV is sent
    kv_loc = alloc_for_decode_prealloc(manager, req, fill_len=1000, total_prefix_len=512)     # [hit, 512) follows later
    slots = fill_hole(manager, req)                                                           # by load-back

Between the two the row has a hole: positions [hit, total_prefix_len) that count as allocated and have no slots. Until
it is filled the request can be filled, released or retracted, and nothing else: its prefix cannot be read.
"""

from __future__ import annotations

import numpy as np
import torch

from . import arguments
from .allocation import Plan, bind_rows, look_up, move_record, require_room, take_slots, with_window
from .errors import BadArgument, RowOverflow, StaleRow
from .kernels.alloc_extend import new_pages
from .manager import KVCacheManager, bound_rows, rows_of
from .records import Req


def alloc_for_decode_prealloc(
    manager: KVCacheManager,
    req: Req,
    *,
    fill_len: int,
    total_prefix_len: int | None = None,
    swa_tail_len: int | None = None,
) -> torch.Tensor:
    """A row for `fill_len` tokens of a request that has none; committed = allocated = fill_len.

    What the prefix cache holds of tokens [0, fill_len - 1) is hit. total_prefix_len: tokens that come from a prefix
    stored elsewhere, at least the hit and page aligned where it exceeds it; None for the hit. swa_tail_len: only the
    last so many tokens have window pages, from a page edge on; None for all, as where the tail begins at or before
    total_prefix_len. Returns the slots of [total_prefix_len, fill_len), int64, the caller's.
    Raises BadArgument, StaleRow, RowOverflow (fill_len > context_len), KVCacheOutOfMemory.
    """
    (member,) = arguments.requests("req", [req], Req)
    if manager.offload is not None:
        raise BadArgument("KV-15", "req", "has its KV sent to the host: alloc_for_decode_prealloc_hisparse")
    plan = plan_prealloc(manager, member, fill_len, total_prefix_len, swa_tail_len)
    require_room(manager, plan)
    # Commit point.
    bind_rows(manager, plan, [member])
    kv_loc = take_slots(manager, plan)
    records = manager.req_to_token_pool.records
    set_tail(manager, plan)
    if plan.start[0] > records.protected[plan.rows[0]]:
        records._open_hole(plan.rows, records.protected[plan.rows], plan.start)
    move_record(manager, plan)
    return kv_loc


def fill_hole(manager: KVCacheManager, req: Req) -> torch.Tensor:
    """Slots for the hole of a pre-allocated request, int64[total_prefix_len - hit], written into its row.

    Raises BadArgument (no hole is open), StaleRow, KVCacheOutOfMemory.
    """
    (member,) = arguments.requests("req", [req], Req)
    rows, records = bound_rows(manager, [member]), manager.req_to_token_pool.records
    low, high = records.hole_lo[rows], records.hole_hi[rows]
    if not high[0]:
        raise BadArgument("KV-15", "req", "has no open hole")
    plan = Plan(rows, low, high, records.committed[rows], int(new_pages(low, high, manager.page_size).sum()))
    plan = with_window(manager, plan, evicts=False)
    if high[0] <= records.cursor[rows[0]]:
        plan.window_pages, plan.window_from = 0, int(high[0])
    require_room(manager, plan)
    # Commit point. The lengths stay: they counted the hole.
    slots = take_slots(manager, plan)
    records._open_hole(rows, 0, 0)
    return slots


def set_tail(manager: KVCacheManager, plan: Plan) -> None:
    """What lies before a tail-only start counts as given back."""
    records = manager.req_to_token_pool.records
    if plan.window_from is not None:
        records._set_floor(plan.rows, 0)
        records._move_cursor(plan.rows, plan.window_from)


def plan_prealloc(
    manager: KVCacheManager, req: Req, fill_len: int, total_prefix_len: int | None, swa_tail_len: int | None
) -> Plan:
    """A validated pre-allocation and its demand."""
    rows = rows_of(manager, [req])
    if rows[0]:
        raise StaleRow("KV-15", "req", f"{req.rid!r} holds row {rows[0]} already: it continues by an extend")
    fill = arguments.integer("fill_len", fill_len, 1)
    if fill > len(req.token_ids):
        raise BadArgument("KV-15", "fill_len", f"is {fill}; the request has {len(req.token_ids)} tokens")
    if fill > manager.config.context_len:
        raise RowOverflow("KV-4", "fill_len", f"reaches {fill} tokens; context_len is {manager.config.context_len}")
    end = np.array([fill])
    keys, hits = look_up(manager, [req], end - 1)
    hit = hits[0].pages * manager.page_size if hits else 0
    total = hit if total_prefix_len is None else arguments.integer("total_prefix_len", total_prefix_len, hit, fill)
    if total % manager.page_size:
        raise BadArgument(
            "KV-15", "total_prefix_len", f"is {total}; past the hit of {hit} it has to be a multiple of the page size"
        )
    start = np.array([total])
    plan = Plan(rows, start, end, end, int(new_pages(start, end, manager.page_size).sum()), 1, keys, hits)
    plan = with_window(manager, plan, evicts=False)
    if swa_tail_len is not None:
        tail = _tail_start(manager, swa_tail_len, fill)
        if tail > total:
            plan.window_from = tail
            plan.window_pages = int(new_pages(np.array([tail]), end, manager.page_size).sum())
    return plan


def _tail_start(manager: KVCacheManager, swa_tail_len: int, fill_len: int) -> int:
    """The position from which a pre-allocation has a window."""
    if manager.window_allocator is None:
        raise BadArgument("KV-15", "swa_tail_len", "the configuration has no window pool")
    tail = fill_len - arguments.integer("swa_tail_len", swa_tail_len, 0, fill_len)
    if tail % manager.page_size:
        raise BadArgument(
            "KV-15", "swa_tail_len", f"is {swa_tail_len}; {tail}, where it begins, is no multiple of the page size"
        )
    return tail
