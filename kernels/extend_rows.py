"""The extend path in one step: last slot, page rank, slots, row write.

    out_cache_loc = extend_rows(req_to_token, rows, start, end, free_ids, head, page_size)

Serves every path that lengthens rows by more than a token: extend, the speculative reserve, pre-allocation. The host
knows all lengths, so it counts where each request begins and sends that in one copy; one launch does the rest. Where
there is a window pool, that launch also maps each page to a window page.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .alloc_extend import (
    Int64,
    alloc_extend_reference,
    new_pages,
    owner_of,
    request_offsets,
    token_positions,
    widest_step_of,
)
from .assign_req_to_token_pool import assign_req_to_token_pool_reference
from .get_last_loc import get_last_loc_reference, row_stride_of
from .jit import jit, number_of_warps
from .upload import upload
from .window import WindowPages, map_pages_reference

if TYPE_CHECKING:
    import triton.language as tl


def extend_rows_reference(
    req_to_token: NDArray[np.int32],
    rows: Int64,
    start: Int64,
    end: Int64,
    free_pages: Int64,
    page_size: int,
    window: WindowPages | None = None,
) -> Int64:
    """Slots for positions [start, end) of each row, written into the row and returned, int64[sum(end - start)].

    rows, start, end: int64[bs]; start is the row's allocated length, in tokens.
    free_pages: the free list from its head.
    window: the k-th page taken is mapped to the k-th window page from its head.
    """
    positions = token_positions(start, end)
    last_loc = get_last_loc_reference(req_to_token, rows, start)
    out = alloc_extend_reference(start, end, last_loc, free_pages, page_size, positions)
    assign_req_to_token_pool_reference(rows, req_to_token, start, end, out, positions)
    if window:
        map_pages_reference(window, free_pages[: new_pages(start, end, page_size).sum()])
    return out


@jit
def extend_rows_kernel(
    req_to_token, row_stride, plan, free_ids, out, total, batch, widest_step, window_ids, window_map, window_ahead,
    PAGE_SIZE: tl.constexpr, HAS_WINDOW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`plan`: int32[4, bs], of each request: its row, start, first token of `out`, and free-list entry for page 0.
    `window_ahead`: how far the window list's head is ahead of the free list's."""
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = token < total
    owner = owner_of(token, plan + 2 * batch, batch, widest_step)
    row = tl.load(plan + owner, mask=valid, other=0).to(tl.int64)
    start = tl.load(plan + batch + owner, mask=valid, other=0).to(tl.int64)
    position = start + token - tl.load(plan + 2 * batch + owner, mask=valid, other=0)
    # No program writes position start - 1, so it does not matter which of them runs first.
    on_old_page = position < (start + (PAGE_SIZE - 1)) // PAGE_SIZE * PAGE_SIZE
    row_begin = req_to_token + row * row_stride
    last = tl.load(row_begin + start - 1, mask=valid & on_old_page, other=0).to(tl.int64)
    entry = position // PAGE_SIZE + tl.load(plan + 3 * batch + owner, mask=valid, other=0)
    page = tl.load(free_ids + entry, mask=valid & (on_old_page == 0), other=0)
    slot = tl.where(on_old_page, last + 1 - start + position, page * PAGE_SIZE + position % PAGE_SIZE)
    tl.store(out + token, slot, mask=valid)
    tl.store(row_begin + position, slot.to(tl.int32), mask=valid)
    if HAS_WINDOW:
        begins_page = valid & (position % PAGE_SIZE == 0)
        window_page = tl.load(window_ids + entry + window_ahead, mask=begins_page, other=0)
        tl.store(window_map + page, window_page, mask=begins_page)


def extend_rows(
    req_to_token: torch.Tensor,
    rows: Int64,
    start: Int64,
    end: Int64,
    free_ids: torch.Tensor,
    head: int,
    page_size: int,
    tile: int = 512,
    window: WindowPages | None = None,
) -> torch.Tensor:
    """The slots on the device, int64[sum(end - start)]. rows, start, end are the host's; free_ids[head:] is free."""
    first_token, first_entry = request_offsets(start, end, page_size)
    batch, total = len(rows), int(first_token[-1] + end[-1] - start[-1])
    out = torch.empty(total, dtype=torch.int64, device=req_to_token.device)
    window_ids, window_head, window_map = window or (free_ids, head, free_ids)
    if total:
        extend_rows_kernel.launch(
            (-(-total // tile),),
            req_to_token,
            row_stride_of(req_to_token),
            upload((rows, start, first_token, first_entry + head), torch.int32, out.device),
            free_ids,
            out,
            total,
            batch,
            widest_step_of(batch),
            window_ids,
            window_map,
            window_head - head,
            PAGE_SIZE=page_size,
            HAS_WINDOW=window is not None,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )
    return out
