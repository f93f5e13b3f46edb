"""A prefix cache beside a window pool, and windows without a pool of their own: pure and ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode
from ..caching import checkpoint_kv_cache, evict_from_tree_cache, peek_prefix
from ..config import KVCacheConfig
from ..errors import BadArgument
from ..manager import KVCacheManager
from ..records import Req
from ..release import release_kv_cache, retract
from ..sizing import Speculation
from ..window import Window, ring_slots
from ..window_eviction import evict_window
from .window_worlds import (
    batch_of,
    begin,
    counts,
    extend,
    leave,
    live,
    pages,
    short,
    sound,
    window_pages,
    windowed,
)

OTHER = range(100, 200)


def serve(manager: KVCacheManager, tokens: Any) -> list[int]:
    """A request that comes and goes; returns its pages."""
    req = begin(manager, tokens)
    found = pages(manager, req)
    leave(manager, req, checkpoint=True)
    return found


def dead(manager: KVCacheManager) -> set[int]:
    """Cached pages without a window page."""
    state = sound(manager)
    return set(np.flatnonzero((state.cache[0] > 0) & (state.cache[7] == 1)).tolist())


def press(manager: KVCacheManager, count: int) -> None:
    """Make the window pool short by `count` pages, and let what was taken go again."""
    req = Req("press", range(900, 1000))
    extend(manager, req, 4 * (counts(manager)[1] + count))
    leave(manager, req)


@pytest.mark.parametrize("size", [1, 4, 5, 8, 9, 100])
@pytest.mark.parametrize("gone", [0, 1, 2, 3, 4, 5])
def test_a_hit_ends_with_a_whole_live_window_or_is_none(device: str, size: int, gone: int) -> None:
    manager = windowed(device, size, 6, prefix_cache="radix")
    known = serve(manager, range(20))
    press(manager, gone)
    assert dead(manager) == set(known[:gone]), "of one prompt the earliest go"
    needs = -(-size // 4)
    for length in range(1, 25):
        whole = (length - 1) // 4
        usable = [end for end in range(1, min(whole, 5) + 1) if end - gone >= min(needs, end)]
        assert peek_prefix(manager, Req("", range(length))) == 4 * max(usable, default=0)
    req = begin(manager, range(30), 21)
    found = req.kv.cache_protected_len // 4
    assert found == (5 if gone == 0 or 5 - gone >= needs else 0)
    assert pages(manager, req)[:found] == known[:found]
    assert set(live(manager, req)) >= set(range(max(found - needs, 0), 6))


def test_what_is_dead_for_the_window_lives_again_when_a_request_publishes_it(device: str) -> None:
    manager = windowed(device, 8, 7, prefix_cache="radix")
    known = serve(manager, range(12))
    press(manager, 2)
    assert dead(manager) == set(known[:2])
    req = begin(manager, range(12))
    assert req.kv.cache_protected_len == 0
    mine, theirs = pages(manager, req), window_pages(manager, req)
    leave(manager, req, checkpoint=True)
    assert dead(manager) == set()
    assert [int(manager.window_map[page]) for page in known[:2]] == theirs[:2], "its window pages have moved"
    assert not set(mine) & set(sound(manager).cache[0].nonzero()[0].tolist()), "its pages are free"
    assert counts(manager) == [13, 4]
    assert peek_prefix(manager, Req("", range(20))) == 12


def test_a_checkpoint_publishes_what_lies_behind_the_window_as_dead(device: str) -> None:
    manager = windowed(device, 4, prefix_cache="radix")
    req = begin(manager, range(30), 20)
    assert evict_window(manager, batch_of(manager, req)) == 16
    checkpoint_kv_cache(manager, req)
    assert dead(manager) == set(pages(manager, req)[:4])
    assert (req.kv.cache_protected_len, live(manager, req)) == (20, [4])
    assert peek_prefix(manager, Req("", range(17))) == 0
    assert peek_prefix(manager, Req("", range(21))) == 20
    longer = begin(manager, range(30), 25)
    assert longer.kv.cache_protected_len == 20
    leave(manager, req, longer, checkpoint=True)
    assert peek_prefix(manager, Req("", range(30))) == 24


def test_a_checkpoint_makes_the_window_behind_a_chunk_evictable_and_keeps_what_the_next_needs(device: str) -> None:
    manager = windowed(device, 8, 6, prefix_cache="radix")
    req = begin(manager, range(40), 20)
    checkpoint_kv_cache(manager, req)
    # Free 1; three of the five cached ones lie behind the window of what the request holds.
    other = Req("o", OTHER)
    assert short(manager, lambda: alloc_for_extend(manager, [other], [17])) == ("window", 5, 1, 3)
    extend(manager, other, 16)
    assert live(manager, req) == [3, 4]
    leave(manager, other)
    extend(manager, req, 36)
    assert live(manager, req)[:2] == [3, 4]


@pytest.mark.parametrize(("policy", "order"), [("lru", "cba"), ("lfu", "cab"), ("fifo", "abc")])
def test_the_window_goes_in_the_order_of_the_policy_each_prompt_from_its_front(
    device: str, policy: str, order: str
) -> None:
    prompts = {name: range(number * 50, number * 50 + 9) for number, name in enumerate("abc")}
    manager = windowed(device, 4, 7, prefix_cache="radix", eviction=policy)
    known = {name: serve(manager, tokens[:8])[:2] for name, tokens in prompts.items()}
    for name in "bba":
        retract(manager, [begin(manager, prompts[name], 9)])
    expected = [page for name in order for page in known[name]]
    for count in range(1, 7):
        press(manager, 1)
        assert dead(manager) == set(expected[:count])


def test_a_window_that_a_request_looks_at_is_not_evicted(device: str) -> None:
    manager = windowed(device, 8, 5, prefix_cache="radix")
    known = serve(manager, range(16))
    req = begin(manager, range(30), 17)
    held = window_pages(manager, req)
    other = Req("o", OTHER)
    assert short(manager, lambda: alloc_for_extend(manager, [other], [12])) == ("window", 3, 0, 2)
    extend(manager, other, 8)
    assert dead(manager) == set(known[:2])
    assert window_pages(manager, req)[2:] == held[2:]
    leave(manager, req)
    leave(manager, other)


def test_what_a_batch_hits_of_the_window_is_not_reclaimable_for_it(device: str) -> None:
    manager = windowed(device, 8, 6, prefix_cache="radix")
    serve(manager, range(16))
    req = Req("r", range(40))
    # Free 2, live 4: the hit looks at two of them.
    assert short(manager, lambda: alloc_for_extend(manager, [req], [33])) == ("window", 5, 2, 2)
    extend(manager, req, 32)
    assert live(manager, req) == [2, 3, 4, 5, 6, 7]


def test_a_full_page_that_is_evicted_takes_its_window_page_along(device: str) -> None:
    manager = windowed(device, 4, 16, prefix_cache="radix", num_pages=24)
    serve(manager, range(24))
    assert counts(manager) == [18, 10]
    assert evict_from_tree_cache(manager, 8) == 8
    sound(manager)
    assert counts(manager) == [20, 12]
    press(manager, 2)
    assert evict_from_tree_cache(manager, 99) == 16
    sound(manager)
    assert counts(manager) == [24, 16], "those that were dead have none"


# A pure window: one pool, and what slides out is free.


def pure(device: str, size: int = 8, **changes: Any) -> KVCacheManager:
    return windowed(device, size, kind="pure", **changes)


def test_a_pure_window_gives_up_the_pages_themselves(device: str) -> None:
    manager = pure(device, num_pages=4)
    req = begin(manager, range(8))
    for length in range(9, 64):
        alloc_for_decode(manager, batch_of(manager, req))
        sound(manager)
        held = -(-length // 4) - max(length - 1 - 8, 0) // 4
        assert counts(manager) == [4 - held]
    assert list(manager.allocators) == ["window"]
    assert manager.window_allocator is None
    assert len(manager.window_map) == 0
    leave(manager, req)
    assert counts(manager) == [4]


@pytest.mark.parametrize("floor", [0, 4, 6, 100])
@pytest.mark.parametrize("way", ["abort", "retract", "finish"])
def test_a_pure_window_comes_back_once_on_either_side_of_what_is_gone(device: str, way: str, floor: int) -> None:
    manager = pure(device, floor=floor)
    req = begin(manager, range(40), 26)
    gone = evict_window(manager, batch_of(manager, req))
    assert gone == max(16 - -(-floor // 4) * 4, 0)
    sound(manager)
    assert counts(manager) == [16 - 7 + gone // 4]
    if way == "retract":
        retract(manager, [req])
    else:
        release_kv_cache(manager, [req], checkpoint=way == "finish")
    sound(manager)
    assert counts(manager) == [16]


def test_a_pure_window_that_is_short_counts_what_the_batch_gives_up(device: str) -> None:
    manager = pure(device, num_pages=6, speculation=Speculation("dflash", 1, 1, 4))
    one, two = begin(manager, range(60), 16), begin(manager, OTHER, 8)
    batch, alone = batch_of(manager, one, two), batch_of(manager, two)
    assert short(manager, lambda: alloc_for_decode(manager, alone)) == ("window", 1, 0, 0)
    alloc_for_decode(manager, batch)  # two pages come back, two are taken
    sound(manager)
    assert counts(manager) == [0]
    alloc_for_decode(manager, batch)
    assert short(manager, lambda: alloc_for_spec_decode(manager, batch, 8)) == ("window", 4, 0, 0)


def test_a_pure_window_with_a_prefix_cache_publishes_nothing_across_what_is_gone(device: str) -> None:
    """A row whose middle was given back is published up to where it is whole, and hit only so far."""
    manager = pure(device, 4, prefix_cache="radix", page_size=1, num_pages=24)
    req = begin(manager, range(30), 4)
    checkpoint_kv_cache(manager, req)
    extend(manager, req, 12)
    assert evict_window(manager, batch_of(manager, req)) == 4, "what is cached is the cache's"
    assert counts(manager) == [24 - 12 + 4]
    before = sound(manager)
    checkpoint_kv_cache(manager, req)
    assert sound(manager) == before
    other = begin(manager, OTHER, 10)  # takes what was given up
    leave(manager, req, checkpoint=True)
    assert peek_prefix(manager, Req("", range(30))) == 4
    again = begin(manager, range(30), 12)
    assert not set(pages(manager, again)) & set(pages(manager, other))
    leave(manager, other, again)
    assert evict_from_tree_cache(manager, 99) == 4
    assert counts(manager) == [24]


def test_a_pure_window_that_has_lost_nothing_is_published_whole(device: str) -> None:
    manager = pure(device, 8, prefix_cache="radix")
    serve(manager, range(18))
    assert counts(manager) == [12]
    req = begin(manager, range(30), 21)
    assert req.kv.cache_protected_len == 16
    for _ in range(9):
        alloc_for_decode(manager, batch_of(manager, req))
        sound(manager)
    assert req.kv.swa_evicted_seqlen == 20
    retract(manager, [req])
    assert peek_prefix(manager, Req("", range(30))) == 16


# A ring: a fixed place for each position of each row.


def test_a_ring_has_neither_pool_nor_map_and_is_never_short(device: str) -> None:
    manager = windowed(device, 6, kind="ring", num_pages=3)
    req = begin(manager, range(30), 11)
    assert (list(manager.allocators), manager.window_allocator, len(manager.window_map)) == (["full"], None, 0)
    alloc_for_decode(manager, batch_of(manager, req))
    assert evict_window(manager, batch_of(manager, req)) == 0
    assert req.kv.swa_evicted_seqlen == 0
    assert short(manager, lambda: alloc_for_decode(manager, batch_of(manager, req))) == ("full", 1, 0, 0)
    leave(manager, req)
    assert counts(manager) == [3]


def test_ring_slots_of_a_window_are_all_different_and_of_one_row_only() -> None:
    window = Window(6, kind="ring")
    seen: dict[int, int] = {}
    for row in range(1, 5):
        for end in range(6, 20):
            found = ring_slots(window, np.full(6, row), np.arange(end - 6, end)).tolist()
            assert len(set(found)) == 6
            assert {seen.setdefault(slot, row) for slot in found} == {row}
    assert max(seen) < 5 * 6


@pytest.mark.parametrize("window", [Window(6, kind="ring"), Window(6, 8, floor=4), Window(6, kind="pure", floor=1)])
def test_what_a_prefix_cache_cannot_keep_is_refused_beside_one(window: Window) -> None:
    sizes: dict[str, Any] = {"page_size": 4, "num_pages": 8, "max_requests": 1, "context_len": 20, "window": window}
    KVCacheConfig(**sizes)
    with pytest.raises(BadArgument) as caught:
        KVCacheConfig(**sizes, prefix_cache="radix")
    assert (caught.value.clause, caught.value.argument) == ("KV-15", "window")
