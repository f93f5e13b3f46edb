"""The decode path in one step: last slot, page rank, slot, row write.

    out_cache_loc = decode_rows(req_to_token, rows, lens, free_ids, head, page_size, mirror)

The device keeps what a step needs of what the host knows: the heads of the free list and of the window pool's, the
batch's rows, their lengths (a `Mirror`). The kernel moves them on as the host moves its own, so step after step sends
nothing; after another path has taken or given back pages the next step sends them once more, in one copy. Nothing is
ever read back.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .alloc_decode import Int64, alloc_decode_reference, starts_a_page
from .get_last_loc import get_last_loc_reference, row_stride_of
from .jit import jit, number_of_warps
from .upload import upload
from .window import WindowPages, map_pages_reference

if TYPE_CHECKING:
    import triton.language as tl


def decode_rows_reference(
    req_to_token: NDArray[np.int32],
    rows: Int64,
    lens: Int64,
    free_pages: Int64,
    page_size: int,
    window: WindowPages | None = None,
) -> Int64:
    """The slot of position `lens` of each row, written into the row and returned, int64[bs].

    rows, lens: int64[bs]; lens is the row's allocated length before the step, in tokens.
    window: the k-th page taken is mapped to the k-th window page from its head.
    """
    last_loc = get_last_loc_reference(req_to_token, rows, lens)
    out = alloc_decode_reference(lens + 1, last_loc, free_pages, page_size)
    req_to_token[rows, lens] = out
    if window:
        map_pages_reference(window, free_pages[: np.count_nonzero(starts_a_page(lens + 1, page_size))])
    return out


@jit
def decode_rows_kernel(
    req_to_token, row_stride, block, free_ids, out, batch, window_ids, window_map,
    PAGE_SIZE: tl.constexpr, HAS_WINDOW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`block`: int32[2 + 2 * bs], the heads of the free list and of the window pool's (0 without one), the rows, their
    lengths; left as they are after the step.

    One program: a second one could move a length or a head on while the first still counts with it.
    """
    head = tl.load(block)
    window_head = tl.load(block + 1)
    rows = block + 2
    lens = block + 2 + batch
    taken = 0
    low = 0
    while low < batch:
        member = low + tl.arange(0, TILE)
        valid = member < batch
        row = tl.load(rows + member, mask=valid, other=0).to(tl.int64)
        length = tl.load(lens + member, mask=valid, other=0)
        takes = valid & ((length & (PAGE_SIZE - 1)) == 0)
        row_end = req_to_token + row * row_stride + length
        last = tl.load(row_end - 1, mask=valid & (length > 0), other=-1).to(tl.int64)
        rank = taken + tl.cumsum(takes.to(tl.int32), 0) - 1
        page = tl.load(free_ids + head + rank, mask=takes, other=0)
        slot = tl.where(takes, page * PAGE_SIZE, last + 1)
        tl.store(out + member, slot, mask=valid)
        tl.store(row_end, slot.to(tl.int32), mask=valid)
        tl.store(lens + member, length + 1, mask=valid)
        if HAS_WINDOW:
            window_page = tl.load(window_ids + window_head + rank, mask=takes, other=0)
            tl.store(window_map + page, window_page, mask=takes)
        taken += tl.sum(takes.to(tl.int32), 0)
        low += TILE
    tl.debug_barrier()  # Every thread has read the heads.
    tl.store(block, head + taken)
    if HAS_WINDOW:
        tl.store(block + 1, window_head + taken)


class Mirror:
    """The device's copy of a batch's rows and lengths and of the free lists' heads, as the last step left them.

    `head`, `window_head` and `lens` say on the host what stands in `block`. A mirror belongs to one batch: its rows do
    not change.
    """

    __slots__ = ("block", "head", "lens", "window_head")

    def __init__(self) -> None:
        self.block: torch.Tensor | None = None
        self.head = self.window_head = -1
        self.lens: Int64 = np.zeros(0, dtype=np.int64)

    def of(self, head: int, window_head: int, rows: Int64, lens: Int64, device: torch.device) -> torch.Tensor:
        """The block, sent anew unless it stands as the host says."""
        heads_stand = self.head == head and self.window_head == window_head
        if self.block is None or not heads_stand or not (self.lens == lens).all():
            self.block = upload((np.array([head, window_head]), rows, lens), torch.int32, device)
        return self.block


def decode_rows(
    req_to_token: torch.Tensor,
    rows: Int64,
    lens: Int64,
    free_ids: torch.Tensor,
    head: int,
    page_size: int,
    mirror: Mirror | None = None,
    tile: int = 2048,
    window: WindowPages | None = None,
) -> torch.Tensor:
    """The slots on the device, int64[bs]. rows, lens are the host's; free_ids[head:] is free."""
    batch = len(rows)
    mirror = mirror or Mirror()
    out = torch.empty(batch, dtype=torch.int64, device=req_to_token.device)
    window_ids, window_head, window_map = window or (free_ids, 0, free_ids)
    block = mirror.of(head, window_head, rows, lens, out.device)
    mirror.block = None  # Until the launch is out it stands for nothing.
    decode_rows_kernel.launch(
        (1,),
        req_to_token,
        row_stride_of(req_to_token),
        block,
        free_ids,
        out,
        batch,
        window_ids,
        window_map,
        PAGE_SIZE=page_size,
        HAS_WINDOW=window is not None,
        TILE=tile,
        num_warps=number_of_warps(tile),
    )
    lens_after = lens + 1
    mirror.block, mirror.lens = block, lens_after
    taken = int(np.count_nonzero(starts_a_page(lens_after, page_size)))
    mirror.head, mirror.window_head = head + taken, window_head + taken if window else 0
    return out
