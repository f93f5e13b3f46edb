"""Pre-allocation: slots before the KV arrives, a hole where a prefix follows later, and every way out of each state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..caching import checkpoint_kv_cache, evict_from_tree_cache
from ..errors import BadArgument, RowOverflow, StaleRow
from ..manager import Batch, KVCacheManager
from ..preallocation import alloc_for_decode_prealloc, fill_hole
from ..records import Req
from ..release import release_kv_cache, release_overallocated, retract
from ..sizing import Speculation
from ..snapshots import snapshot
from .worlds import (
    bad_call,
    cached_pages,
    extend,
    finish,
    free_pages,
    pages_of,
    radix_manager,
    refused,
    serve,
    short,
    sound,
    start,
)

OTHER = range(100, 200)


def speculating(device: str, **changes: Any) -> KVCacheManager:
    return radix_manager(device, **{"speculation": Speculation("dflash", 1, 1, 4)} | changes)


def prealloc(manager: KVCacheManager, req: Req, fill_len: Any, total_prefix_len: Any = None) -> list[int]:
    kv_loc = alloc_for_decode_prealloc(manager, req, fill_len=fill_len, total_prefix_len=total_prefix_len)
    sound(manager)
    found: list[int] = kv_loc.tolist()
    return found


def row_of(manager: KVCacheManager, req: Req) -> list[int]:
    row: list[int] = manager.req_to_token_pool.req_to_token[req._row, : req.kv.kv_allocated_len].tolist()
    return row


def record(manager: KVCacheManager, req: Req) -> tuple[int, ...]:
    """protected, committed, allocated, the hole."""
    found = sound(manager).record(req._row)
    return tuple(found[name] for name in ("protected", "committed", "allocated", "hole_lo", "hole_hi"))


@pytest.mark.parametrize("cache", ["none", "radix"])
def test_without_a_hit_every_slot_is_returned(device: str, cache: str) -> None:
    manager = radix_manager(device, prefix_cache=cache)
    req = Req("r", range(20))
    slots = alloc_for_decode_prealloc(manager, req, fill_len=10).tolist()
    assert slots == row_of(manager, req)
    state = snapshot(manager)
    assert state.record(req._row) | {"generation": 0} == dict.fromkeys(state.record(0), 0) | {
        "committed": 10, "allocated": 10,
    }  # fmt: skip
    (slot,) = alloc_for_decode(manager, Batch(manager, [req])).tolist()
    assert slot == slots[-1] + 1


@pytest.mark.parametrize(("fill", "hit"), [(1, 0), (8, 4), (9, 8), (12, 8), (13, 12), (20, 12)])
def test_a_hit_is_not_sent_again(device: str, fill: int, hit: int) -> None:
    manager = speculating(device)
    known = serve(manager, range(12))
    req = Req("r", range(20))
    slots = prealloc(manager, req, fill)
    assert record(manager, req) == (hit, fill, fill, 0, 0)
    assert row_of(manager, req)[hit:] == slots
    assert pages_of(manager, req)[: hit // 4] == known[: hit // 4]


@pytest.mark.parametrize(("cached", "hit"), [(0, 0), (8, 8)])
def test_a_hole_counts_as_allocated_and_has_no_pages_until_it_is_filled(device: str, cached: int, hit: int) -> None:
    manager = speculating(device)
    serve(manager, range(cached)) if cached else None
    free = len(free_pages(manager))
    req = Req("r", range(30))
    slots = prealloc(manager, req, 18, 16)
    assert len(slots) == 2
    assert record(manager, req) == (hit, 18, 18, hit, 16)
    assert len(free_pages(manager)) == free - 1
    filled = fill_hole(manager, req).tolist()
    assert record(manager, req) == (hit, 18, 18, 0, 0)
    assert row_of(manager, req)[hit:] == filled + slots
    assert len(free_pages(manager)) == free - 1 - (16 - hit) // 4
    extend(manager, [req], 19)
    alloc_for_decode(manager, Batch(manager, [req]))
    checkpoint_kv_cache(manager, req)
    assert record(manager, req) == (20, 20, 20, 0, 0)


def test_a_prefix_that_is_all_of_it_takes_no_page_before_the_hole_is_filled(device: str) -> None:
    manager = speculating(device)
    req = Req("r", range(30))
    assert prealloc(manager, req, 16, 16) == []
    assert len(free_pages(manager)) == 16
    assert fill_hole(manager, req).tolist() == row_of(manager, req)
    sound(manager)


def test_while_a_hole_is_open_only_filling_and_leaving_is_allowed(device: str) -> None:
    manager = speculating(device)
    serve(manager, range(4))
    req, running, new = Req("r", range(30)), start(manager, OTHER, 5), Req("n", range(8))
    prealloc(manager, req, 10, 8)
    batch, mixed = Batch(manager, [req]), Batch(manager, [running, req])
    calls: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
        "extend": (BadArgument, "reqs", lambda: alloc_for_extend(manager, [req], [12])),
        "extend to the same": (BadArgument, "reqs", lambda: alloc_for_extend(manager, [req], [10])),
        "extend among others": (
            BadArgument,
            "reqs",
            lambda: alloc_for_extend(manager, [new, running, req], [8, 6, 12]),
        ),
        "decode": (BadArgument, "batch", lambda: alloc_for_decode(manager, batch)),
        "decode among others": (BadArgument, "batch", lambda: alloc_for_decode(manager, mixed)),
        "spec decode": (BadArgument, "batch", lambda: alloc_for_spec_decode(manager, batch, 2)),
        "spec decode among others": (BadArgument, "batch", lambda: alloc_for_spec_decode(manager, mixed, 2)),
        "checkpoint": (BadArgument, "req", lambda: checkpoint_kv_cache(manager, req)),
        "pre-allocate again": (StaleRow, "req", lambda: prealloc(manager, req, 12)),
        "commit": (BadArgument, "accepted", lambda: commit(manager, batch, [1])),
    }
    for name, (kind, argument, call) in calls.items():
        assert bad_call(manager, call) == (kind, argument), name
    before = sound(manager)
    assert release_overallocated(manager, req) == 0
    assert sound(manager) == before
    fill_hole(manager, req)
    for name in ("extend", "decode among others", "checkpoint"):
        calls[name][2]()
        sound(manager)


def test_there_is_one_hole_to_fill(device: str) -> None:
    manager = speculating(device)
    req, plain = Req("r", range(30)), start(manager, OTHER, 5)
    assert bad_call(manager, lambda: fill_hole(manager, req)) == (StaleRow, "reqs")
    assert bad_call(manager, lambda: fill_hole(manager, plain)) == (BadArgument, "req")
    prealloc(manager, req, 10, 8)
    fill_hole(manager, req)
    assert bad_call(manager, lambda: fill_hole(manager, req)) == (BadArgument, "req")


STATES: dict[str, tuple[int, int | None, Callable[[KVCacheManager, Req], object]]] = {
    "no hole": (10, None, lambda manager, req: None),
    "hole": (18, 16, lambda manager, req: None),
    "hole to the end": (16, 16, lambda manager, req: None),
    "filled": (18, 16, fill_hole),
    "decoded": (18, None, lambda manager, req: alloc_for_decode(manager, Batch(manager, [req]))),
    "published": (18, None, checkpoint_kv_cache),
    "over-allocated": (18, None, lambda manager, req: alloc_for_spec_decode(manager, Batch(manager, [req]), 8)),
}
WAYS: dict[str, Callable[[KVCacheManager, Req], object]] = {
    "finish": finish,
    "abort": lambda manager, req: release_kv_cache(manager, [req], checkpoint=False),
    "retract": lambda manager, req: retract(manager, [req]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cached", [0, 8])
@pytest.mark.parametrize("state", STATES)
def test_every_way_out_of_every_state_gives_everything_back(device: str, state: str, cached: int, way: str) -> None:
    manager = speculating(device)
    if cached:
        serve(manager, range(cached))
    known, free = cached_pages(manager), free_pages(manager)
    fill, total, then = STATES[state]
    req = Req("r", range(30))
    prealloc(manager, req, fill, total)
    then(manager, req)
    sound(manager)
    row = req._row
    published = set(pages_of(manager, req)[: fill // 4]) if state == "published" else set()
    WAYS[way](manager, req)
    state_now = sound(manager)
    assert not state_now.records[:-1, row].any()
    assert state_now.bound == {}
    if way != "finish":
        assert free_pages(manager) == free - published
    elif "hole" in state and state != "no hole":
        assert (cached_pages(manager), free_pages(manager)) == (known, free), "nothing behind the hit can be keyed"
    else:
        length = 19 if state == "decoded" else fill
        assert len(cached_pages(manager)) == length // 4
        assert cached_pages(manager) >= known
    evict_from_tree_cache(manager, 99)
    assert free_pages(manager) == set(range(1, 17))
    extend(manager, [req], 20)


BAD: dict[str, tuple[type[Exception], str, Any, Any]] = {
    # The second review remark: a prefix that cannot be continued at its end belongs to another position.
    "unaligned past the hit": (BadArgument, "total_prefix_len", 20, 10),
    "below the hit": (BadArgument, "total_prefix_len", 20, 4),
    "above fill_len": (BadArgument, "total_prefix_len", 18, 20),
    "unaligned at fill_len": (BadArgument, "total_prefix_len", 18, 18),
    "negative": (BadArgument, "total_prefix_len", 20, -4),
    "a float": (BadArgument, "total_prefix_len", 20, 12.0),
    "fill of nothing": (BadArgument, "fill_len", 0, None),
    "fill of a float": (BadArgument, "fill_len", 4.0, None),
    "fill past the tokens": (BadArgument, "fill_len", 31, None),
}


@pytest.mark.parametrize("name", BAD)
def test_lengths_that_cannot_be_are_refused(device: str, name: str) -> None:
    manager = speculating(device)
    serve(manager, range(8))
    kind, argument, fill, total = BAD[name]
    req = Req("r", range(30))
    assert bad_call(manager, lambda: prealloc(manager, req, fill, total)) == (kind, argument)
    assert not req.kv.holds_kv


def test_the_context_and_the_window_are_refused_by_name(device: str) -> None:
    manager = speculating(device)
    long = Req("r", range(100))
    assert bad_call(manager, lambda: prealloc(manager, long, 65)) == (RowOverflow, "fill_len")
    tail: Callable[[], object] = lambda: alloc_for_decode_prealloc(manager, long, fill_len=9, swa_tail_len=4)  # noqa: E731
    assert bad_call(manager, tail) == (BadArgument, "swa_tail_len")


def test_a_prefix_that_ends_with_the_hit_is_the_hit(device: str) -> None:
    manager = speculating(device)
    serve(manager, range(8))
    req = Req("r", range(30))
    assert len(prealloc(manager, req, 18, 8)) == 10
    assert record(manager, req) == (8, 18, 18, 0, 0)


def test_a_batch_with_a_request_without_a_row_is_refused_before_any_change(device: str) -> None:
    """The first review remark: a speculative step that met a missing record half way had moved the others'."""
    manager = speculating(device)
    one, gone, new = start(manager, range(20), 6), start(manager, OTHER, 6), Req("n", range(8))
    batch = Batch(manager, [one, gone])
    retract(manager, [gone])
    assert bad_call(manager, lambda: Batch(manager, [one, new])) == (StaleRow, "reqs")
    assert bad_call(manager, lambda: alloc_for_spec_decode(manager, batch, 8)) == (StaleRow, "batch")
    assert bad_call(manager, lambda: commit(manager, batch, [0, 0])) == (StaleRow, "batch")
    assert record(manager, one) == (0, 6, 6, 0, 0)
    extend(manager, [gone], 6)
    assert bad_call(manager, lambda: alloc_for_spec_decode(manager, batch, 8)) == (StaleRow, "batch"), "bound anew"


def test_a_shortage_is_told_exactly_and_leaves_no_row_bound(device: str) -> None:
    manager = speculating(device, num_pages=8, max_requests=1)
    known = serve(manager, range(16))
    serve(manager, OTHER[:8])
    req = Req("r", range(60))
    # Free 2, cached 4 + 2; the four of the hit are pinned.
    assert short(manager, lambda: prealloc(manager, req, 34)) == ("full", 5, 2, 2)
    assert short(manager, lambda: prealloc(manager, req, 48, 24)) == ("full", 6, 2, 2)
    prealloc(manager, req, 34, 24)  # needs three: one of the other prompt's pages goes
    assert cached_pages(manager) > set(known)
    assert len(cached_pages(manager)) == 5
    assert short(manager, lambda: fill_hole(manager, req)) == ("full", 2, 0, 1)
    assert short(manager, lambda: prealloc(manager, Req("s", range(8)), 8)) == ("rows", 1, 0, 0)
    assert record(manager, req) == (16, 34, 34, 16, 24)
    finish(manager, req)
    assert cached_pages(manager) > set(known)


def test_filling_a_hole_evicts_what_is_short(device: str) -> None:
    manager = speculating(device, num_pages=6)
    serve(manager, OTHER[:12])
    req = Req("r", range(60))
    prealloc(manager, req, 20, 16)
    assert (len(cached_pages(manager)), len(free_pages(manager))) == (3, 2)
    assert len(fill_hole(manager, req)) == 16
    assert (len(cached_pages(manager)), len(free_pages(manager))) == (1, 0)
    assert np.array_equal(sorted(pages_of(manager, req)), np.unique(pages_of(manager, req)))


def test_a_hit_of_a_row_with_a_hole_is_held(device: str) -> None:
    manager = speculating(device, num_pages=5)
    known = serve(manager, range(8))
    req = Req("r", range(60))
    prealloc(manager, req, 18, 16)
    assert evict_from_tree_cache(manager, 99) == 0
    assert sound(manager).cache[3, known].tolist() == [1, 1]
    error = refused(manager, StaleRow, lambda: prealloc(manager, req, 18))
    assert error.argument == "req"
