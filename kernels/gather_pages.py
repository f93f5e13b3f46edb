"""Pages under row segments: what a release gives back.

    pages = gather_pages(req_to_token, req_pool_indices, start, end, page_size)

A segment starts on a page edge, so one entry in every `page_size` names each page once: no search, no `unique`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .alloc_extend import Int64, token_positions


def gather_pages_reference(
    req_to_token: NDArray[np.int32], req_pool_indices: Int64, start: Int64, end: Int64, page_size: int
) -> Int64:
    """Page ids of row[start:end] of each request, int64[sum(ceil(end / ps) - start / ps)], request-major.

    start: int64[bs], page aligned; end: int64[bs], may lie mid-page: the last page counts whole. Tokens.
    """
    shift = page_size.bit_length() - 1
    owner, page = token_positions(start >> shift, (end + (page_size - 1)) >> shift)
    slots = req_to_token[req_pool_indices[owner], page << shift]
    return slots.astype(np.int64) >> shift
