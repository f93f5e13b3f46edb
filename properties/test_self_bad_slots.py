"""Slot calls that cannot be right: S-12, S-13 and S-15 of the public reports, as far as the operation exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvcore import (
    BadArgument,
    ContractError,
    DoubleFree,
    ForeignSlot,
    PagedAllocator,
    RowOverflow,
    assign_req_to_token_pool_func,
)


def slots(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


FOUR: Any = 4.0

SLOT_BAD: dict[str, tuple[type[ContractError], str, str, Callable[[PagedAllocator], Any]]] = {
    "alloc_no_page_multiple": (BadArgument, "KV-15", "need_size", lambda a: a.alloc(5)),
    "alloc_less_than_a_page": (BadArgument, "KV-15", "need_size", lambda a: a.alloc(3)),
    "alloc_a_negative": (BadArgument, "KV-15", "need_size", lambda a: a.alloc(-4)),
    "alloc_a_float": (BadArgument, "KV-15", "need_size", lambda a: a.alloc(FOUR)),
    "extend_lengths_disagree": (BadArgument, "KV-15", "seq_lens", lambda a: a.alloc_extend([0], [4, 4], slots(-1))),
    "extend_last_slots_disagree": (BadArgument, "KV-15", "last_loc", lambda a: a.alloc_extend([0], [4], slots())),
    "extend_below_the_prefix": (BadArgument, "KV-15", "seq_lens", lambda a: a.alloc_extend([4], [3], slots(7))),
    "extend_device_lengths": (BadArgument, "KV-15", "seq_lens", lambda a: a.alloc_extend([0], slots(4), slots(-1))),
    "decode_to_zero": (BadArgument, "KV-15", "seq_lens", lambda a: a.alloc_decode([0], slots(-1))),
    "free_no_tensor": (BadArgument, "KV-15", "slots", lambda a: a.free([4, 5])),  # type: ignore[arg-type]
    "free_floats": (BadArgument, "KV-15", "slots", lambda a: a.free(torch.tensor([4.0]))),
    "free_a_matrix": (BadArgument, "KV-15", "slots", lambda a: a.free(torch.ones(2, 2, dtype=torch.int64))),
    "segment_from_mid_page": (BadArgument, "KV-15", "start_pos", lambda a: a.free_segment(slots(5, 6), 1)),
    "segment_from_a_float": (BadArgument, "KV-15", "start_pos", lambda a: a.free_segment(slots(4, 5, 6, 7), FOUR)),
    "segment_from_a_negative": (BadArgument, "KV-15", "start_pos", lambda a: a.free_segment(slots(4, 5, 6, 7), -4)),
}  # fmt: skip

SLOT_BAD_BY_VALUE: dict[str, tuple[type[ContractError], str, str, Callable[[PagedAllocator], Any]]] = {
    "free_the_padding_slot": (ForeignSlot, "KV-2", "slots", lambda a: a.free(slots(0))),
    "free_zeros_and_a_negative": (ForeignSlot, "KV-2", "slots", lambda a: a.free(slots(0, 0, -1))),
    "free_a_negative": (ForeignSlot, "KV-15", "slots", lambda a: a.free(slots(-1))),
    "free_out_of_range": (ForeignSlot, "KV-15", "slots", lambda a: a.free(slots(99))),
    "free_what_is_free": (DoubleFree, "KV-8", "slots", lambda a: a.free(slots(28, 29, 30, 31))),
    "free_a_page_in_pieces": (BadArgument, "KV-15", "slots", lambda a: a.free(slots(4))),
    "free_a_slot_twice": (BadArgument, "KV-15", "slots", lambda a: a.free(slots(4, 5, 6, 7, 7))),
    "free_a_slot_not_handed_out": (ForeignSlot, "KV-15", "slots", lambda a: a.free(slots(8, 9, 10))),
    "segment_over_a_gap": (BadArgument, "KV-15", "slots", lambda a: a.free_segment(slots(4, 6, 5, 7), 0)),
    "segment_in_pieces": (BadArgument, "KV-15", "slots", lambda a: a.free_segment(slots(4, 5), 0)),
    "give_back_what_is_free": (DoubleFree, "KV-8", "pages", lambda a: a.give_back(slots(1, 7))),
    "give_back_a_page_twice": (DoubleFree, "KV-8", "pages", lambda a: a.give_back(slots(1, 1))),
    "extend_without_its_last_slot": (BadArgument, "KV-15", "last_loc", lambda a: a.alloc_extend([6], [8], slots(-1))),
    "extend_from_the_wrong_offset": (
        BadArgument, "KV-15", "last_loc", lambda a: a.alloc_extend([6], [8], slots(8)),
    ),
    "extend_from_a_free_page": (ForeignSlot, "KV-15", "last_loc", lambda a: a.alloc_extend([2], [3], slots(29))),
    "extend_a_last_slot_for_nothing": (BadArgument, "KV-15", "last_loc", lambda a: a.alloc_extend([0], [3], slots(4))),
    "decode_two_on_one_page": (BadArgument, "KV-15", "last_loc", lambda a: a.alloc_decode([7, 7], slots(9, 9))),
}  # fmt: skip


def held_allocator(checked: bool) -> PagedAllocator:
    """Eight pages of 4; a request of 6 tokens holds slots 4..9."""
    allocator = PagedAllocator(num_pages=8, page_size=4, checked=checked)
    assert allocator.alloc_extend([0], [6], slots(-1)).tolist() == [4, 5, 6, 7, 8, 9]
    return allocator


# What only values can tell is asked of checked mode alone.
@pytest.mark.parametrize(
    ("name", "checked"),
    [*((n, True) for n in (SLOT_BAD | SLOT_BAD_BY_VALUE)), *((n, False) for n in SLOT_BAD)],
)
def test_a_bad_slot_call_is_refused_and_changes_nothing(name: str, checked: bool) -> None:
    kind, clause, argument, call = {**SLOT_BAD, **SLOT_BAD_BY_VALUE}[name]
    allocator = held_allocator(checked)
    before = allocator.free_list.ids.clone(), allocator.free_list.head
    with pytest.raises(ContractError) as caught:
        call(allocator)
    assert (type(caught.value), caught.value.clause, caught.value.argument) == (kind, clause, argument)
    assert torch.equal(allocator.free_list.ids, before[0])
    assert allocator.free_list.head == before[1]
    # And it goes on as if nothing had been said.
    assert allocator.alloc_decode([7], slots(9)).tolist() == [10]


def test_a_second_free_is_refused_without_checked_mode_once_more_comes_back_than_is_out() -> None:
    allocator = PagedAllocator(num_pages=2, page_size=4, checked=False)
    held = allocator.alloc(4)
    allocator.free(held)
    with pytest.raises(DoubleFree):
        allocator.free(held)
    assert allocator.available_size() == 8


def test_lengths_are_given_once_so_no_copy_can_disagree() -> None:
    """S-15: a device length of 12 beside a host length of 4 took three pages and booked one. Here is one length."""
    allocator = PagedAllocator(num_pages=8, page_size=4)
    first = allocator.alloc_extend([0], [12], slots(-1))
    second = allocator.alloc_extend([0], [12], slots(-1))
    assert not set(first.tolist()) & set(second.tolist())
    assert allocator.available_size() == (8 - 6) * 4


def test_the_row_write_refuses_lengths_that_disagree() -> None:
    table = torch.zeros(3, 8, dtype=torch.int32)

    def write(rows: Any, start: Any, end: Any, out: Any, count: Any) -> None:
        assign_req_to_token_pool_func(torch.tensor(rows), table, torch.tensor(start), torch.tensor(end), out, count)

    calls: dict[str, Callable[[], None]] = {
        "start_offset": lambda: write([1], [0, 0], [2], slots(4, 5), 1),
        "end_offset": lambda: write([1], [2], [0], slots(), 1),
        "out_cache_loc": lambda: write([1], [0], [2], slots(4), 1),
        "req_pool_indices": lambda: write([3], [0], [2], slots(4, 5), 1),
        "batch_size": lambda: write([1], [0], [2], slots(4, 5), -1),
    }
    for argument, call in calls.items():
        with pytest.raises(ContractError) as caught:
            call()
        assert caught.value.argument == argument
    with pytest.raises(RowOverflow):
        write([1], [0], [9], slots(*range(9)), 1)
    assert not table.any()
    write([1, 2], [0, 3], [2, 4], slots(4, 5, 9), 2)
    assert table.tolist() == [[0] * 8, [4, 5] + [0] * 6, [0, 0, 0, 9] + [0] * 4]
