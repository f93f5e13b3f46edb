"""Last slot of each request: where the next token continues.

    last_loc = get_last_loc(req_to_token, req_pool_indices, lens)      # -1 where the length is 0
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def get_last_loc_reference(req_to_token: NDArray[np.int32], req_pool_indices: Int64, lens: Int64) -> Int64:
    """Slot of position lens - 1 in each row, int64[bs]; -1 for a length of zero (tokens)."""
    last = req_to_token[req_pool_indices, lens - 1].astype(np.int64)
    last[lens == 0] = -1
    return last
