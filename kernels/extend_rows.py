"""The extend path in one step: last slot, page rank, slots, row write.

    out_cache_loc = extend_rows(req_to_token, rows, start, end, free_pages, page_size)

Serves every path that lengthens rows by more than a token: extend, the speculative reserve, pre-allocation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .alloc_extend import Int64, alloc_extend_reference
from .assign_req_to_token_pool import assign_req_to_token_pool_reference
from .get_last_loc import get_last_loc_reference


def extend_rows_reference(
    req_to_token: NDArray[np.int32], rows: Int64, start: Int64, end: Int64, free_pages: Int64, page_size: int
) -> Int64:
    """Slots for positions [start, end) of each row, written into the row and returned, int64[sum(end - start)].

    rows, start, end: int64[bs]; start is the row's allocated length, in tokens. free_pages: the free list from its head.
    """
    last_loc = get_last_loc_reference(req_to_token, rows, start)
    out = alloc_extend_reference(start, end, last_loc, free_pages, page_size)
    assign_req_to_token_pool_reference(rows, req_to_token, start, end, out)
    return out
