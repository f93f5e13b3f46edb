"""Slots of an extend: finish each request's partial page, then whole new pages, then a partial last one.

    alloc_extend(prefix_lens, seq_lens, last_loc, free_pages, page_size, out)

Slots are request-major. Request i takes ceil(seq / page_size) - ceil(prefix / page_size) pages, and they are the
next ones of the free list behind those of requests 0..i-1.

On the device a tile holds neighbouring tokens of the output, whosever they are, and each finds its request by binary
search: a prompt of 126 k tokens costs as many tiles as 126 short ones of the same sum. Where the requests begin, in
the output and in the free list, is counted before: by `offsets_kernel`, or on the host where the lengths are known.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .get_last_loc import contiguous_output
from .jit import jit, number_of_warps

if TYPE_CHECKING:
    import triton.language as tl

Int64 = NDArray[np.int64]


def new_pages(prefix_lens: Int64, seq_lens: Int64, page_size: int) -> Int64:
    """Pages that each request takes, int64[bs]."""
    shift = page_size.bit_length() - 1
    pages: Int64 = ((seq_lens + (page_size - 1)) >> shift) - ((prefix_lens + (page_size - 1)) >> shift)
    return pages


def token_positions(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Owner (index in the batch) and position of every token of [start, end), request-major, int64[sum]."""
    lens = end - start
    if len(lens) == 1:
        position = np.arange(start[0], end[0])
        return np.zeros(len(position), dtype=np.int64), position
    owner = np.arange(len(lens)).repeat(lens)
    position = np.arange(len(owner)) + (start - (lens.cumsum() - lens))[owner]
    return owner, position


def request_offsets(start: Int64, end: Int64, page_size: int) -> tuple[Int64, Int64]:
    """Where each request begins: its first token in the output, and its free-list entry for page 0 of its row.

    Both int64[bs]. A position's entry is first_entry + position // page_size; that of page 0 itself may be negative.
    """
    shift = page_size.bit_length() - 1
    lens, old_pages = end - start, (start + (page_size - 1)) >> shift
    taken = ((end + (page_size - 1)) >> shift) - old_pages
    return np.cumsum(lens) - lens, np.cumsum(taken) - taken - old_pages


def alloc_extend_reference(
    prefix_lens: Int64,
    seq_lens: Int64,
    last_loc: Int64,
    free_pages: Int64,
    page_size: int,
    positions: tuple[Int64, Int64] | None = None,
) -> Int64:
    """Slots for positions [prefix, seq) of each request, int64[sum(seq - prefix)].

    prefix_lens, seq_lens: int64[bs], tokens. last_loc: int64[bs], the slot of position prefix - 1 (unused where prefix
    is a page multiple). free_pages: the free list from its head; exactly sum(new_pages) entries are read.
    positions: token_positions(prefix_lens, seq_lens), where the caller has them.
    """
    shift = page_size.bit_length() - 1
    taken = new_pages(prefix_lens, seq_lens, page_size)
    first = taken.cumsum() - taken
    owner, position = positions or token_positions(prefix_lens, seq_lens)
    # The free-list entry of a token: the request's first one, plus the pages between its first new page and the token.
    first_new_page = (prefix_lens + (page_size - 1)) >> shift
    entry = (position >> shift) + (first - first_new_page)[owner]
    on_old_page = position < (first_new_page << shift)[owner]
    if not on_old_page.any():
        fresh: Int64 = (free_pages[entry] << shift) + (position & (page_size - 1))
        return fresh
    out: Int64 = (last_loc + 1 - prefix_lens)[owner] + position
    on_new_page = on_old_page == 0
    out[on_new_page] = (free_pages[entry[on_new_page]] << shift) + (position[on_new_page] & (page_size - 1))
    return out


@jit
def offsets_kernel(start, end, first_token, first_entry, batch, PAGE_SIZE: tl.constexpr, TILE: tl.constexpr):
    """`request_offsets`, tile by tile with the sums so far."""
    tokens = 0
    pages = 0
    low = 0
    while low < batch:
        member = low + tl.arange(0, TILE)
        valid = member < batch
        begins = tl.load(start + member, mask=valid, other=0).to(tl.int64)
        ends = tl.load(end + member, mask=valid, other=0).to(tl.int64)
        length = (ends - begins).to(tl.int32)
        old_pages = (begins + (PAGE_SIZE - 1)) // PAGE_SIZE
        taken = ((ends + (PAGE_SIZE - 1)) // PAGE_SIZE - old_pages).to(tl.int32)
        tl.store(first_token + member, tokens + tl.cumsum(length, 0) - length, mask=valid)
        tl.store(first_entry + member, pages + tl.cumsum(taken, 0) - taken - old_pages, mask=valid)
        tokens += tl.sum(length, 0)
        pages += tl.sum(taken, 0)
        low += TILE


@jit
def owner_of(token, first_token, batch, widest_step):
    """The request of each token: the last one that begins at or before it. `widest_step`: see `widest_step_of`."""
    owner = tl.zeros_like(token)
    step = widest_step
    while step > 0:
        begins = tl.load(first_token + owner + step, mask=owner + step < batch, other=2147483647)
        owner = tl.where(begins <= token, owner + step, owner)
        step = step >> 1
    return owner


@jit
def alloc_extend_kernel(
    prefix_lens, last_loc, first_token, first_entry, free_pages, out, total, batch, widest_step,
    PAGE_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = token < total
    owner = owner_of(token, first_token, batch, widest_step)
    prefix = tl.load(prefix_lens + owner, mask=valid, other=0).to(tl.int64)
    position = prefix + token - tl.load(first_token + owner, mask=valid, other=0)
    on_old_page = position < (prefix + (PAGE_SIZE - 1)) // PAGE_SIZE * PAGE_SIZE
    last = tl.load(last_loc + owner, mask=valid & on_old_page, other=0).to(tl.int64)
    entry = position // PAGE_SIZE + tl.load(first_entry + owner, mask=valid, other=0)
    page = tl.load(free_pages + entry, mask=valid & (on_old_page == 0), other=0).to(tl.int64)
    slot = tl.where(on_old_page, last + 1 - prefix + position, page * PAGE_SIZE + position % PAGE_SIZE)
    tl.store(out + token, slot, mask=valid)


def alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    page_size: int,
    out: torch.Tensor,
    tile: int = 512,
    batch_tile: int = 2048,
) -> None:
    """Fill `out` (int64[sum(seq - prefix)]) on the device, in two launches; the caller knows the sum.

    prefix_lens, seq_lens, last_loc: int32[bs] or int64[bs]; free_pages may begin anywhere.
    """
    prefix_lens = prefix_lens.contiguous()
    first_token, first_entry = offsets(prefix_lens, seq_lens.contiguous(), page_size, batch_tile)
    fill_slots(prefix_lens, last_loc, first_token, first_entry, free_pages, page_size, out, tile)


def fill_slots(
    prefix_lens: torch.Tensor,
    last_loc: torch.Tensor,
    first_token: torch.Tensor,
    first_entry: torch.Tensor,
    free_pages: torch.Tensor,
    page_size: int,
    out: torch.Tensor,
    tile: int = 512,
) -> None:
    """alloc_extend where the offsets are known, in one launch."""
    batch, total = len(prefix_lens), len(out)
    if total:
        alloc_extend_kernel.launch(
            (-(-total // tile),),
            prefix_lens,
            last_loc.contiguous(),
            first_token,
            first_entry,
            free_pages.contiguous(),
            contiguous_output(out),
            total,
            batch,
            widest_step_of(batch),
            PAGE_SIZE=page_size,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )


def offsets(
    start: torch.Tensor, end: torch.Tensor, page_size: int, tile: int = 2048
) -> tuple[torch.Tensor, torch.Tensor]:
    """`request_offsets` on the device: first_token, first_entry, int64[bs] each."""
    batch = len(start)
    first_token, first_entry = torch.empty((2, batch), dtype=torch.int64, device=start.device)
    if batch:
        offsets_kernel.launch(
            (1,),
            start,
            end,
            first_token,
            first_entry,
            batch,
            PAGE_SIZE=page_size,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )
    return first_token, first_entry


def widest_step_of(batch: int) -> int:
    """The first step of a binary search through `batch` requests: the greatest power of two below `batch`, or 0."""
    return 1 << (batch - 1).bit_length() >> 1
