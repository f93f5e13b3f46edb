"""The functions that are under test: those of a lane.

    fn = lane_function("alloc_extend", "cpu", case)
    prepare("alloc_extend", case, "cpu").run(fn, walled=False)

In the cpu lane they are the references, in a kernel lane the kernels' launchers, both called as in `operations`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ..kernels.alloc_decode import alloc_decode
from ..kernels.alloc_extend import alloc_extend
from ..kernels.assign_req_to_token_pool import assign_req_to_token_pool
from ..kernels.dispatch import CpuKernels, Tiles, TritonKernels, kernels_for
from ..kernels.get_last_loc import get_last_loc
from ..kernels.window import WindowPages
from .cases import WHOLE_PAGES, Case, whole_pages

MOST_PROGRAMS = 8
"""A tile is drawn as small as 2, but no call takes more programs, or trips of one, than this: the interpreter takes
some 8 ms for each."""


def lane_function(op: str, device: str, case: Case) -> Callable[..., Any]:
    """The function of lane `device` for `op`, with the tile that `case` asks for."""
    kernels = kernels_for(device)
    if isinstance(kernels, TritonKernels):
        tiles = tiles_of(op, case, kernels.tiles)
        scan, fill = tiles.requests, tiles.tokens
        launchers: dict[str, Callable[..., Any]] = {
            "get_last_loc": partial(get_last_loc, tile=scan),
            "alloc_extend": partial(alloc_extend, tile=fill, batch_tile=scan),
            "alloc_decode": partial(alloc_decode, tile=scan),
            "assign_req_to_token_pool": partial(assign_req_to_token_pool, tile=fill, batch_tile=scan),
        }
        return launchers.get(op) or getattr(TritonKernels(kernels.device, tiles), op)
    return _REFERENCES.get(op) or getattr(kernels, op)


def small_tile_function(op: str, device: str) -> Callable[..., Any]:
    """The lane's function with tiles so small that most calls take several: what is carried between them counts.

    On a GPU each tile would be a compilation, and on the CPU there are none: there it is the lane's own.
    """

    def fn(*arguments: Any, window: WindowPages | None = None) -> Any:
        named = {} if window is None else {"window": window}
        if device != "interpret":
            return lane_function(op, device, Case(1, ((0, 1),)))(*arguments, **named)
        longest = max(len(a) for a in arguments if isinstance(a, (np.ndarray, torch.Tensor)) and a.ndim == 1)
        tokens = longest
        if op in ("extend_rows", "gather_pages", "write_pages"):
            start, end = arguments[2:4]
            tokens = int((end - start).sum())
        elif op == "take_window_pages":
            tokens = len(arguments[1])
        return lane_function(op, device, Case(1, ((0, max(tokens, 1)),), tile=2))(*arguments, **named)

    return fn


def tiles_of(op: str, case: Case, usual: Tiles) -> Tiles:
    """Tiles of `case.tile`, or as much larger as MOST_PROGRAMS asks for."""
    if case.tile is None:
        return usual
    lens = whole_pages(case)[1] if op in WHOLE_PAGES else case.lens
    tokens = max(int(lens.sum()) // (case.page_size if op == "take_window_pages" else 1), 1)
    return Tiles(*(max(case.tile, power_of_two(-(-n // MOST_PROGRAMS))) for n in (len(case.lens), tokens)))


def power_of_two(n: int) -> int:
    """The least power of two from `n` up."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


def _get_last_loc(req_to_token: Any, rows: Any, lens: Any, out: Any) -> None:
    out.copy_(CpuKernels().get_last_loc(req_to_token, _host(rows), _host(lens)))


def _alloc_extend(prefix: Any, seq: Any, last_loc: Any, free_pages: Any, page_size: int, out: Any) -> None:
    out.copy_(CpuKernels().alloc_extend(_host(prefix), _host(seq), last_loc, free_pages, 0, page_size))


def _alloc_decode(seq: Any, last_loc: Any, free_pages: Any, page_size: int, out: Any) -> None:
    out.copy_(CpuKernels().alloc_decode(_host(seq), last_loc, free_pages, 0, page_size))


def _assign(rows: Any, req_to_token: Any, start: Any, end: Any, slots: Any) -> None:
    CpuKernels().assign_rows(req_to_token, _host(rows), _host(start), _host(end), slots)


def _host(tensor: torch.Tensor) -> Any:
    return tensor.to(torch.int64).numpy()


_REFERENCES: dict[str, Callable[..., Any]] = {
    "get_last_loc": _get_last_loc,
    "alloc_extend": _alloc_extend,
    "alloc_decode": _alloc_decode,
    "assign_req_to_token_pool": _assign,
}
