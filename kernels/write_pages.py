"""Whole pages into rows: pages that somebody else owns, the prefix cache's, become part of a row.

    write_pages(req_to_token, req_pool_indices, start, end, pages, page_size)

`pages` holds the requests' pages one behind the other. All of them are written whole, so token t of the call stands on
its page t // page_size, whosever it is.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .alloc_extend import Int64, owner_of, token_positions, widest_step_of
from .get_last_loc import row_stride_of
from .jit import jit, number_of_warps
from .upload import upload

if TYPE_CHECKING:
    import triton.language as tl


def write_pages_reference(
    req_to_token: NDArray[np.int32],
    req_pool_indices: Int64,
    start: Int64,
    end: Int64,
    pages: Int64,
    page_size: int,
) -> None:
    """req_to_token[row, start:end] = the slots of the request's part of `pages`.

    start, end: int64[bs], page aligned, tokens. pages: int64[sum(end - start) / page_size], request-major.
    """
    owner, position = token_positions(start, end)
    slots = (pages[:, None] * page_size + np.arange(page_size)).ravel()
    req_to_token[req_pool_indices[owner], position] = slots


@jit
def write_pages_kernel(
    req_to_token, row_stride, plan, pages, total, batch, widest_step, PAGE_SIZE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """`plan`: int32[3, bs], of each request: its row, its start, its first token of the call."""
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = token < total
    owner = owner_of(token, plan + 2 * batch, batch, widest_step)
    row = tl.load(plan + owner, mask=valid, other=0).to(tl.int64)
    start = tl.load(plan + batch + owner, mask=valid, other=0).to(tl.int64)
    position = start + token - tl.load(plan + 2 * batch + owner, mask=valid, other=0)
    page = tl.load(pages + token // PAGE_SIZE, mask=valid, other=0)
    slot = page * PAGE_SIZE + token % PAGE_SIZE
    tl.store(req_to_token + row * row_stride + position, slot.to(tl.int32), mask=valid)


def write_pages(
    req_to_token: torch.Tensor,
    req_pool_indices: Int64,
    start: Int64,
    end: Int64,
    pages: torch.Tensor,
    page_size: int,
    tile: int = 512,
) -> None:
    """Write the rows on the device. req_pool_indices, start, end are the host's, and go over in one copy.

    pages: int64[sum(end - start) / page_size] on the device.
    """
    lens = end - start
    batch, total = len(lens), int(lens.sum())
    if total:
        write_pages_kernel.launch(
            (-(-total // tile),),
            req_to_token,
            row_stride_of(req_to_token),
            upload((req_pool_indices, start, np.cumsum(lens) - lens), torch.int32, req_to_token.device),
            pages.contiguous(),
            total,
            batch,
            widest_step_of(batch),
            PAGE_SIZE=page_size,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )
