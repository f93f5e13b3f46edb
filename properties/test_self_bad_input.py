"""Every call that cannot be right: the exact error, argument and clause, and a state that is bit for bit the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvcore import (
    BadArgument,
    Batch,
    ContractError,
    DoubleFree,
    ForeignSlot,
    KVCacheConfig,
    KVCacheManager,
    KVCacheOutOfMemory,
    PagedAllocator,
    Req,
    RowOverflow,
    Speculation,
    StaleRow,
    alloc_for_decode,
    alloc_for_extend,
    alloc_for_spec_decode,
    assign_req_to_token_pool_func,
    commit,
    release_kv_cache,
    release_overallocated,
    retract,
    snapshot,
)

SIZES: dict[str, Any] = {
    "page_size": 4,
    "num_pages": 16,
    "max_requests": 4,
    "context_len": 20,
    "speculation": Speculation("eagle", steps=3, topk=1, draft_tokens=4),
}


class World:
    """A request settled mid-page, one at the context limit, one over-allocated, one released, and a new one."""

    def __init__(self, **changes: Any) -> None:
        self.manager = KVCacheManager(KVCacheConfig(**{**SIZES, **changes}))
        self.settled, self.longest, self.drafted, self.gone, self.new = (Req(n, range(20)) for n in "slDgn")
        _, self.stale = alloc_for_extend(self.manager, [self.gone], [3])
        release_kv_cache(self.manager, [self.gone], checkpoint=False)
        _, self.batch = alloc_for_extend(self.manager, [self.settled], [5])
        _, self.at_limit = alloc_for_extend(self.manager, [self.longest], [20])
        _, self.tail = alloc_for_extend(self.manager, [self.drafted], [15])
        if self.manager.config.speculation:
            alloc_for_spec_decode(self.manager, self.tail, 8)
        self.listed: Any = [self.drafted]
        self.elsewhere = KVCacheManager(KVCacheConfig(**SIZES))
        self.foreign = Req("f", range(20))
        _, self.foreign_batch = alloc_for_extend(self.elsewhere, [self.foreign], [5])


Call = Callable[[World], Any]


def extend(reqs: Callable[[World], Any], seq_lens: Any) -> Call:
    return lambda w: alloc_for_extend(w.manager, reqs(w), seq_lens)


def spec(batch: Callable[[World], Any], reserve: Any) -> Call:
    return lambda w: alloc_for_spec_decode(w.manager, batch(w), reserve)


def settle(batch: Callable[[World], Any], accepted: Any) -> Call:
    return lambda w: commit(w.manager, batch(w), accepted)


BAD: dict[str, tuple[type[ContractError], str, str, Call]] = {
    # extend
    "extend_nothing": (BadArgument, "KV-15", "reqs", extend(lambda w: [], [])),
    "extend_no_sequence": (BadArgument, "KV-15", "reqs", extend(lambda w: w.new, [1])),
    "extend_none": (BadArgument, "KV-15", "reqs", extend(lambda w: None, [1])),
    "extend_a_stranger": (BadArgument, "KV-15", "reqs", extend(lambda w: ["r"], [1])),
    "extend_twice": (BadArgument, "KV-15", "reqs", extend(lambda w: [w.new, w.new], [1, 1])),
    "extend_a_foreign_request": (StaleRow, "KV-15", "reqs", extend(lambda w: [w.foreign], [6])),
    "extend_over_a_tail": (BadArgument, "KV-15", "reqs", extend(lambda w: [w.drafted], [20])),
    "extend_too_few_lengths": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new, w.settled], [6])),
    "extend_too_many_lengths": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [6, 6])),
    "extend_by_a_float": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [6.0])),
    "extend_by_a_bool": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [True])),
    "extend_by_a_text": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], ["6"])),
    "extend_by_none": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], None)),
    "extend_by_a_number": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], 6)),
    "extend_by_a_nested_list": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [[6]])),
    "extend_by_a_ragged_list": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new, w.settled], [[6], [1, 2]])),
    "extend_by_a_tensor": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], torch.tensor([6]))),
    "extend_by_a_huge_number": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [2**80])),
    "extend_by_an_unsigned_wrap": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [2**63])),
    "extend_to_a_negative": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [-1])),
    "extend_new_to_zero": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new], [0])),
    "extend_below_allocated": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.settled], [4])),
    "extend_past_the_tokens": (
        BadArgument, "KV-15", "seq_lens", lambda w: alloc_for_extend(w.manager, [Req("t", [1, 2])], [3]),
    ),
    "extend_past_the_context": (
        RowOverflow, "KV-4", "seq_lens", lambda w: alloc_for_extend(w.manager, [Req("t", range(99))], [21]),
    ),
    "extend_one_good_one_bad": (BadArgument, "KV-15", "seq_lens", extend(lambda w: [w.new, w.settled], [8, 4])),
    # batch
    "batch_of_nothing": (BadArgument, "KV-15", "reqs", lambda w: Batch(w.manager, [])),
    "batch_without_a_row": (StaleRow, "KV-15", "reqs", lambda w: Batch(w.manager, [w.gone])),
    "batch_of_a_foreign_request": (StaleRow, "KV-15", "reqs", lambda w: Batch(w.manager, [w.foreign])),
    "batch_twice": (BadArgument, "KV-15", "reqs", lambda w: Batch(w.manager, [w.settled, w.settled])),
    # decode
    "decode_no_batch": (BadArgument, "KV-15", "batch", lambda w: alloc_for_decode(w.manager, [w.settled])),  # type: ignore[arg-type]
    "decode_a_stale_batch": (StaleRow, "KV-15", "batch", lambda w: alloc_for_decode(w.manager, w.stale)),
    "decode_a_foreign_batch": (StaleRow, "KV-15", "batch", lambda w: alloc_for_decode(w.manager, w.foreign_batch)),
    "decode_past_the_context": (RowOverflow, "KV-4", "batch", lambda w: alloc_for_decode(w.manager, w.at_limit)),
    "decode_over_a_tail": (BadArgument, "KV-15", "batch", lambda w: alloc_for_decode(w.manager, w.tail)),
    # spec decode
    "reserve_zero": (BadArgument, "KV-15", "reserve", spec(lambda w: w.batch, 0)),
    "reserve_negative": (BadArgument, "KV-15", "reserve", spec(lambda w: w.batch, -1)),
    "reserve_more_than_R": (BadArgument, "KV-15", "reserve", spec(lambda w: w.batch, 9)),
    "reserve_a_float": (BadArgument, "KV-15", "reserve", spec(lambda w: w.batch, 2.0)),
    "reserve_a_bool": (BadArgument, "KV-15", "reserve", spec(lambda w: w.batch, True)),
    "reserve_a_list": (BadArgument, "KV-15", "reserve", spec(lambda w: w.batch, [2])),
    "reserve_for_a_stale_batch": (StaleRow, "KV-15", "batch", spec(lambda w: w.stale, 2)),
    # commit
    "commit_too_many_counts": (BadArgument, "KV-15", "accepted", settle(lambda w: w.tail, [1, 1])),
    "commit_a_negative": (BadArgument, "KV-15", "accepted", settle(lambda w: w.tail, [-1])),
    "commit_past_allocated": (BadArgument, "KV-15", "accepted", settle(lambda w: w.tail, [10])),
    "commit_past_the_context": (RowOverflow, "KV-4", "accepted", settle(lambda w: w.tail, [6])),
    "commit_a_stale_batch": (StaleRow, "KV-15", "batch", settle(lambda w: w.stale, [0])),
    # taking back
    "trim_what_is_gone": (StaleRow, "KV-15", "reqs", lambda w: release_overallocated(w.manager, w.gone)),
    "trim_a_list": (BadArgument, "KV-15", "req", lambda w: release_overallocated(w.manager, w.listed)),
    "release_again": (DoubleFree, "KV-8", "reqs", lambda w: release_kv_cache(w.manager, [w.gone], checkpoint=True)),
    "release_never_extended": (
        DoubleFree, "KV-8", "reqs", lambda w: release_kv_cache(w.manager, [w.new], checkpoint=True),
    ),
    "release_one_of_two_gone": (
        DoubleFree, "KV-8", "reqs", lambda w: release_kv_cache(w.manager, [w.settled, w.gone], checkpoint=False),
    ),
    "release_twice_at_once": (
        BadArgument, "KV-15", "reqs", lambda w: release_kv_cache(w.manager, [w.settled, w.settled], checkpoint=False),
    ),
    "release_nothing": (BadArgument, "KV-15", "reqs", lambda w: release_kv_cache(w.manager, [], checkpoint=False)),
    "release_foreign": (
        StaleRow, "KV-15", "reqs", lambda w: release_kv_cache(w.manager, [w.foreign], checkpoint=False),
    ),
    "release_with_no_answer": (
        BadArgument, "KV-15", "checkpoint", lambda w: release_kv_cache(w.manager, [w.settled], checkpoint=None),  # type: ignore[arg-type]
    ),
    "retract_again": (DoubleFree, "KV-8", "reqs", lambda w: retract(w.manager, [w.gone])),
    "retract_nothing": (BadArgument, "KV-15", "reqs", lambda w: retract(w.manager, [])),
}  # fmt: skip


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("name", BAD)
def test_a_call_that_cannot_be_right_is_refused_and_changes_nothing(name: str, checked: bool) -> None:
    kind, clause, argument, call = BAD[name]
    world = World(checked=checked)
    before, other = snapshot(world.manager), snapshot(world.elsewhere)
    with pytest.raises(ContractError) as caught:
        call(world)
    assert (type(caught.value), caught.value.clause, caught.value.argument) == (kind, clause, argument)
    assert snapshot(world.manager) == before
    assert snapshot(world.elsewhere) == other


def test_a_reserve_without_speculation_is_refused() -> None:
    world = World(speculation=None)
    before = snapshot(world.manager)
    with pytest.raises(BadArgument) as caught:
        alloc_for_spec_decode(world.manager, world.batch, 1)
    assert (caught.value.clause, caught.value.argument) == ("KV-15", "reserve")
    assert snapshot(world.manager) == before


@pytest.mark.parametrize("short", ["rows", "full"])
def test_a_shortage_says_pool_need_free_and_changes_nothing(short: str) -> None:
    world = World()
    pages, reqs = (4, [world.new]) if short == "full" else (1, [world.new, Req("m", range(20))])
    before = snapshot(world.manager)
    with pytest.raises(KVCacheOutOfMemory) as caught:
        alloc_for_extend(world.manager, reqs, [4 * pages] * len(reqs))
    need, free = {"rows": (2, 1), "full": (4, 3)}[short]
    error = caught.value
    assert (error.pool, error.need, error.free, error.reclaimable) == (short, need, free, 0)
    assert snapshot(world.manager) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("page_size", 3), ("page_size", 256), ("page_size", 0), ("page_size", True), ("page_size", "4"),
        ("num_pages", 0), ("num_pages", -1), ("num_pages", 2**31), ("num_pages", 1.0),
        ("max_requests", 0), ("context_len", 0), ("device", "tpu"), ("speculation", "eagle"), ("checked", "yes"),
        ("prefix_cache", "radix"), ("need_sort", True), ("window", 4096), ("hisparse", object()),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(ContractError) as caught:
        KVCacheConfig(**{**SIZES, field: value})
    assert (caught.value.clause, caught.value.argument) == ("KV-15", field)


@pytest.mark.parametrize("field", ["steps", "topk", "draft_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None, True])
def test_a_draft_of_no_size_is_refused(field: str, value: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        Speculation(**{"algorithm": "eagle", "steps": 1, "topk": 1, "draft_tokens": 1, field: value})
    assert caught.value.argument == field


# The slot allocator: S-12, S-13 and S-15 of the public reports, as far as the operation exists.


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


def test_a_record_can_be_read_and_not_written() -> None:
    world = World()
    view = world.settled.kv
    assert (view.kv_committed_len, view.kv_allocated_len, view.holds_kv) == (5, 5, True)
    for name in ("kv_allocated_len", "kv_committed_len", "req_pool_idx", "anything"):
        with pytest.raises(AttributeError):
            setattr(view, name, 1)
    with pytest.raises(AttributeError):
        world.settled.kv = view  # type: ignore[misc]
    records = world.manager.req_to_token_pool.records
    for array in (records.table, records.allocated, records.committed):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        world.batch.rows[0] = 2
    unbound = world.gone.kv
    assert unbound.req_pool_idx is None
    assert (unbound.kv_committed_len, unbound.kv_allocated_len, unbound.holds_kv) == (0, 0, False)
