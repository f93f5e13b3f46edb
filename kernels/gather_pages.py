"""Pages under row segments: what a release gives back.

    pages = gather_pages(req_to_token, req_pool_indices, start, end, page_size)

A segment starts on a page edge, so one entry in every `page_size` names each page once: no search, no `unique`.
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


def gather_pages_reference(
    req_to_token: NDArray[np.int32], req_pool_indices: Int64, start: Int64, end: Int64, page_size: int
) -> Int64:
    """Page ids of row[start:end] of each request, int64[sum(ceil(end / ps) - start / ps)], request-major.

    start: int64[bs], page aligned; end: int64[bs], may lie mid-page: the last page counts whole. Tokens.
    """
    shift = page_size.bit_length() - 1
    owner, page = token_positions(start >> shift, (end + (page_size - 1)) >> shift)
    pages: Int64 = req_to_token[req_pool_indices[owner], page << shift].astype(np.int64) >> shift
    return pages


@jit
def gather_pages_kernel(
    req_to_token, row_stride, plan, out, total, batch, widest_step, PAGE_SIZE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """`plan`: int32[3, bs], of each request: its row, its first page index, its first entry of `out`."""
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = entry < total
    owner = owner_of(entry, plan + 2 * batch, batch, widest_step)
    first = tl.load(plan + 2 * batch + owner, mask=valid, other=0).to(tl.int64)
    page = tl.load(plan + batch + owner, mask=valid, other=0) + entry - first
    row = tl.load(plan + owner, mask=valid, other=0).to(tl.int64)
    slot = tl.load(req_to_token + row * row_stride + page * PAGE_SIZE, mask=valid, other=0)
    tl.store(out + entry, (slot // PAGE_SIZE).to(tl.int64), mask=valid)


def gather_pages(
    req_to_token: torch.Tensor,
    req_pool_indices: Int64,
    start: Int64,
    end: Int64,
    page_size: int,
    tile: int = 512,
) -> torch.Tensor:
    """The page ids on the device, int64. req_pool_indices, start, end are the host's, and go over in one copy."""
    shift = page_size.bit_length() - 1
    first_page = start >> shift
    pages = ((end + (page_size - 1)) >> shift) - first_page
    batch, total = len(pages), int(pages.sum())
    out = torch.empty(total, dtype=torch.int64, device=req_to_token.device)
    if total:
        gather_pages_kernel.launch(
            (-(-total // tile),),
            req_to_token,
            row_stride_of(req_to_token),
            upload((req_pool_indices, first_page, np.cumsum(pages) - pages), torch.int32, out.device),
            out,
            total,
            batch,
            widest_step_of(batch),
            PAGE_SIZE=page_size,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )
    return out
