"""The pages of a sliding-window pool, as the kernels see them.

    window = WindowPages(ids, head, window_map)
    out_cache_loc = extend_rows(req_to_token, rows, start, end, free_ids, head, page_size, window=window)

Every page that a path takes from the full pool gets a page of the window pool, too: `map` says which. The kernel that
writes the slots writes it, in the same launch, by the token at offset 0 of each new page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class WindowPages(NamedTuple):
    """The window pool's free list, of which `ids[head:]` is live, and the map.

    ids: int64. map: int64[full pages + 1], full page -> window page; 0: it has none. Entry 0 is always 0.
    """

    ids: torch.Tensor
    head: int
    map: torch.Tensor


def map_pages_reference(window: WindowPages, pages: NDArray[np.int64]) -> None:
    """map[pages[k]] = ids[head + k]. pages: the full pages that the call takes, in the order of the free list."""
    window.map.numpy()[pages] = window.ids.numpy()[window.head : window.head + len(pages)]
