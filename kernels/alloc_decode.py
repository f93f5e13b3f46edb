"""Slots of a decode step: one token each; a request at a page edge takes a page.

    alloc_decode(seq_lens, last_loc, free_pages, page_size, out)       # seq_lens count the new token

The pages are the next ones of the free list, in batch order. One program walks the batch tile by tile and carries the
number of pages taken so far: linear in the batch, where a program for each request has to sum up all earlier ones.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .get_last_loc import contiguous_output
from .jit import jit, number_of_warps

if TYPE_CHECKING:
    import torch
    import triton.language as tl

Int64 = NDArray[np.int64]


def starts_a_page(seq_lens: Int64, page_size: int) -> NDArray[np.bool_]:
    """Whether the token at position seq - 1 is the first of its page. True for all at page size 1 (`seq % 1 == 1`
    never is: public bug S-11)."""
    starts: NDArray[np.bool_] = ((seq_lens - 1) & (page_size - 1)) == 0
    return starts


def alloc_decode_reference(seq_lens: Int64, last_loc: Int64, free_pages: Int64, page_size: int) -> Int64:
    """The slot of position seq - 1 of each request, int64[bs].

    seq_lens: int64[bs], tokens after this step. last_loc: int64[bs], the slot of position seq - 2.
    free_pages: the free list from its head; one entry is read for each request that starts a page, in batch order.
    """
    takes = starts_a_page(seq_lens, page_size)
    out = last_loc + 1
    out[takes] = free_pages[: np.count_nonzero(takes)] * page_size
    return out


@jit
def alloc_decode_kernel(seq_lens, last_loc, free_pages, out, batch, PAGE_SIZE: tl.constexpr, TILE: tl.constexpr):
    taken = 0
    low = 0
    while low < batch:
        member = low + tl.arange(0, TILE)
        valid = member < batch
        seq_len = tl.load(seq_lens + member, mask=valid, other=0)
        takes = valid & (((seq_len - 1) & (PAGE_SIZE - 1)) == 0)
        last = tl.load(last_loc + member, mask=valid, other=0).to(tl.int64)
        rank = taken + tl.cumsum(takes.to(tl.int32), 0) - 1
        page = tl.load(free_pages + rank, mask=takes, other=0).to(tl.int64)
        tl.store(out + member, tl.where(takes, page * PAGE_SIZE, last + 1), mask=valid)
        taken += tl.sum(takes.to(tl.int32), 0)
        low += TILE


def alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    page_size: int,
    out: torch.Tensor,
    tile: int = 2048,
) -> None:
    """Fill `out` (int64[bs]) on the device.

    seq_lens, last_loc: int32[bs] or int64[bs]; free_pages may begin anywhere.
    """
    batch = len(seq_lens)
    if batch:
        alloc_decode_kernel.launch(
            (1,),
            seq_lens.contiguous(),
            last_loc.contiguous(),
            free_pages.contiguous(),
            contiguous_output(out),
            batch,
            PAGE_SIZE=page_size,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )
