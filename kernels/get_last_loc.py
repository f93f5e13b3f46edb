"""Last slot of each request: where the next token continues.

    get_last_loc(req_to_token, req_pool_indices, lens, out)      # -1 where the length is 0

`req_to_token` is the table of slots, int32[rows, row_width]; its rows may lie apart in memory.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .jit import jit, number_of_warps

if TYPE_CHECKING:
    import torch
    import triton.language as tl

Int64 = NDArray[np.int64]


def get_last_loc_reference(req_to_token: NDArray[np.int32], req_pool_indices: Int64, lens: Int64) -> Int64:
    """Slot of position lens - 1 in each row, int64[bs]; -1 for a length of zero (tokens)."""
    last = req_to_token[req_pool_indices, lens - 1].astype(np.int64)
    last[lens == 0] = -1
    return last


@jit
def get_last_loc_kernel(req_to_token, row_stride, req_pool_indices, lens, out, batch, TILE: tl.constexpr):
    member = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = member < batch
    row = tl.load(req_pool_indices + member, mask=valid, other=0).to(tl.int64)
    length = tl.load(lens + member, mask=valid, other=0).to(tl.int64)
    last = tl.load(req_to_token + row * row_stride + length - 1, mask=length > 0, other=-1)
    tl.store(out + member, last.to(tl.int64), mask=valid)


def get_last_loc(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    lens: torch.Tensor,
    out: torch.Tensor,
    tile: int = 1024,
) -> None:
    """Fill `out` (int64[bs]) on the device. req_pool_indices, lens: int32[bs] or int64[bs]."""
    batch = len(lens)
    if batch:
        get_last_loc_kernel.launch(
            (-(-batch // tile),),
            req_to_token,
            row_stride_of(req_to_token),
            req_pool_indices.contiguous(),
            lens.contiguous(),
            contiguous_output(out),
            batch,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )


def row_stride_of(req_to_token: torch.Tensor) -> int:
    """Entries from one row to the next. The entries of a row have to be neighbours."""
    row_stride, entry_stride = req_to_token.stride()
    if entry_stride != 1:
        raise ValueError(f"req_to_token: the entries of a row lie {entry_stride} apart; they have to be neighbours")
    return row_stride


def contiguous_output(out: torch.Tensor) -> torch.Tensor:
    """`out`, which a kernel may fill only if its entries are neighbours."""
    if not out.is_contiguous():
        raise ValueError("out: has to be contiguous")
    return out
