"""Row write: put slots where their positions are.

    assign_req_to_token_pool(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .alloc_extend import Int64, token_positions


def assign_req_to_token_pool_reference(
    req_pool_indices: Int64,
    req_to_token: NDArray[np.int32],
    start_offset: Int64,
    end_offset: Int64,
    out_cache_loc: Int64,
) -> None:
    """req_to_token[row, start:end] = the request's part of out_cache_loc (int64[sum(end - start)], request-major)."""
    owner, position = token_positions(start_offset, end_offset)
    req_to_token[req_pool_indices[owner], position] = out_cache_loc
