"""Window pages out of the map: what goes back to the window pool when full pages are given back or slide out.

    window_pages = take_window_pages(window_map, pages)

One entry for each page, 0 where it has no window page; afterwards none of the pages has one.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .jit import jit, number_of_warps

if TYPE_CHECKING:
    import triton.language as tl

Int64 = NDArray[np.int64]


def take_window_pages_reference(window_map: Int64, pages: Int64) -> Int64:
    """The window pages of `pages`, int64[len(pages)], which are cleared in the map. pages: int64, distinct."""
    taken = window_map[pages]
    window_map[pages] = 0
    return taken


@jit
def take_window_pages_kernel(window_map, pages, out, total, TILE: tl.constexpr):
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = entry < total
    page = tl.load(pages + entry, mask=valid, other=0)
    window_page = tl.load(window_map + page, mask=valid, other=0)
    tl.store(out + entry, window_page, mask=valid)
    tl.debug_barrier()  # Another thread may clear an entry than the one that reads it.
    tl.store(window_map + page, tl.zeros_like(page), mask=valid)


def take_window_pages(window_map: torch.Tensor, pages: torch.Tensor, tile: int = 512) -> torch.Tensor:
    """The window pages on the device, int64[len(pages)]. pages: int64 on the device, distinct; nothing is sent."""
    total = len(pages)
    out = torch.empty(total, dtype=torch.int64, device=window_map.device)
    if total:
        take_window_pages_kernel.launch(
            (-(-total // tile),),
            window_map,
            pages.contiguous(),
            out,
            total,
            TILE=tile,
            num_warps=number_of_warps(tile),
        )
    return out
