"""Public bugs of sliding-window pools, played on this core: see test_self_public_bugs."""

from __future__ import annotations

from typing import Any

import pytest

from ..allocation import alloc_for_decode, alloc_for_extend
from ..caching import checkpoint_kv_cache, evict_from_tree_cache, peek_prefix
from ..preallocation import alloc_for_decode_prealloc
from ..records import Req
from ..sizing import Speculation
from ..window_eviction import evict_window
from .window_worlds import (
    batch_of,
    begin,
    counts,
    free_sets,
    leave,
    live,
    prealloc,
    short,
    sound,
    window_pages,
    windowed,
)

OTHER = range(100, 200)


@pytest.mark.parametrize(("tail", "expected"), [(4, [3]), (0, [])])
def test_sg_25805_a_tail_inherits_no_mapping_of_recycled_pages(device: str, tail: int, expected: list[int]) -> None:
    """Impossible: a page leaves the map with the call that gives its window page back, so a free page has none."""
    manager = windowed(device, 64, num_pages=4)
    leave(manager, begin(manager, range(16)))  # all four pages have been mapped
    assert not manager.window_map.any()
    req = prealloc(manager, Req("r", range(40)), 16, None, tail)
    sound(manager)
    assert live(manager, req) == expected
    leave(manager, req)
    assert counts(manager) == [4, 16]


def slid_then_released(device: str, page_size: int, size: int) -> None:
    manager = windowed(device, size, 32, page_size=page_size, num_pages=32)
    other, req = begin(manager, range(3 * page_size)), begin(manager, OTHER, 3 * page_size)
    kept = set(window_pages(manager, other))
    assert evict_window(manager, batch_of(manager, req)) == 2 * page_size
    leave(manager, req)
    assert free_sets(manager)[1] == set(range(1, 33)) - kept, "the padding page is not among them"
    assert counts(manager) == [29, 29]


def test_sg_38519_a_row_whose_window_is_partly_gone_is_released_without_the_padding_page(device: str) -> None:
    """Impossible: the record's cursor says from where a row has window pages; only those are looked up in the map."""
    slid_then_released(device, 4, 4)


def test_s_05_the_same_at_page_size_1_and_with_pages(device: str) -> None:
    """Impossible, for the same reason at every page size."""
    slid_then_released(device, 1, 1)
    slid_then_released(device, 16, 16)


def test_sg_35338_a_step_that_mixes_a_prompt_with_decodes_is_one_demand_on_both_pools(device: str) -> None:
    """Refused, KVCacheOutOfMemory: running and new requests are counted together, before either pool is touched."""
    manager = windowed(device, 64, 4, num_pages=32)
    running = [begin(manager, range(30), 4), begin(manager, OTHER, 4)]
    step = [*running, Req("n", range(50, 80))]
    assert short(manager, lambda: alloc_for_extend(manager, step, [5, 5, 4])) == ("window", 3, 2, 0)
    alloc_for_decode(manager, batch_of(manager, *running))
    sound(manager)
    assert counts(manager) == [28, 0]


@pytest.mark.parametrize(("full", "window", "pool"), [(8, 2, "window"), (2, 8, "full")])
def test_s_01_a_decode_that_is_short_of_one_pool_takes_nothing_of_the_other(
    device: str, full: int, window: int, pool: str
) -> None:
    """Refused, KVCacheOutOfMemory: both pools are compared before either is touched, and the short one is named."""
    manager = windowed(device, 64, window, num_pages=full)
    batch = batch_of(manager, begin(manager, range(30), 4), begin(manager, OTHER, 4))
    for _ in range(3):
        assert short(manager, lambda: alloc_for_decode(manager, batch)) == (pool, 2, 0, 0)
    assert counts(manager) == [full - 2, window - 2]


def test_sg_22470_a_page_larger_than_the_window_stays_live_below_what_is_published(device: str) -> None:
    """Impossible: what goes ends a window and a whole page below the end of the key, at every size."""
    for size, page_size in ((1, 4), (3, 4), (5, 4), (1, 8), (1, 1)):
        for length in range(1, 26, 1 if device == "cpu" else 6):
            sizes: dict[str, Any] = {"page_size": page_size, "num_pages": 32, "prefix_cache": "radix"}
            manager = windowed(device, size, 32, **sizes)
            req = begin(manager, range(length))
            evict_window(manager, batch_of(manager, req))
            key = length // page_size * page_size
            assert req.kv.swa_evicted_seqlen < max(key, 1)
            leave(manager, req, checkpoint=True)
            assert peek_prefix(manager, Req("", range(40))) == key


def test_sg_34870_a_bigram_key_keeps_a_whole_window_below_its_own_end(device: str) -> None:
    """Impossible: the frontier is counted from the key, which with bigrams is one token shorter."""
    for algorithm, cursor, key in (("dflash", 896, 1024), ("eagle", 832, 960)):
        manager = windowed(
            device, 127, 32, page_size=64, num_pages=32, context_len=2048, prefix_cache="radix",
            speculation=Speculation(algorithm, 1, 1, 1),
        )  # fmt: skip
        req = begin(manager, range(1200), 1024)
        evict_window(manager, batch_of(manager, req))
        assert req.kv.swa_evicted_seqlen == cursor
        checkpoint_kv_cache(manager, req)
        sound(manager)
        assert req.kv.cache_protected_len == key
        assert peek_prefix(manager, Req("", range(1200))) == key


def test_sg_27586_a_dead_entry_that_lives_again_frees_no_window_page_that_is_in_use(device: str) -> None:
    """Impossible: a dead entry is out of the map. It takes over the window page of the request, which keeps none."""
    manager = windowed(device, 8, 4, prefix_cache="radix")
    leave(manager, begin(manager, range(8)), checkpoint=True)
    press = begin(manager, OTHER, 16)  # evicts the window of what is cached
    leave(manager, press)
    assert sound(manager).cache[7].sum() == 2
    assert not manager.window_map.any()
    req = begin(manager, range(8))
    targets = window_pages(manager, req)
    leave(manager, req, checkpoint=True)
    state = sound(manager)
    assert state.cache[7].sum() == 0
    assert state.maps["window"][1].tolist() == sorted(targets)
    assert counts(manager) == [14, 2]


def test_sg_31486_rows_that_a_pure_window_has_given_up_are_not_published(device: str) -> None:
    """Impossible: a row with a gap is published up to where the cache's part ends, and released on either side."""
    manager = windowed(device, 4, kind="pure", page_size=1, num_pages=24, prefix_cache="radix")
    req = begin(manager, range(12))
    assert evict_window(manager, batch_of(manager, req)) == 8
    other = begin(manager, OTHER, 20)  # takes the slots that were given up
    leave(manager, req, checkpoint=True)
    assert peek_prefix(manager, Req("", range(20))) == 0
    assert evict_from_tree_cache(manager, 99) == 0
    leave(manager, other)
    assert counts(manager) == [24]


def test_sg_40309_a_pre_allocation_reclaims_what_its_admission_counted(device: str) -> None:
    """Correct: what a refusal calls reclaimable, of either pool, is what the call evicts."""
    manager = windowed(device, 8, 4, prefix_cache="radix")
    leave(manager, begin(manager, range(12)), checkpoint=True)
    assert counts(manager) == [13, 1]
    req = Req("r", OTHER)
    slots_of = alloc_for_decode_prealloc(manager, req, fill_len=16, swa_tail_len=8)
    sound(manager)
    assert len(slots_of) == 16
    assert live(manager, req) == [2, 3]
    assert counts(manager) == [9, 0]
