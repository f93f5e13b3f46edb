"""One table of device operations for each device; the core asks for it once.

    kernels = kernels_for("cuda")
    out_cache_loc = kernels.extend_rows(req_to_token, rows, start, end, free_ids, head, page_size)

Rows and lengths are host arrays (numpy int64), slots and pages are tensors on the device. A device is a lane:
"cpu" (the references), "interpret" (the kernels on CPU tensors, in Triton's interpreter), "cuda" or "cuda:K".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .alloc_decode import alloc_decode, alloc_decode_reference
from .alloc_extend import alloc_extend_reference, fill_slots, request_offsets
from .assign_req_to_token_pool import assign_req_to_token_pool_reference, write_rows
from .decode_rows import Mirror, decode_rows, decode_rows_reference
from .devices import is_device, tensor_device
from .extend_rows import extend_rows, extend_rows_reference
from .gather_pages import gather_pages, gather_pages_reference
from .get_last_loc import get_last_loc, get_last_loc_reference
from .jit import LaneError, triton_is_interpreting
from .take_window_pages import take_window_pages, take_window_pages_reference
from .upload import upload
from .window import WindowPages
from .write_pages import write_pages, write_pages_reference

Int64 = NDArray[np.int64]
Tensor = torch.Tensor

OPERATIONS = (
    "get_last_loc",
    "alloc_extend",
    "alloc_decode",
    "assign_req_to_token_pool",
    "gather_pages",
    "extend_rows",
    "decode_rows",
    "write_pages",
    "take_window_pages",
)
"""The operations that have a kernel; `jit.launches` counts by these names."""


class Kernels(Protocol):
    """What every device offers. `free_ids[head:]` is the live free list; each call reads exactly the pages it takes.

    With a `window`, the k-th page that a call takes is mapped to the k-th page from the window's head.
    """

    def extend_rows(
        self,
        req_to_token: Tensor,
        rows: Int64,
        start: Int64,
        end: Int64,
        free_ids: Tensor,
        head: int,
        page_size: int,
        window: WindowPages | None = None,
    ) -> Tensor: ...

    def decode_rows(
        self,
        req_to_token: Tensor,
        rows: Int64,
        lens: Int64,
        free_ids: Tensor,
        head: int,
        page_size: int,
        mirror: Mirror | None = None,
        window: WindowPages | None = None,
    ) -> Tensor: ...

    def gather_pages(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, page_size: int) -> Tensor: ...

    def write_pages(
        self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, pages: Tensor, page_size: int
    ) -> None: ...

    def take_window_pages(self, window_map: Tensor, pages: Tensor) -> Tensor: ...

    def get_last_loc(self, req_to_token: Tensor, rows: Int64, lens: Int64) -> Tensor: ...

    def assign_rows(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, slots: Tensor) -> None: ...

    def alloc_extend(
        self,
        prefix_lens: Int64,
        seq_lens: Int64,
        last_loc: Tensor,
        free_ids: Tensor,
        head: int,
        page_size: int,
    ) -> Tensor: ...

    def alloc_decode(
        self, seq_lens: Int64, last_loc: Tensor, free_ids: Tensor, head: int, page_size: int
    ) -> Tensor: ...


class CpuKernels:
    """The references, in numpy on the tensors' own memory."""

    def extend_rows(
        self,
        req_to_token: Tensor,
        rows: Int64,
        start: Int64,
        end: Int64,
        free_ids: Tensor,
        head: int,
        page_size: int,
        window: WindowPages | None = None,
    ) -> Tensor:
        free_pages = free_ids.numpy()[head:]
        out = extend_rows_reference(req_to_token.numpy(), rows, start, end, free_pages, page_size, window)
        return torch.from_numpy(out)

    def decode_rows(
        self,
        req_to_token: Tensor,
        rows: Int64,
        lens: Int64,
        free_ids: Tensor,
        head: int,
        page_size: int,
        mirror: Mirror | None = None,
        window: WindowPages | None = None,
    ) -> Tensor:
        free_pages = free_ids.numpy()[head:]
        out = decode_rows_reference(req_to_token.numpy(), rows, lens, free_pages, page_size, window)
        return torch.from_numpy(out)

    def gather_pages(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, page_size: int) -> Tensor:
        return torch.from_numpy(gather_pages_reference(req_to_token.numpy(), rows, start, end, page_size))

    def write_pages(
        self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, pages: Tensor, page_size: int
    ) -> None:
        write_pages_reference(req_to_token.numpy(), rows, start, end, pages.numpy(), page_size)

    def take_window_pages(self, window_map: Tensor, pages: Tensor) -> Tensor:
        return torch.from_numpy(take_window_pages_reference(window_map.numpy(), pages.numpy()))

    def get_last_loc(self, req_to_token: Tensor, rows: Int64, lens: Int64) -> Tensor:
        return torch.from_numpy(get_last_loc_reference(req_to_token.numpy(), rows, lens))

    def assign_rows(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, slots: Tensor) -> None:
        assign_req_to_token_pool_reference(rows, req_to_token.numpy(), start, end, slots.numpy())

    def alloc_extend(
        self,
        prefix_lens: Int64,
        seq_lens: Int64,
        last_loc: Tensor,
        free_ids: Tensor,
        head: int,
        page_size: int,
    ) -> Tensor:
        free_pages = free_ids.numpy()[head:]
        return torch.from_numpy(alloc_extend_reference(prefix_lens, seq_lens, last_loc.numpy(), free_pages, page_size))

    def alloc_decode(self, seq_lens: Int64, last_loc: Tensor, free_ids: Tensor, head: int, page_size: int) -> Tensor:
        free_pages = free_ids.numpy()[head:]
        return torch.from_numpy(alloc_decode_reference(seq_lens, last_loc.numpy(), free_pages, page_size))


@dataclass(frozen=True)
class Tiles:
    """How much one step of a program holds: requests where a kernel walks the batch, tokens where it fills the output.

    Powers of two. As small as 2 for tests: then every sum that is carried from tile to tile counts.
    """

    requests: int = 2048
    tokens: int = 512


INTERPRETED_TILES = Tiles(requests=2048, tokens=2048)
"""The interpreter takes 0.1 to 0.9 ms for an operation on a tile, up to this size whatever the size."""


class TritonKernels:
    """The kernels, on the tensors of one device: at most one copy to the device and one launch a call."""

    def __init__(self, device: torch.device, tiles: Tiles = Tiles()) -> None:
        self.device, self.tiles = device, tiles

    def extend_rows(
        self,
        req_to_token: Tensor,
        rows: Int64,
        start: Int64,
        end: Int64,
        free_ids: Tensor,
        head: int,
        page_size: int,
        window: WindowPages | None = None,
    ) -> Tensor:
        return extend_rows(req_to_token, rows, start, end, free_ids, head, page_size, self.tiles.tokens, window)

    def decode_rows(
        self,
        req_to_token: Tensor,
        rows: Int64,
        lens: Int64,
        free_ids: Tensor,
        head: int,
        page_size: int,
        mirror: Mirror | None = None,
        window: WindowPages | None = None,
    ) -> Tensor:
        tile = self.tiles.requests
        return decode_rows(req_to_token, rows, lens, free_ids, head, page_size, mirror, tile, window)

    def gather_pages(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, page_size: int) -> Tensor:
        return gather_pages(req_to_token, rows, start, end, page_size, self.tiles.tokens)

    def write_pages(
        self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, pages: Tensor, page_size: int
    ) -> None:
        write_pages(req_to_token, rows, start, end, pages, page_size, self.tiles.tokens)

    def take_window_pages(self, window_map: Tensor, pages: Tensor) -> Tensor:
        return take_window_pages(window_map, pages, self.tiles.tokens)

    def get_last_loc(self, req_to_token: Tensor, rows: Int64, lens: Int64) -> Tensor:
        rows_there, lens_there = self._send(rows, lens)
        out = self._slots(len(lens))
        get_last_loc(req_to_token, rows_there, lens_there, out, self.tiles.requests)
        return out

    def assign_rows(self, req_to_token: Tensor, rows: Int64, start: Int64, end: Int64, slots: Tensor) -> None:
        first_token, _ = request_offsets(start, end, page_size=1)
        rows_there, start_there, first_there = self._send(rows, start, first_token)
        write_rows(rows_there, req_to_token, start_there, first_there, slots, self.tiles.tokens)

    def alloc_extend(
        self,
        prefix_lens: Int64,
        seq_lens: Int64,
        last_loc: Tensor,
        free_ids: Tensor,
        head: int,
        page_size: int,
    ) -> Tensor:
        offsets = request_offsets(prefix_lens, seq_lens, page_size)
        prefix_there, token_there, entry_there = self._send(prefix_lens, *offsets)
        out = self._slots(int((seq_lens - prefix_lens).sum()))
        free_pages, tile = free_ids[head:], self.tiles.tokens
        fill_slots(prefix_there, last_loc, token_there, entry_there, free_pages, page_size, out, tile)
        return out

    def alloc_decode(self, seq_lens: Int64, last_loc: Tensor, free_ids: Tensor, head: int, page_size: int) -> Tensor:
        (lens_there,) = self._send(seq_lens)
        out = self._slots(len(seq_lens))
        alloc_decode(lens_there, last_loc, free_ids[head:], page_size, out, self.tiles.requests)
        return out

    def _send(self, *arrays: Int64) -> tuple[Tensor, ...]:
        """The arrays, which are equally long, on the device as int64: one copy for all."""
        return upload(arrays, torch.int64, self.device).view(len(arrays), -1).unbind()

    def _slots(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int64, device=self.device)


@cache
def kernels_for(device: str) -> Kernels:
    """The operations of `device`. LaneError says why a lane is not to be had in this process."""
    if device == "cpu":
        return CpuKernels()
    if device == "interpret":
        if not _loads_interpreting():
            raise LaneError(
                "device 'interpret': Triton is not interpreting in this process; set TRITON_INTERPRET=1 in the "
                "environment before anything imports triton"
            )
        return TritonKernels(torch.device("cpu"), INTERPRETED_TILES)
    if not is_device(device):
        raise ValueError(f"device {device!r}: has to be 'cpu', 'interpret', 'cuda' or 'cuda:K'")
    if _loads_interpreting():
        raise LaneError(f"device {device!r}: TRITON_INTERPRET is set, the kernels would not run on the GPU")
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        raise LaneError(f"device {device!r}: torch {torch.__version__} finds {torch.cuda.device_count()} GPUs here")
    return TritonKernels(torch.device(tensor_device(device)))


def _loads_interpreting() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        raise LaneError("the kernel lanes need Triton, which is not installed here") from None
    return triton_is_interpreting()
