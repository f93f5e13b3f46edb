"""Kernels in Triton with the bugs that allocation kernels have had: check_kernel finds each, in little time.

A program for each request, which sums up all earlier ones: the shape that production kernels had, and where each of
these bugs was once made. `FAULT` leaves one in; with "none" the kernel is right.
"""

# Kernels are in Triton's language, which is not typed Python.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import inspect
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ..allocators.paged import PagedAllocator
from ..errors import KVCacheOutOfMemory
from ..kernels.devices import tensor_device
from ..kernels.jit import jit
from ..kernels.window import WindowPages
from . import KernelMismatch, check_kernel
from .fences import Crashed, fenced, in_child
from .masked_loads import masked_loads_without_other

if TYPE_CHECKING:
    import triton.language as tl


@jit
def serial_extend_kernel(
    prefix_lens, seq_lens, last_loc, free_pages, out, batch,
    PAGE_SIZE: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    me = tl.program_id(0)
    lane = tl.arange(0, LANES)
    if FAULT == "no default":
        begins = tl.load(prefix_lens + lane, mask=lane < me)
        ends = tl.load(seq_lens + lane, mask=lane < me, other=0)
    else:
        begins = tl.load(prefix_lens + lane, mask=lane < me, other=0)
        ends = tl.load(seq_lens + lane, mask=lane < me, other=0)
    first_token = tl.sum(ends.to(tl.int64) - begins, 0)
    pages = (ends.to(tl.int64) + (PAGE_SIZE - 1)) // PAGE_SIZE - (begins.to(tl.int64) + (PAGE_SIZE - 1)) // PAGE_SIZE
    first_page = tl.sum(pages, 0)

    start = tl.load(prefix_lens + me).to(tl.int64)
    end = tl.load(seq_lens + me).to(tl.int64)
    last = tl.load(last_loc + me)
    edge = tl.minimum(end, (start + (PAGE_SIZE - 1)) // PAGE_SIZE * PAGE_SIZE)
    token = tl.arange(0, TILE)
    done = start
    while done < edge:
        position = done + token
        tl.store(out + first_token + position - start, last + 1 + position - start, mask=position < edge)
        done += TILE
    if FAULT == "no early exit":
        # The rest is taken for a partial last page, counted back from the end.
        tail = end % PAGE_SIZE
        inside = token < tail
        page = tl.load(free_pages + first_page + tl.zeros_like(token), mask=inside & (end > start), other=0)
        slot = page * PAGE_SIZE + token
        tl.store(out + first_token + end - start - tail + token, slot, mask=inside & (end > start))
        done = edge
    else:
        done = edge
    past = end // PAGE_SIZE * PAGE_SIZE if FAULT == "no early exit" else end
    while done < past:
        position = done + token
        inside = position < past
        entry = first_page + (position - edge) // PAGE_SIZE
        if FAULT == "tile carry":
            entry = first_page + token // PAGE_SIZE
        page = tl.load(free_pages + entry, mask=inside, other=0)
        if FAULT == "32 bits":
            slot = page.to(tl.int32) * PAGE_SIZE + (position % PAGE_SIZE).to(tl.int32)
        else:
            slot = page * PAGE_SIZE + position % PAGE_SIZE
        tl.store(out + first_token + position - start, slot, mask=inside)
        if FAULT == "over-read":
            ahead = tl.load(free_pages + entry + 1, mask=inside, other=0)
            tl.store(out + first_token + position - start, slot + 0 * ahead, mask=inside)
        done += TILE


@jit
def serial_decode_kernel(
    seq_lens, last_loc, free_pages, out, PAGE_SIZE: tl.constexpr, LANES: tl.constexpr, FAULT: tl.constexpr
):
    me = tl.program_id(0)
    lane = tl.arange(0, LANES)
    lens = tl.load(seq_lens + lane, mask=lane < me, other=0)
    if FAULT == "page size 1":
        takes = (lens % PAGE_SIZE == 1) & (lane < me)
    else:
        takes = ((lens - 1) % PAGE_SIZE == 0) & (lane < me)
    rank = tl.sum(takes.to(tl.int32), 0)
    length = tl.load(seq_lens + me)
    if (length - 1) % PAGE_SIZE == 0:
        tl.store(out + me, tl.load(free_pages + rank) * PAGE_SIZE)
    else:
        tl.store(out + me, tl.load(last_loc + me) + 1)


@jit
def serial_write_kernel(
    req_to_token, row_stride, rows, starts, ends, pages,
    PAGE_SIZE: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    me = tl.program_id(0)
    lane = tl.arange(0, LANES)
    counted = tl.load(ends + lane, mask=lane < me, other=0)
    if FAULT != "start ignored":
        counted -= tl.load(starts + lane, mask=lane < me, other=0)
    first_page = tl.sum(counted, 0) // PAGE_SIZE
    start = tl.load(starts + me)
    end = tl.load(ends + me)
    row = req_to_token + tl.load(rows + me) * row_stride
    token = tl.arange(0, TILE)
    done = start
    while done < end:
        position = done + token
        inside = position < end
        entry = first_page + (position - start) // PAGE_SIZE
        if FAULT == "tile carry":
            entry = first_page + token // PAGE_SIZE
        page = tl.load(pages + entry, mask=inside, other=0)
        slot = page * PAGE_SIZE + position % PAGE_SIZE
        if FAULT == "first slot":
            slot = page * PAGE_SIZE
        if FAULT == "over-read":
            slot += 0 * tl.load(pages + entry + 1, mask=inside, other=0)
        if FAULT == "whole tile":
            inside = position < end + PAGE_SIZE
        tl.store(row + position, slot.to(tl.int32), mask=inside)
        done += TILE


@jit
def window_decode_kernel(
    req_to_token, row_stride, rows, lens, free_pages, out, batch, window_pages, window_map,
    PAGE_SIZE: tl.constexpr, HAS_WINDOW: tl.constexpr, TILE: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    taken = 0
    low = 0
    while low < batch:
        member = low + tl.arange(0, TILE)
        valid = member < batch
        length = tl.load(lens + member, mask=valid, other=0)
        row_end = req_to_token + tl.load(rows + member, mask=valid, other=0) * row_stride + length
        last = tl.load(row_end - 1, mask=valid & (length > 0), other=-1).to(tl.int64)
        takes = valid & (length % PAGE_SIZE == 0)
        in_tile = tl.cumsum(takes.to(tl.int32), 0) - 1
        page = tl.load(free_pages + taken + in_tile, mask=takes, other=0)
        slot = tl.where(takes, page * PAGE_SIZE, last + 1)
        tl.store(out + member, slot, mask=valid)
        tl.store(row_end, slot.to(tl.int32), mask=valid)
        if HAS_WINDOW:
            rank = in_tile if FAULT == "no earlier tiles" else taken + in_tile
            window_page = tl.load(window_pages + rank, mask=takes, other=0)
            if FAULT == "32 bits":
                window_page = window_page.to(tl.int32).to(tl.int64)
            if FAULT == "over-read":
                window_page += 0 * tl.load(window_pages + rank + 1, mask=takes, other=0)
            if FAULT == "one off":
                page -= 1
            if FAULT == "old pages":
                tl.store(window_map + slot // PAGE_SIZE, window_page, mask=valid)
            tl.store(window_map + page, window_page, mask=takes)
        taken += tl.sum(takes.to(tl.int32), 0)
        low += TILE


@jit
def take_kernel(window_map, pages, out, total, TILE: tl.constexpr, FAULT: tl.constexpr):
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    valid = entry < total
    page = tl.load(pages + (entry % TILE if FAULT == "tile carry" else entry), mask=valid, other=0)
    if FAULT == "over-read":
        page += 0 * tl.load(pages + entry + 1, mask=valid, other=0)
    # One operation that takes and clears: nothing comes between.
    if FAULT == "not cleared":
        window_page = tl.load(window_map + page, mask=valid, other=0)
    elif FAULT == "next one cleared":
        window_page = tl.load(window_map + page, mask=valid, other=0)
        tl.store(window_map + page + 1, tl.zeros_like(page), mask=valid)
    else:
        window_page = tl.atomic_xchg(window_map + page, tl.zeros_like(page), mask=valid)
    tl.store(out + entry, window_page, mask=valid)


def serial_extend(
    prefix: Any, seq: Any, last_loc: Any, free_pages: Any, page_size: int, out: Any, fault: str = "none"
) -> None:
    batch = len(prefix)
    serial_extend_kernel.launch(
        (batch,), prefix, seq, last_loc, free_pages, out, batch,
        PAGE_SIZE=page_size, LANES=lanes_of(batch, fault), TILE=128, FAULT=fault,
    )  # fmt: skip


def serial_decode(seq: Any, last_loc: Any, free_pages: Any, page_size: int, out: Any, fault: str = "none") -> None:
    serial_decode_kernel.launch(
        (len(seq),), seq, last_loc, free_pages, out,
        PAGE_SIZE=page_size, LANES=lanes_of(len(seq), fault), FAULT=fault,
    )  # fmt: skip


def serial_write(
    req_to_token: Any, rows: Any, start: Any, end: Any, pages: Any, page_size: int, fault: str = "none"
) -> None:
    there = [torch.from_numpy(values).to(req_to_token.device) for values in (rows, start, end)]
    serial_write_kernel.launch(
        (len(rows),), req_to_token, req_to_token.stride(0), *there, pages,
        PAGE_SIZE=page_size, LANES=lanes_of(len(rows), fault), TILE=128, FAULT=fault,
    )  # fmt: skip


def window_decode(
    req_to_token: Any, rows: Any, lens: Any, free_ids: Any, head: int, page_size: int,
    window: WindowPages | None = None, fault: str = "none",
) -> torch.Tensor:  # fmt: skip
    there = [torch.from_numpy(values).to(req_to_token.device) for values in (rows, lens)]
    out = torch.empty(len(rows), dtype=torch.int64, device=req_to_token.device)
    ids, window_head, window_map = window or (free_ids, head, free_ids)
    window_decode_kernel.launch(
        (1,), req_to_token, req_to_token.stride(0), *there, free_ids[head:], out, len(rows), ids[window_head:],
        window_map, PAGE_SIZE=page_size, HAS_WINDOW=window is not None, TILE=4, FAULT=fault,
    )  # fmt: skip
    return out


def take(window_map: Any, pages: Any, fault: str = "none") -> torch.Tensor:
    out = torch.empty_like(pages)
    if len(pages):
        tile = max(4, 1 << (len(pages) // 8).bit_length())
        take_kernel.launch((-(-len(pages) // tile),), window_map, pages, out, len(pages), TILE=tile, FAULT=fault)
    return out


def lanes_of(batch: int, fault: str) -> int:
    """The least power of two from `batch` up; the fault rounds down, which is the same where `batch` is one itself."""
    return 1 << (batch.bit_length() - 1 if fault == "scan" else (batch - 1).bit_length())


# A program for each request costs the interpreter 10 ms, and each power of two of the batch a GPU a compilation.
FEW: dict[str, Any] = {"examples": 60, "page_sizes": (1, 4, 128), "largest_batch": 17}

EXTEND_FAULTS = ["no early exit", "tile carry", "32 bits", "no default", "over-read"]
DECODE_FAULTS = ["page size 1", "scan"]
WRITE_FAULTS = ["start ignored", "tile carry", "first slot", "whole tile", "over-read"]
WINDOW_FAULTS = ["no earlier tiles", "one off", "old pages", "32 bits", "over-read"]
TAKE_FAULTS = ["not cleared", "next one cleared", "tile carry", "over-read"]

# A GPU does not miss a value that is not used, and its masked-off lanes may happen to read 0.
ONLY_INTERPRETED = ("over-read", "no default")


@pytest.mark.parametrize("fault", ["none", *EXTEND_FAULTS])
def test_extend(fault: str, device: str) -> None:
    look("alloc_extend", partial(serial_extend, fault=fault), fault, device)


@pytest.mark.parametrize("fault", ["none", *DECODE_FAULTS])
def test_decode(fault: str, device: str) -> None:
    look("alloc_decode", partial(serial_decode, fault=fault), fault, device)


@pytest.mark.parametrize("fault", ["none", *WRITE_FAULTS])
def test_write(fault: str, device: str) -> None:
    look("write_pages", partial(serial_write, fault=fault), fault, device)


@pytest.mark.parametrize("fault", ["none", *WINDOW_FAULTS])
def test_decode_with_a_window(fault: str, device: str) -> None:
    look("decode_rows", partial(window_decode, fault=fault), fault, device)


@pytest.mark.parametrize("fault", ["none", *TAKE_FAULTS])
def test_take(fault: str, device: str) -> None:
    look("take_window_pages", partial(take, fault=fault), fault, device)


def look(op: str, fn: Any, fault: str, device: str) -> None:
    if fault == "none" or (device != "interpret" and fault in ONLY_INTERPRETED):
        return check_kernel(op, fn, device, **FEW)
    begun = time.perf_counter()
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(op, fn, device, **FEW)
    assert time.perf_counter() - begun < 60
    assert len(caught.value.case.lens) <= (6 if fault in ("scan", "no earlier tiles") else 3), caught.value
    return None


def test_the_source_shows_the_missing_default() -> None:
    source = inspect.getsource(serial_extend_kernel.function)
    assert masked_loads_without_other(source) == ["line 9: tl.load(prefix_lens + lane, mask=lane < me)"]


class ChecksTooLate(PagedAllocator):
    """Launches first and counts afterwards (public bug SG-34399): the caller gets its error, the kernel its crash."""

    def require(self, pages: int, reclaimable: int = 0) -> None:
        self.short = pages > self.free_list.count

    def alloc_extend(self, *arguments: Any) -> torch.Tensor:
        out = super().alloc_extend(*arguments)
        if self.short:
            raise KVCacheOutOfMemory("full", 0, 0)
        return out


@pytest.mark.parametrize("allocator_of", [PagedAllocator, ChecksTooLate])
def test_a_check_after_the_launch(allocator_of: type[PagedAllocator], device: str) -> None:
    if device != "interpret":
        return  # A wall is the CPU's; the CPU's memory is what the interpreter works on.

    def short_extend(_: Any) -> str:
        allocator = allocator_of(3, 4, device, checked=False)
        allocator.free_list.ids = fenced(np.arange(1, 4), "cpu", walled=True).tensor
        last_loc = torch.full((2,), -1, device=tensor_device(device))
        with pytest.raises(KVCacheOutOfMemory):
            allocator.alloc_extend([0, 0], [4, 5000], last_loc)
        return "refused"

    if allocator_of is ChecksTooLate:
        with pytest.raises(Crashed, match="SIGSEGV"):
            in_child(short_extend)
    else:
        assert in_child(short_extend) == "refused"
