"""One table of device operations for each device; the core asks for it once.

    kernels = kernels_for("cpu")
    out_cache_loc = kernels.extend_rows(req_to_token, rows, start, end, free_ids, head, page_size)

Rows and lengths are host arrays (numpy int64), slots and pages are tensors on the device.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .alloc_decode import alloc_decode_reference
from .alloc_extend import alloc_extend_reference
from .assign_req_to_token_pool import assign_req_to_token_pool_reference
from .decode_rows import decode_rows_reference
from .extend_rows import extend_rows_reference
from .gather_pages import gather_pages_reference

Int64 = NDArray[np.int64]
Tensor = torch.Tensor


class Kernels(Protocol):
    """What every device offers. `free_ids[head:]` is the live free list; each call reads exactly the pages it takes."""

    def extend_rows(
        self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor: ...

    def decode_rows(
        self, req_to_token: Tensor, rows: Int64, lens: Int64, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor: ...

    def gather_pages(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, page_size: int) -> Tensor: ...

    def assign_rows(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, slots: Tensor) -> None: ...

    def alloc_extend(
        self, prefix_lens: Int64, seq_lens: Int64, last_loc: Tensor, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor: ...

    def alloc_decode(
        self, seq_lens: Int64, last_loc: Tensor, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor: ...


class CpuKernels:
    """The references, in numpy on the tensors' own memory."""

    def extend_rows(
        self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor:
        out = extend_rows_reference(req_to_token.numpy(), rows, start, end, free_ids.numpy()[head:], page_size)
        return torch.from_numpy(out)

    def decode_rows(
        self, req_to_token: Tensor, rows: Int64, lens: Int64, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor:
        return torch.from_numpy(
            decode_rows_reference(req_to_token.numpy(), rows, lens, free_ids.numpy()[head:], page_size)
        )

    def gather_pages(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, page_size: int) -> Tensor:
        return torch.from_numpy(gather_pages_reference(req_to_token.numpy(), rows, start, end, page_size))

    def assign_rows(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, slots: Tensor) -> None:
        assign_req_to_token_pool_reference(rows, req_to_token.numpy(), start, end, slots.numpy())

    def alloc_extend(
        self, prefix_lens: Int64, seq_lens: Int64, last_loc: Tensor, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor:
        free_pages = free_ids.numpy()[head:]
        return torch.from_numpy(
            alloc_extend_reference(prefix_lens, seq_lens, last_loc.numpy(), free_pages, page_size)
        )

    def alloc_decode(self, seq_lens: Int64, last_loc: Tensor, free_ids: Tensor, head: int, page_size: int) -> Tensor:
        return torch.from_numpy(alloc_decode_reference(seq_lens, last_loc.numpy(), free_ids.numpy()[head:], page_size))


def kernels_for(device: str) -> Kernels:
    """The operations of `device`."""
    return CpuKernels()
