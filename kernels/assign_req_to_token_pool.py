"""Row write: put slots where their positions are.

    assign_req_to_token_pool(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc)

`out_cache_loc` holds the requests' slots one behind the other.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .alloc_extend import Int64, offsets, owner_of, token_positions, widest_step_of
from .get_last_loc import row_stride_of
from .jit import jit, number_of_warps

if TYPE_CHECKING:
    import triton.language as tl


def assign_req_to_token_pool_reference(
    req_pool_indices: Int64,
    req_to_token: NDArray[np.int32],
    start_offset: Int64,
    end_offset: Int64,
    out_cache_loc: Int64,
    positions: tuple[Int64, Int64] | None = None,
) -> None:
    """req_to_token[row, start:end] = the request's part of out_cache_loc (int64[sum(end - start)], request-major)."""
    owner, position = positions or token_positions(start_offset, end_offset)
    req_to_token[req_pool_indices[owner], position] = out_cache_loc


@jit
def assign_req_to_token_pool_kernel(
    req_pool_indices, req_to_token, row_stride, start_offset, first_token, out_cache_loc, total, batch, widest_step,
    TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = token < total
    owner = owner_of(token, first_token, batch, widest_step)
    start = tl.load(start_offset + owner, mask=valid, other=0).to(tl.int64)
    position = start + token - tl.load(first_token + owner, mask=valid, other=0)
    row = tl.load(req_pool_indices + owner, mask=valid, other=0).to(tl.int64)
    slot = tl.load(out_cache_loc + token, mask=valid, other=0)
    tl.store(req_to_token + row * row_stride + position, slot.to(tl.int32), mask=valid)


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    tile: int = 512,
    batch_tile: int = 2048,
) -> None:
    """Write the rows on the device, in two launches.

    req_pool_indices, start_offset, end_offset: int32[bs] or int64[bs].
    """
    start_offset = start_offset.contiguous()
    first_token, _ = offsets(start_offset, end_offset.contiguous(), page_size=1, tile=batch_tile)
    write_rows(req_pool_indices.contiguous(), req_to_token, start_offset, first_token, out_cache_loc, tile)


def write_rows(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    first_token: torch.Tensor,
    out_cache_loc: torch.Tensor,
    tile: int = 512,
) -> None:
    """assign_req_to_token_pool where each request's first token is known, in one launch."""
    batch, total = len(req_pool_indices), len(out_cache_loc)
    if total:
        assign_req_to_token_pool_kernel.launch(
            (-(-total // tile),),
            req_pool_indices,
            req_to_token,
            row_stride_of(req_to_token),
            start_offset,
            first_token,
            out_cache_loc.contiguous(),
            total,
            batch,
            widest_step_of(batch),
            TILE=tile,
            num_warps=number_of_warps(tile),
        )
