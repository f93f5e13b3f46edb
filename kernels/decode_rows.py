"""The decode path in one step: last slot, page rank, slot, row write.

    out_cache_loc = decode_rows(req_to_token, rows, lens, free_pages, page_size)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .alloc_decode import Int64, alloc_decode_reference
from .get_last_loc import get_last_loc_reference


def decode_rows_reference(
    req_to_token: NDArray[np.int32], rows: Int64, lens: Int64, free_pages: Int64, page_size: int
) -> Int64:
    """The slot of position `lens` of each row, written into the row and returned, int64[bs].

    rows, lens: int64[bs]; lens is the row's allocated length before the step, in tokens.
    """
    last_loc = get_last_loc_reference(req_to_token, rows, lens)
    out = alloc_decode_reference(lens + 1, last_loc, free_pages, page_size)
    req_to_token[rows, lens] = out
    return out
