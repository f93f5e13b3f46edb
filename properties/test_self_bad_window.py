"""Windows, free groups and leases: every call that cannot be right is refused by name and changes nothing."""

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
    KVCacheConfig,
    KVCacheManager,
    Req,
    RowOverflow,
    Speculation,
    StaleRow,
    Window,
    alloc_for_decode,
    alloc_for_decode_prealloc,
    alloc_for_extend,
    alloc_for_spec_decode,
    begin_lease,
    evict_window,
    late_result,
    release_kv_cache,
    retire,
    snapshot,
)

SIZES: dict[str, Any] = {
    "page_size": 4,
    "num_pages": 20,
    "max_requests": 5,
    "context_len": 20,
    "speculation": Speculation("dflash", 1, 1, 4),
    "window": Window(4, 20),
}


class World:
    """A running request and an over-allocated one under a lease, one with a hole, one gone; a lease that is retired,
    and another manager with a request and a lease."""

    def __init__(self, **changes: Any) -> None:
        self.manager = KVCacheManager(KVCacheConfig(**SIZES | changes))
        self.running, self.drafted, self.waiting, self.gone, self.new = (Req(n, range(20)) for n in "rdwgn")
        _, self.stale = alloc_for_extend(self.manager, [self.gone], [9])
        self.over = begin_lease(self.manager, self.stale)
        retire(self.manager, self.over)
        release_kv_cache(self.manager, [self.gone], checkpoint=False)
        _, self.batch = alloc_for_extend(self.manager, [self.running, self.drafted], [5, 14])
        alloc_for_spec_decode(self.manager, Batch(self.manager, [self.drafted]), 8)
        alloc_for_decode_prealloc(self.manager, self.waiting, fill_len=9, total_prefix_len=8)
        self.hole = Batch(self.manager, [self.waiting])
        self.lease = begin_lease(self.manager, self.batch)
        self.elsewhere = KVCacheManager(KVCacheConfig(**SIZES | changes))
        self.foreign = Req("f", range(20))
        _, self.foreign_batch = alloc_for_extend(self.elsewhere, [self.foreign], [5])
        self.foreign_lease = begin_lease(self.elsewhere, self.foreign_batch)


Call = Callable[[World], Any]


def lease_of(batch: Callable[[World], Any]) -> Call:
    return lambda w: begin_lease(w.manager, batch(w))


def slide(batch: Callable[[World], Any]) -> Call:
    return lambda w: evict_window(w.manager, batch(w))


def ended(lease: Callable[[World], Any]) -> Call:
    return lambda w: retire(w.manager, lease(w))


def late(accepted: Any, lease: Callable[[World], Any] = lambda w: w.lease) -> Call:
    return lambda w: late_result(w.manager, lease(w), accepted)


def tail(tokens: Any, fill_len: int = 10) -> Call:
    return lambda w: alloc_for_decode_prealloc(w.manager, w.new, fill_len=fill_len, swa_tail_len=tokens)


BAD: dict[str, tuple[type[ContractError], str, str, Call]] = {
    # leases
    "lease_a_list": (BadArgument, "KV-15", "batch", lease_of(lambda w: [w.running])),
    "lease_a_request": (BadArgument, "KV-15", "batch", lease_of(lambda w: w.running)),
    "lease_none": (BadArgument, "KV-15", "batch", lease_of(lambda w: None)),
    "lease_a_stale_batch": (StaleRow, "KV-15", "batch", lease_of(lambda w: w.stale)),
    "lease_a_foreign_batch": (StaleRow, "KV-15", "batch", lease_of(lambda w: w.foreign_batch)),
    "retire_none": (BadArgument, "KV-15", "lease", ended(lambda w: None)),
    "retire_a_batch": (BadArgument, "KV-15", "lease", ended(lambda w: w.batch)),
    "retire_a_foreign_lease": (BadArgument, "KV-15", "lease", ended(lambda w: w.foreign_lease)),
    "retire_again": (DoubleFree, "KV-16", "lease", ended(lambda w: w.over)),
    "late_for_none": (BadArgument, "KV-15", "lease", late([0, 0], lambda w: None)),
    "late_for_a_batch": (BadArgument, "KV-15", "lease", late([0, 0], lambda w: w.batch)),
    "late_for_a_foreign_lease": (BadArgument, "KV-15", "lease", late([0], lambda w: w.foreign_lease)),
    "late_for_a_retired_lease": (BadArgument, "KV-16", "lease", late([0], lambda w: w.over)),
    "late_too_few": (BadArgument, "KV-15", "accepted", late([0])),
    "late_too_many_counts": (BadArgument, "KV-15", "accepted", late([0, 0, 0])),
    "late_none": (BadArgument, "KV-15", "accepted", late(None)),
    "late_a_number": (BadArgument, "KV-15", "accepted", late(1)),
    "late_a_float": (BadArgument, "KV-15", "accepted", late([0, 1.0])),
    "late_a_bool": (BadArgument, "KV-15", "accepted", late([False, True])),
    "late_a_tensor": (BadArgument, "KV-15", "accepted", late(torch.tensor([0, 0]))),
    "late_a_negative": (BadArgument, "KV-15", "accepted", late([0, -1])),
    "late_past_allocated": (BadArgument, "KV-15", "accepted", late([1, 1])),
    "late_past_the_context": (RowOverflow, "KV-4", "accepted", late([0, 7])),
    # windows
    "slide_a_list": (BadArgument, "KV-15", "batch", slide(lambda w: [w.running])),
    "slide_none": (BadArgument, "KV-15", "batch", slide(lambda w: None)),
    "slide_a_stale_batch": (StaleRow, "KV-15", "batch", slide(lambda w: w.stale)),
    "slide_a_foreign_batch": (StaleRow, "KV-15", "batch", slide(lambda w: w.foreign_batch)),
    "slide_over_a_hole": (BadArgument, "KV-15", "batch", slide(lambda w: w.hole)),
    "tail_inside_a_page": (BadArgument, "KV-15", "swa_tail_len", tail(3)),
    "tail_past_the_fill": (BadArgument, "KV-15", "swa_tail_len", tail(12)),
    "tail_negative": (BadArgument, "KV-15", "swa_tail_len", tail(-2)),
    "tail_a_float": (BadArgument, "KV-15", "swa_tail_len", tail(2.0)),
    "tail_a_bool": (BadArgument, "KV-15", "swa_tail_len", tail(True, 9)),
    "tail_a_list": (BadArgument, "KV-15", "swa_tail_len", tail([2])),
    "tail_of_nothing_that_ends_inside_a_page": (BadArgument, "KV-15", "swa_tail_len", tail(0)),
    # free groups
    "group_end_without_a_begin": (BadArgument, "KV-11", "free_group", lambda w: w.manager.free_group_end()),
}  # fmt: skip

CHANGES: list[dict[str, Any]] = [
    {"checked": True}, {"checked": False}, {"prefix_cache": "radix"}, {"need_sort": True},
]  # fmt: skip


def refused(world: World, expected: tuple[type[ContractError], str, str], call: Call) -> None:
    before, other = snapshot(world.manager), snapshot(world.elsewhere)
    leases = list(world.manager.leases.active)
    with pytest.raises(ContractError) as caught:
        call(world)
    assert (type(caught.value), caught.value.clause, caught.value.argument) == expected
    assert snapshot(world.manager) == before
    assert snapshot(world.elsewhere) == other
    assert world.manager.leases.active == leases
    assert [lease.active for lease in (world.lease, world.foreign_lease)] == [True, True]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("name", BAD)
def test_a_call_that_cannot_be_right_is_refused_and_changes_nothing(name: str, changes: dict[str, Any]) -> None:
    *expected, call = BAD[name]
    world = World(**changes)
    refused(world, tuple(expected), call)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_second_group_is_refused_and_the_first_goes_on(changes: dict[str, Any]) -> None:
    world = World(**changes)
    world.manager.free_group_begin()
    release_kv_cache(world.manager, [world.waiting], checkpoint=False)
    refused(world, (BadArgument, "KV-11", "free_group"), lambda w: w.manager.free_group_begin())
    world.manager.free_group_end()
    refused(world, (BadArgument, "KV-11", "free_group"), lambda w: w.manager.free_group_end())


@pytest.mark.parametrize("window", [None, Window(4, kind="pure"), Window(4, kind="ring")])
def test_a_tail_is_refused_where_there_is_no_pool_for_it(window: Window | None) -> None:
    refused(World(window=window), (BadArgument, "KV-15", "swa_tail_len"), tail(2))


@pytest.mark.parametrize("field", ["size", "num_pages", "interval", "floor"])
@pytest.mark.parametrize("value", [-1, 1.0, True, None, "4"])
def test_a_window_of_no_size_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        Window(**{"size": 4, "num_pages": 8, field: value})
    assert (caught.value.clause, caught.value.argument) == ("KV-15", field)


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"size": 0, "num_pages": 8}, "size"), ({"size": 4}, "num_pages"), ({"size": 4, "num_pages": 0}, "num_pages"),
        ({"size": 4, "num_pages": 8, "kind": "swa"}, "kind"), ({"size": 4, "num_pages": 8, "kind": None}, "kind"),
        ({"size": 4, "num_pages": 8, "kind": "pure"}, "num_pages"),
        ({"size": 4, "num_pages": 1, "kind": "ring"}, "num_pages"),
    ],
)  # fmt: skip
def test_a_window_that_does_not_fit_its_kind_is_refused_by_field(fields: dict[str, Any], argument: str) -> None:
    with pytest.raises(BadArgument) as caught:
        Window(**fields)
    assert (caught.value.clause, caught.value.argument) == ("KV-15", argument)


@pytest.mark.parametrize("window", [4096, "pool", (4, 8), Window(4, 2**31), object()])
def test_what_is_no_window_is_refused_by_the_configuration(window: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        KVCacheConfig(**SIZES | {"window": window})
    assert (caught.value.clause, caught.value.argument) == ("KV-15", "window")


def test_after_every_refusal_the_calls_that_are_right_go_through() -> None:
    world = World()
    for name in BAD:
        *expected, call = BAD[name]
        refused(world, tuple(expected), call)  # type: ignore[arg-type]
    assert late_result(world.manager, world.lease, [0, 1]).tolist() == [True, True]
    assert world.drafted.kv.kv_committed_len == 15
    evict_window(world.manager, world.batch)
    retire(world.manager, world.lease)
    alloc_for_decode(world.manager, Batch(world.manager, [world.running]))
    release_kv_cache(world.manager, [world.running, world.drafted, world.waiting], checkpoint=False)
    assert [len(pool.free) for pool in snapshot(world.manager).pools.values()] == [20, 20]
