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
    KVCacheConfig,
    KVCacheManager,
    KVCacheOutOfMemory,
    Req,
    RowOverflow,
    Speculation,
    StaleRow,
    alloc_for_decode,
    alloc_for_decode_prealloc,
    alloc_for_extend,
    alloc_for_spec_decode,
    checkpoint_kv_cache,
    commit,
    evict_from_tree_cache,
    fill_hole,
    peek_prefix,
    release_kv_cache,
    release_overallocated,
    retract,
    snapshot,
)

SIZES: dict[str, Any] = {
    "page_size": 4,
    "num_pages": 17,
    "max_requests": 5,
    "context_len": 20,
    "speculation": Speculation("eagle", steps=3, topk=1, draft_tokens=4),
}


class World:
    """A request settled mid-page, one at the context limit, one over-allocated, one that waits for its prefix, one
    released, and a new one."""

    def __init__(self, **changes: Any) -> None:
        self.manager = KVCacheManager(KVCacheConfig(**{**SIZES, **changes}))
        self.settled, self.longest, self.drafted, self.gone, self.new = (Req(n, range(20)) for n in "slDgn")
        _, self.stale = alloc_for_extend(self.manager, [self.gone], [9])
        release_kv_cache(self.manager, [self.gone], checkpoint=True)
        _, self.batch = alloc_for_extend(self.manager, [self.settled], [5])
        _, self.at_limit = alloc_for_extend(self.manager, [self.longest], [20])
        _, self.tail = alloc_for_extend(self.manager, [self.drafted], [15])
        if self.manager.config.speculation:
            alloc_for_spec_decode(self.manager, self.tail, 8)
        self.listed: Any = [self.drafted]
        self.waiting = Req("w", range(100, 120))
        alloc_for_decode_prealloc(self.manager, self.waiting, fill_len=9, total_prefix_len=8)
        self.hole = Batch(self.manager, [self.waiting])
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


def prealloc(req: Callable[[World], Any], fill_len: Any, total: Any = None, tail: Any = None) -> Call:
    return lambda w: alloc_for_decode_prealloc(
        w.manager, req(w), fill_len=fill_len, total_prefix_len=total, swa_tail_len=tail
    )


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
    # prefix cache
    "peek_a_stranger": (BadArgument, "KV-15", "req", lambda w: peek_prefix(w.manager, "r")),  # type: ignore[arg-type]
    "peek_a_list": (BadArgument, "KV-15", "req", lambda w: peek_prefix(w.manager, w.listed)),
    "peek_a_foreign_request": (StaleRow, "KV-15", "reqs", lambda w: peek_prefix(w.manager, w.foreign)),
    "checkpoint_a_list": (BadArgument, "KV-15", "req", lambda w: checkpoint_kv_cache(w.manager, w.listed)),
    "checkpoint_what_is_gone": (StaleRow, "KV-15", "reqs", lambda w: checkpoint_kv_cache(w.manager, w.gone)),
    "checkpoint_a_foreign_request": (StaleRow, "KV-15", "reqs", lambda w: checkpoint_kv_cache(w.manager, w.foreign)),
    "checkpoint_over_a_hole": (BadArgument, "KV-15", "req", lambda w: checkpoint_kv_cache(w.manager, w.waiting)),
    "evict_a_negative": (BadArgument, "KV-15", "num_tokens", lambda w: evict_from_tree_cache(w.manager, -1)),
    "evict_a_float": (BadArgument, "KV-15", "num_tokens", lambda w: evict_from_tree_cache(w.manager, 4.0)),  # type: ignore[arg-type]
    "evict_a_bool": (BadArgument, "KV-15", "num_tokens", lambda w: evict_from_tree_cache(w.manager, True)),
    "an_extra_key_that_is_a_list": (BadArgument, "KV-15", "extra_key", lambda w: Req("x", [1], ["salt"])),  # type: ignore[arg-type]
    # pre-allocation
    "prealloc_a_list": (BadArgument, "KV-15", "req", prealloc(lambda w: [w.new], 9)),
    "prealloc_with_a_row": (StaleRow, "KV-15", "req", prealloc(lambda w: w.settled, 9)),
    "prealloc_again": (StaleRow, "KV-15", "req", prealloc(lambda w: w.waiting, 9)),
    "prealloc_a_foreign_request": (StaleRow, "KV-15", "reqs", prealloc(lambda w: w.foreign, 9)),
    "prealloc_nothing": (BadArgument, "KV-15", "fill_len", prealloc(lambda w: w.new, 0)),
    "prealloc_a_bool": (BadArgument, "KV-15", "fill_len", prealloc(lambda w: w.new, True)),
    "prealloc_a_list_of_lengths": (BadArgument, "KV-15", "fill_len", prealloc(lambda w: w.new, [9])),
    "prealloc_past_the_tokens": (BadArgument, "KV-15", "fill_len", prealloc(lambda w: Req("t", [1, 2]), 3)),
    "prealloc_past_the_context": (RowOverflow, "KV-4", "fill_len", prealloc(lambda w: Req("t", range(99)), 21)),
    "prefix_unaligned": (BadArgument, "KV-15", "total_prefix_len", prealloc(lambda w: w.new, 9, 6)),
    "prefix_negative": (BadArgument, "KV-15", "total_prefix_len", prealloc(lambda w: w.new, 9, -4)),
    "prefix_past_the_fill": (BadArgument, "KV-15", "total_prefix_len", prealloc(lambda w: w.new, 9, 12)),
    "prefix_a_float": (BadArgument, "KV-15", "total_prefix_len", prealloc(lambda w: w.new, 9, 8.0)),
    "tail_without_a_window": (BadArgument, "KV-15", "swa_tail_len", prealloc(lambda w: w.new, 9, None, 4)),
    "fill_a_list": (BadArgument, "KV-15", "req", lambda w: fill_hole(w.manager, w.listed)),
    "fill_no_hole": (BadArgument, "KV-15", "req", lambda w: fill_hole(w.manager, w.settled)),
    "fill_what_is_gone": (StaleRow, "KV-15", "reqs", lambda w: fill_hole(w.manager, w.gone)),
    "extend_over_a_hole": (BadArgument, "KV-15", "reqs", extend(lambda w: [w.new, w.waiting], [8, 12])),
    "decode_over_a_hole": (BadArgument, "KV-15", "batch", lambda w: alloc_for_decode(w.manager, w.hole)),
    "reserve_over_a_hole": (BadArgument, "KV-15", "batch", spec(lambda w: w.hole, 2)),
}  # fmt: skip


def with_tokens(tokens: Any, call: Callable[[World, Req], Any]) -> Call:
    """A call on the settled request, or a new one, whose tokens cannot be keyed."""

    def replaced(world: World) -> Any:
        world.settled.token_ids = world.new.token_ids = tokens
        return call(world, world.settled)

    return replaced


FLOATS: Any = [float(n) for n in range(20)]
TOKENS_BAD: dict[str, Call] = {
    "extend_floats": with_tokens(FLOATS, lambda w, _: alloc_for_extend(w.manager, [w.new], [9])),
    "extend_a_text": with_tokens("x" * 20, lambda w, _: alloc_for_extend(w.manager, [w.new], [9])),
    "extend_a_ragged_list": with_tokens([[1], [2, 3]] * 10, lambda w, _: alloc_for_extend(w.manager, [w.new], [9])),
    "extend_what_takes_64_bits": with_tokens([2**31] * 20, lambda w, _: alloc_for_extend(w.manager, [w.new], [9])),
    "extend_what_takes_65_bits": with_tokens([2**64] * 20, lambda w, _: alloc_for_extend(w.manager, [w.new], [9])),
    "extend_one_none": with_tokens([None, *range(19)], lambda w, _: alloc_for_extend(w.manager, [w.new], [9])),
    "prealloc_floats": with_tokens(FLOATS, lambda w, _: alloc_for_decode_prealloc(w.manager, w.new, fill_len=9)),
    "peek_floats": with_tokens(FLOATS, lambda w, _: peek_prefix(w.manager, w.new)),
    "checkpoint_floats": with_tokens(FLOATS, lambda w, req: checkpoint_kv_cache(w.manager, req)),
    "release_floats": with_tokens(
        FLOATS, lambda w, req: release_kv_cache(w.manager, [w.longest, req], checkpoint=True)
    ),
}


@pytest.mark.parametrize("name", TOKENS_BAD)
def test_tokens_that_cannot_be_keyed_are_refused_and_change_nothing(name: str) -> None:
    world = World(prefix_cache="radix")
    before = snapshot(world.manager)
    with pytest.raises(BadArgument) as caught:
        TOKENS_BAD[name](world)
    assert (caught.value.clause, caught.value.argument) == ("KV-15", "token_ids")
    assert snapshot(world.manager) == before


@pytest.mark.parametrize("changes", [{"checked": True}, {"checked": False}, {"prefix_cache": "radix"}], ids=str)
@pytest.mark.parametrize("name", BAD)
def test_a_call_that_cannot_be_right_is_refused_and_changes_nothing(name: str, changes: dict[str, Any]) -> None:
    kind, clause, argument, call = BAD[name]
    world = World(**changes)
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
        ("prefix_cache", "tree"), ("eviction", "mru"), ("need_sort", "yes"), ("window", 4096), ("hisparse", object()),
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
