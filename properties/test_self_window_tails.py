"""A pre-allocation whose tail alone has a window, and every way out of every state of a request with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..allocation import alloc_for_decode, alloc_for_spec_decode
from ..caching import checkpoint_kv_cache, evict_from_tree_cache
from ..errors import BadArgument
from ..manager import KVCacheManager
from ..preallocation import fill_hole
from ..records import Req
from ..release import release_overallocated
from ..sizing import Speculation
from ..window_eviction import evict_window
from .window_worlds import (
    WAYS,
    bad_call,
    batch_of,
    begin,
    counts,
    extend,
    free_sets,
    leave,
    live,
    pages,
    prealloc,
    sound,
    window_pages,
    windowed,
)

OTHER = range(100, 200)
DFLASH = Speculation("dflash", 1, 1, 4)
TAILS = [(18, 2, [4]), (18, 6, [3, 4]), (18, 18, [0, 1, 2, 3, 4]), (16, 0, []), (16, 16, [0, 1, 2, 3]), (3, 3, [0])]


@pytest.mark.parametrize(("fill", "tail", "expected"), TAILS)
def test_a_tail_alone_has_window_pages_whatever_the_map_held_before(
    device: str, fill: int, tail: int, expected: list[int]
) -> None:
    manager = windowed(device, 64)
    leave(manager, begin(manager, OTHER[:60]))  # every page has been mapped
    req = prealloc(manager, Req("r", range(40)), fill, None, tail)
    sound(manager)
    assert live(manager, req) == expected
    assert req.kv.swa_evicted_seqlen == (expected[0] * 4 if expected else fill)
    for length in (fill + 1, fill + 7):
        extend(manager, req, length)
    assert live(manager, req) == [*expected, *range(-(-fill // 4), -(-(fill + 7) // 4))]
    leave(manager, req)
    assert counts(manager) == [16, 16]
    assert not manager.window_map.any()


@pytest.mark.parametrize("tail", [1, 3, 5, 17, -2, 19, 2.0, True])
def test_a_tail_that_begins_inside_a_page_is_refused(device: str, tail: Any) -> None:
    manager = windowed(device)
    call = lambda: prealloc(manager, Req("r", range(40)), 18, None, tail)  # noqa: E731
    assert bad_call(manager, call) == (BadArgument, "KV-15", "swa_tail_len")


@pytest.mark.parametrize(("tail", "expected"), [(0, [0, 1]), (4, [0, 1, 4]), (12, [0, 1, 2, 3, 4]), (20, range(5))])
def test_a_tail_behind_a_hit_leaves_the_window_of_the_hit(device: str, tail: int, expected: Any) -> None:
    manager = windowed(device, prefix_cache="radix")
    leave(manager, begin(manager, range(8)), checkpoint=True)
    req = prealloc(manager, Req("r", range(40)), 20, None, tail)
    sound(manager)
    assert live(manager, req) == list(expected)
    alloc_for_decode(manager, batch_of(manager, req))
    sound(manager)


@pytest.mark.parametrize(("total", "tail", "expected"), [(8, 8, [3, 4]), (12, 8, [3, 4]), (20, 0, []), (16, 4, [4])])
def test_a_hole_before_a_tail_is_filled_without_window_pages(
    device: str, total: int, tail: int, expected: list[int]
) -> None:
    manager = windowed(device)
    req = prealloc(manager, Req("r", range(40)), 20, total, tail)
    sound(manager)
    fill_hole(manager, req)
    sound(manager)
    # A tail that begins where the hole ends, or before, is no tail: what is private has its window.
    assert live(manager, req) == (expected if 20 - tail > total else [0, 1, 2, 3, 4])
    extend(manager, req, 21)
    leave(manager, req)
    assert counts(manager) == [16, 16]


Then = Callable[[KVCacheManager, Req], object]
STATES: dict[str, tuple[tuple[int | None, ...], tuple[Then, ...]]] = {
    "extended": ((), ()),
    "hole": ((18, 16), ()),
    "tail": ((18, None, 6), ()),
    "hole before a tail": ((18, 8, 6), ()),
    "filled": ((18, 16), (fill_hole,)),
    "filled before a tail": ((18, 8, 6), (fill_hole,)),
    "slid": ((), (lambda m, r: evict_window(m, batch_of(m, r)),)),
    "over-allocated": ((), (lambda m, r: alloc_for_spec_decode(m, batch_of(m, r), 8),)),
    "trimmed": ((), (lambda m, r: alloc_for_spec_decode(m, batch_of(m, r), 8), release_overallocated)),
    "published": ((), (checkpoint_kv_cache,)),
    "published behind its window": ((), (lambda m, r: evict_window(m, batch_of(m, r)), checkpoint_kv_cache)),
    "decoded": ((), (lambda m, r: [alloc_for_decode(m, batch_of(m, r)) for _ in range(9)],)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cached", ["no cache", "no hit", "a hit"])
@pytest.mark.parametrize("state", STATES)
def test_whatever_its_state_a_request_gives_back_what_it_has_of_both_pools_and_of_the_map(
    device: str, state: str, cached: str, way: str
) -> None:
    changes: dict[str, Any] = {"speculation": DFLASH, "prefix_cache": "none" if cached == "no cache" else "radix"}
    manager = windowed(device, 5, **changes)
    if cached == "a hit":
        leave(manager, begin(manager, range(4)), checkpoint=True)
    running = begin(manager, OTHER, 5)
    before, mapped = free_sets(manager), manager.window_map.clone()
    filled, then = STATES[state]
    req = Req("r", range(40))
    if filled:
        prealloc(manager, req, *filled)  # type: ignore[arg-type]
    else:
        extend(manager, req, 18)
    for step in then:
        step(manager, req)
        sound(manager)
    keyed = req.kv.kv_committed_len // 4
    WAYS[way](manager, req)
    kept = set(sound(manager).cache[0].nonzero()[0].tolist())
    kept_window = {int(manager.window_map[page]) for page in kept} - {0}
    publishes = (way == "finish" and not state.startswith("hole")) or "published" in state
    assert len(kept) == (0 if cached == "no cache" else keyed if publishes else cached == "a hit")
    if not kept:
        assert free_sets(manager) == before
        assert manager.window_map.equal(mapped)
    everything, held, held_window = set(range(1, 17)), set(pages(manager, running)), set(window_pages(manager, running))
    assert free_sets(manager) == [everything - kept - held, everything - kept_window - held_window]
    evict_from_tree_cache(manager, 99)
    leave(manager, running)
    assert free_sets(manager) == [everything] * 2
    assert not manager.window_map.any()


@pytest.mark.parametrize("way", WAYS)
def test_what_a_floor_keeps_behind_an_open_hole_comes_back_once(device: str, way: str) -> None:
    manager = windowed(device, 4, floor=12)
    req = prealloc(manager, Req("r", range(30)), 24, 8)
    assert live(manager, req)[-4:] == [2, 3, 4, 5]
    WAYS[way](manager, req)
    sound(manager)
    assert counts(manager) == [16, 16]
