"""Request rows: which slot holds which position of which request.

    pool = ReqToTokenPool(max_requests=64, row_width=4112)
    pool.req_to_token[req.kv.req_pool_idx, :req.kv.kv_allocated_len]     # the request's slots, by position

Row 0 is padding and never bound. A row's content is not cleared when it is released: entries at or past
`allocated` mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .records import Records, Req


class ReqToTokenPool:
    """The table `req_to_token` (int32[max_requests + 1, row_width], slots), its free rows and its records.

    `reqs` maps each bound row to its request. Free rows are a stack: the last released is bound first.
    """

    def __init__(self, max_requests: int, row_width: int, device: str = "cpu") -> None:
        self.max_requests = max_requests
        self.row_width = row_width
        self.req_to_token = torch.zeros((max_requests + 1, row_width), dtype=torch.int32, device=device)
        self.records = Records(max_requests)
        self.reqs: dict[int, Req] = {}
        self.free_rows = list(range(max_requests, 0, -1))

    def bind(self, reqs: Sequence[Req]) -> NDArray[np.int64]:
        """Give each request a row; the caller has checked that there are enough. Returns their rows, int64."""
        rows = np.fromiter((self.free_rows.pop() for _ in reqs), dtype=np.int64, count=len(reqs))
        for req, row in zip(reqs, rows.tolist(), strict=True):
            req._pool, req._row = self, row
            self.reqs[row] = req
        self.records._bind(rows)
        return rows

    def unbind(self, rows: NDArray[np.int64]) -> None:
        """Take the rows back and clear their records."""
        for row in rows.tolist():
            req = self.reqs.pop(row)
            req._pool, req._row = None, 0
            self.free_rows.append(row)
        self.records._clear(rows)
