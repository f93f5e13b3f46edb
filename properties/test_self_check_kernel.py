"""check_kernel on functions that are known to be right, and on ones that are wrong in known ways."""

from __future__ import annotations

import ctypes
import os
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ..kernels.dispatch import OPERATIONS, CpuKernels
from ..kernels.window import WindowPages
from . import KernelMismatch, check_kernel
from .cases import CANARY, Case, State
from .check_kernel import smallest
from .fences import Crashed, fenced, in_child
from .lanes import lane_function


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_references_pass(op: str) -> None:
    check_kernel(op, lane_function(op, "cpu", Case(1, ((0, 1),))), examples=30)


def extend(prefix: Any, seq: Any, last_loc: Any, free_pages: Any, page_size: int, out: Any, fault: str = "") -> None:
    """alloc_extend as it is written by hand for one request after the other: three parts, with the bugs one makes."""
    at, taken, entries = 0, 0, free_pages.tolist()
    for number, (begin, end, last) in enumerate(zip(*(t.tolist() for t in (prefix, seq, last_loc)), strict=True)):
        if fault == "carry" and number % 4 == 0:
            taken = max(taken - 1, 0)
        old = min(end, -(-begin // page_size) * page_size) - begin
        out[at : at + old] = torch.arange(last + 1, last + 1 + old)
        at += old
        if begin + old == end and fault != "no early exit":
            continue
        whole = max(end // page_size - -(-begin // page_size), 0)
        tail = end % page_size
        pages = entries[taken : taken + whole + (tail > 0)]
        taken += len(pages)
        if fault == "32 bits":
            pages = np.array(pages, dtype=np.int32)
            slots = (pages[:, None] * np.int32(page_size) + np.arange(page_size, dtype=np.int32)).ravel()
        else:
            slots = np.array([page * page_size + i for page in pages for i in range(page_size)], dtype=np.int64)
        new = torch.from_numpy(slots[: whole * page_size + tail].astype(np.int64))
        if fault == "no early exit":
            new = new[: len(out) - at]
        out[at : at + len(new)] = new
        at += end - begin - old
    if fault == "over-read":
        ctypes.c_int64.from_address(free_pages.data_ptr() + 8 * len(free_pages)).value  # noqa: B018


def decode(seq: Any, last_loc: Any, free_pages: Any, page_size: int, out: Any, fault: str = "") -> None:
    takes = seq % page_size == (1 if fault == "page size 1" else 1 % page_size)
    rank = torch.cumsum(takes, 0) - 1
    if fault == "scan" and (len(seq) & (len(seq) - 1)):
        rank[-1] -= 1
    out[:] = last_loc + 1
    out[takes] = free_pages[rank.clamp(0)[takes]] * page_size


@pytest.mark.parametrize("fault", ["no early exit", "over-read", "carry", "32 bits"])
def test_a_fault_of_extend_is_found(fault: str) -> None:
    check_kernel("alloc_extend", extend)
    begun = time.perf_counter()
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("alloc_extend", partial(extend, fault=fault))
    assert time.perf_counter() - begun < 30
    assert len(caught.value.case.lens) <= 5, caught.value


@pytest.mark.parametrize("fault", ["page size 1", "scan"])
def test_a_fault_of_decode_is_found(fault: str) -> None:
    check_kernel("alloc_decode", decode)
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("alloc_decode", partial(decode, fault=fault))
    assert len(caught.value.case.lens) <= 3, caught.value


def write(table: Any, rows: Any, start: Any, end: Any, pages: Any, page_size: int, fault: str = "") -> None:
    """write_pages as it is written by hand for one request after the other, with the bugs one makes."""
    at = 0
    for row, begin, past in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        count = (past - begin) // page_size
        mine = pages[at : at + count] if fault != "no carry" else pages[:count]
        if fault == "page 0 of the row":
            begin, past = 0, past - begin
        slots = mine[:, None] * page_size + torch.arange(page_size)
        table[row, begin:past] = slots.flatten().int()
        at += count


@pytest.mark.parametrize("fault", ["no carry", "page 0 of the row"])
def test_a_fault_of_write_pages_is_found(fault: str) -> None:
    check_kernel("write_pages", write)
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("write_pages", partial(write, fault=fault))
    assert len(caught.value.case.lens) <= 2, caught.value


def take(window_map: Any, pages: Any, fault: str = "") -> Any:
    taken = window_map[pages + (1 if fault == "one off" else 0)]
    if fault != "not cleared":
        window_map[0 if fault == "clears page 0" else pages] = 0
    return taken


@pytest.mark.parametrize("fault", ["not cleared", "one off", "clears page 0"])
def test_a_fault_of_take_window_pages_is_found(fault: str) -> None:
    check_kernel("take_window_pages", take)
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("take_window_pages", partial(take, fault=fault))
    assert len(caught.value.case.lens) == 1, caught.value


def extend_with_window(*call: Any, window: WindowPages | None = None, fault: str = "") -> torch.Tensor:
    """extend_rows of two steps, the window's by hand, with the bugs one makes."""
    out = CpuKernels().extend_rows(*call)
    if window:
        page_size, (ids, head, window_map) = call[-1], window
        new = out[out % page_size == 0] // page_size
        if fault == "head ignored":
            head = 0
        if fault == "whole pages only":
            new = new[[bool((out == page * page_size + page_size - 1).any()) for page in new]]
        if fault == "counted from the end":
            new = new.flip(0)
        window_map[new] = ids[head : head + len(new)]
        if fault == "page 0":
            window_map[0] = 1
        if fault == "writes the list":
            ids[head : head + len(new)] = 0
    return out


@pytest.mark.parametrize(
    "fault", ["head ignored", "whole pages only", "counted from the end", "page 0", "writes the list"]
)
def test_a_fault_of_the_window_is_found(fault: str) -> None:
    check_kernel("extend_rows", extend_with_window)
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("extend_rows", partial(extend_with_window, fault=fault))
    assert caught.value.case.window is not None
    assert len(caught.value.case.lens) <= 2, caught.value


def test_a_function_that_takes_no_window_is_given_none() -> None:
    def without(*call: Any) -> torch.Tensor:
        return CpuKernels().extend_rows(*call)

    def deaf(*call: Any, window: WindowPages | None = None) -> torch.Tensor:
        return CpuKernels().extend_rows(*call)

    check_kernel("extend_rows", without)
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("extend_rows", deaf)
    assert caught.value.wrong == "window_map[1] is 0, expected 4097"
    assert str(caught.value).splitlines()[2:] == [
        "extend_rows(",
        "    req_to_token = {}  # int32[4, 3], by row; the other entries are unused,",
        "    rows = [1]  # int64,",
        "    start = [0]  # int64,",
        "    end = [1]  # int64,",
        "    free_ids = [1]  # int64,",
        "    head = 0,",
        "    page_size = 1,",
        "    window.ids = [4097]  # int64,",
        "    window.head = 0,",
        "    window.map = {}  # int64[2], the other entries are 0,",
        ")",
        "expected: [1]  # int64",
        "and the map then: {1: 4097}  # int64[2], the other entries are 0",
        "",
        "REPRO: Case(page_size=1, members=((0, 1),), batch=None, top=None, order=0, head=0, lens_dtype='int64', gap=0, "
        "tile=None, window=0)",
    ]


def test_a_counterexample_reads_as_a_call() -> None:
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("alloc_decode", partial(decode, fault="page size 1"))
    assert str(caught.value).splitlines() == [
        "alloc_decode, device cpu: out[0] is 0, expected 1",
        "",
        "alloc_decode(",
        "    seq_lens = [1]  # int64,",
        "    last_loc = [-1]  # int64,",
        "    free_pages = [1]  # int64,",
        "    page_size = 1,",
        ")",
        "expected: [1]  # int64",
        "",
        "REPRO: Case(page_size=1, members=((0, 0),), batch=None, top=None, order=0, head=0, lens_dtype='int64', gap=0, "
        "tile=None, window=None)",
    ]


def right(table: Any, rows: Any, start: Any, end: Any, ids: Any, head: int, page_size: int) -> torch.Tensor:
    return CpuKernels().extend_rows(table, rows, start, end, ids, head, page_size)


def and_then(change: Any) -> Any:
    """extend_rows as it should be, and a write where it should not."""

    def fn(table: Any, rows: Any, start: Any, end: Any, ids: Any, head: int, page_size: int) -> torch.Tensor:
        out = right(table, rows, start, end, ids, head, page_size)
        change(table, ids)
        return out

    return fn


WRONG: dict[str, tuple[Any, str]] = {
    "returns nothing": (lambda *a: None, "returns None, which is no tensor"),
    "returns too few": (lambda *a: right(*a)[1:], "returns torch.int64["),
    "returns int32": (lambda *a: right(*a).int(), "returns torch.int32["),
    "returns rubbish": (lambda *a: torch.full_like(right(*a), 7), " is 7, expected "),
    "raises": (lambda *a: 1 // 0, "raises ZeroDivisionError"),
    "dies": (lambda *a: os.kill(os.getpid(), 9), "ends the process (SIGKILL)"),
    "writes another row": (and_then(lambda table, ids: table[0].fill_(3)), "req_to_token[0, 0] is 3"),
    "writes the list": (and_then(lambda table, ids: ids.fill_(3)), "changes its input free_ids"),
    "writes beside it": (and_then(lambda table, ids: ids.as_strided((8,), (1,), 0).fill_(0)), "outside of free_ids"),
}


@pytest.mark.parametrize("what", WRONG)
def test_it_says_what_is_wrong(what: str) -> None:
    fn, message = WRONG[what]
    with pytest.raises(KernelMismatch) as caught:
        check_kernel("extend_rows", fn, examples=20)
    assert message in caught.value.wrong


def test_an_operation_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="known are get_last_loc, alloc_extend"):
        check_kernel("extend", print)


def test_the_smallest_case_is_smallest() -> None:
    start = Case(16, ((40, 7), (3, 3), (9, 100)), batch=77, top=2**20, order=6, head=4, lens_dtype="int32", gap=3)
    found = smallest(start, lambda case: len(case.lens) >= 3 and int(case.lens[:, 1].max()) >= 5)
    assert found == Case(1, ((0, 0), (0, 0), (0, 5))) or sorted(found.members) == [(0, 0), (0, 0), (0, 5)]


def test_a_state_is_one_that_an_allocator_can_reach() -> None:
    for order in range(4):
        state = State(Case(4, ((5, 9), (0, 3), (8, 0)), batch=11, top=2**20, order=order))
        table = state.table()
        pages = [state.free_pages]
        for row, length in zip(state.rows, state.start, strict=True):
            slots = table[row, :length].astype(np.int64)
            assert (slots % 4 == np.arange(length) % 4).all()
            pages.append(slots[::4] // 4)
            assert (table[row, length:] == CANARY).all()
        every = np.concatenate(pages)
        assert len(np.unique(every)) == len(every)
        assert (every.min(), every.max()) == (2**20 - len(every) + 1, 2**20)
        assert len(set(state.rows)) == 11
        assert 0 not in state.rows


def test_a_walled_tensor_ends_at_a_wall() -> None:
    for values in (np.arange(5), np.arange(0), np.arange(1024), np.arange(6, dtype=np.int32).reshape(2, 3)):
        fence = fenced(values, "cpu", walled=True, gap=2)
        assert (fence.values() == values).all()
        assert fence.intact
        past = fence.storage.data_ptr() + fence.storage.nbytes

        def read(step: Any, past: int = past) -> int:
            step(7)
            return int(ctypes.c_int8.from_address(past).value)

        with pytest.raises(Crashed, match="SIGSEGV") as caught:
            in_child(read)
        assert caught.value.step == 7


def test_a_fence_tells_of_a_write_beside_the_tensor() -> None:
    for walled in (False, True):
        fence = fenced(np.arange(6).reshape(2, 3), "cpu", walled=walled, gap=1)
        for offset in (0, 7, 11) + (() if walled else (15, 22)):
            before = fence.storage[offset].clone()
            fence.storage[offset] = 1
            assert not fence.intact, offset
            fence.storage[offset] = before
            assert fence.intact
