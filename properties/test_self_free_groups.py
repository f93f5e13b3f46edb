"""Free groups: what is freed in one is available when it closes, and is what was named when it was freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode
from ..allocators.paged import PagedAllocator
from ..caching import checkpoint_kv_cache, evict_from_tree_cache
from ..errors import BadArgument, ContractError, DoubleFree, KVCacheOutOfMemory
from ..manager import KVCacheManager
from ..records import Req
from ..release import release_overallocated, retract
from ..sizing import Speculation
from ..snapshots import pool_state, snapshot
from ..window_eviction import evict_window
from .window_worlds import (
    bad_call,
    batch_of,
    begin,
    counts,
    extend,
    free_sets,
    leave,
    live,
    pages,
    plain,
    short,
    sound,
    window_pages,
    windowed,
)

OTHER = range(100, 200)

# One pool.


def slots_of(*ids: int) -> torch.Tensor:
    return torch.tensor([page * 4 + offset for page in ids for offset in range(4)])


def holding(checked: bool = True, need_sort: bool = False) -> tuple[PagedAllocator, torch.Tensor]:
    """Eight pages of four; pages 1 to 4 are held."""
    allocator = PagedAllocator(num_pages=8, page_size=4, checked=checked, need_sort=need_sort)
    return allocator, allocator.alloc(16)


def listed(allocator: PagedAllocator) -> list[int]:
    state = pool_state(allocator)
    return sorted([*state.free.tolist(), *state.staged.tolist()])


def queued(allocator: PagedAllocator) -> list[int]:
    return sorted(pool_state(allocator).queued.tolist())


def unchanged(allocator: PagedAllocator, kind: type[Exception], call: Callable[[], object]) -> Any:
    before = listed(allocator), queued(allocator), allocator.queued is None
    with pytest.raises(kind) as caught:
        call()
    assert (listed(allocator), queued(allocator), allocator.queued is None) == before
    return caught.value


@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_what_is_queued_is_not_available_before_the_group_closes(checked: bool, need_sort: bool) -> None:
    allocator, held = holding(checked, need_sort)
    allocator.free_group_begin()
    allocator.free(held[:8])
    allocator.free_segment(held[8:], 8)
    assert (allocator.available_size(), listed(allocator), queued(allocator)) == (16, [5, 6, 7, 8], [1, 2, 3, 4])
    error = unchanged(allocator, KVCacheOutOfMemory, lambda: allocator.alloc(20))
    assert (error.need, error.free, error.reclaimable) == (5, 4, 0)
    assert allocator.alloc(16).tolist() == slots_of(5, 6, 7, 8).tolist()
    allocator.free_group_end()
    assert (allocator.available_size(), listed(allocator), queued(allocator)) == (16, [1, 2, 3, 4], [])


@pytest.mark.parametrize("checked", [False, True])
def test_a_second_begin_and_an_end_without_a_begin_are_refused_and_lose_nothing(checked: bool) -> None:
    allocator, held = holding(checked)
    error = unchanged(allocator, BadArgument, allocator.free_group_end)
    assert (error.clause, error.argument, error.message) == ("KV-11", "free_group", "is not open")
    allocator.free_group_begin()
    allocator.free(held[:8])
    error = unchanged(allocator, BadArgument, allocator.free_group_begin)
    assert (error.argument, error.message) == ("free_group", "is open already; groups do not nest")
    allocator.free(held[8:])
    allocator.free_group_end()
    assert listed(allocator) == list(range(1, 9))
    assert unchanged(allocator, BadArgument, allocator.free_group_end).clause == "KV-11"
    allocator.free_group_begin()
    allocator.free_group_end()
    assert listed(allocator) == list(range(1, 9)), "an empty group"


@pytest.mark.parametrize("way", ["set", "segment"])
def test_a_free_is_of_the_values_that_the_tensor_had_when_it_was_called(way: str) -> None:
    allocator, held = holding()
    row = torch.zeros(8, dtype=torch.int64)
    row[:] = held[:8]
    allocator.free_group_begin()
    if way == "set":
        allocator.free(row[:8])
    else:
        allocator.free_segment(row[:8], 0)
    row[:] = held[8:]
    allocator.free_group_end()
    assert listed(allocator) == [1, 2, 5, 6, 7, 8]
    allocator.free(held[8:])
    assert listed(allocator) == list(range(1, 9))


def test_a_page_freed_as_a_set_and_as_a_segment_in_one_group_is_refused_the_second_time() -> None:
    allocator, held = holding()
    allocator.free_group_begin()
    allocator.free(held[:4])
    assert unchanged(allocator, DoubleFree, lambda: allocator.free_segment(held[:4], 0)).clause == "KV-8"
    allocator.free_segment(held[4:8], 4)
    assert unchanged(allocator, DoubleFree, lambda: allocator.free(held[4:12])).clause == "KV-8"
    assert unchanged(allocator, ContractError, lambda: allocator.free(held[8:9])).clause == "KV-15", "and no pieces"
    allocator.free_group_end()
    assert listed(allocator) == [1, 2, 5, 6, 7, 8]
    assert unchanged(allocator, DoubleFree, lambda: allocator.free(held[:4])).clause == "KV-8"


def test_a_group_never_holds_more_than_is_handed_out_even_unchecked() -> None:
    allocator, held = holding(checked=False)
    allocator.free_group_begin()
    allocator.free(held)
    assert unchanged(allocator, DoubleFree, lambda: allocator.free(held[:4])).clause == "KV-8"
    allocator.free_group_end()
    assert listed(allocator) == list(range(1, 9))


def test_clearing_inside_a_group_frees_everything_once_and_leaves_the_group_open() -> None:
    allocator, held = holding()
    allocator.free_group_begin()
    allocator.free(held[:8])
    allocator.clear()
    assert (listed(allocator), queued(allocator)) == (list(range(1, 9)), [])
    again = allocator.alloc(4)
    allocator.free(again)
    assert queued(allocator) == [1]
    allocator.free_group_end()
    assert listed(allocator) == list(range(1, 9))


# The manager.


@pytest.mark.parametrize("window", [False, True])
def test_a_group_spans_all_pools_and_its_state_is_seen(device: str, window: bool) -> None:
    manager = windowed(device, 64) if window else plain(device)
    req = begin(manager, range(10))
    held = [set(pages(manager, req))] + ([set(window_pages(manager, req))] if window else [])
    manager.free_group_begin()
    leave(manager, req)
    assert [set(pool.queued.tolist()) for pool in sound(manager).pools.values()] == held
    assert counts(manager) == [13] * len(held)
    assert bad_call(manager, manager.free_group_begin) == (BadArgument, "KV-11", "free_group")
    manager.free_group_end()
    assert counts(manager) == [16] * len(held)
    assert bad_call(manager, manager.free_group_end) == (BadArgument, "KV-11", "free_group")
    sound(manager)


def test_a_group_that_one_pool_has_open_already_is_not_opened_for_the_other(device: str) -> None:
    manager = windowed(device)
    assert manager.window_allocator is not None
    manager.window_allocator.free_group_begin()
    for call in (manager.free_group_begin, manager.free_group_end):
        with pytest.raises(BadArgument):
            call()
        assert manager.allocator.queued is None
        assert manager.window_allocator.queued is not None


def test_the_row_and_the_map_may_change_between_a_release_and_the_end_of_the_group(device: str) -> None:
    manager = windowed(device, 64)
    req, stays = begin(manager, range(16)), begin(manager, OTHER, 8)
    held, held_window, row = set(pages(manager, req)), set(window_pages(manager, req)), req._row
    manager.free_group_begin()
    leave(manager, req)
    # The row is bound anew and written over; the table is scribbled on where nobody is.
    other = begin(manager, range(50, 90), 12)
    assert other._row == row
    manager.req_to_token_pool.req_to_token[row, 12:] = stays._row
    assert not held & set(pages(manager, other))
    assert not held_window & set(window_pages(manager, other))
    manager.free_group_end()
    sound(manager)
    assert free_sets(manager)[0] >= held
    assert free_sets(manager)[1] >= held_window
    assert counts(manager) == [16 - 2 - 3] * 2


def test_a_rematch_that_writes_the_row_over_inside_a_group_frees_the_duplicates(device: str) -> None:
    """A checkpoint frees the request's own pages and puts the cache's in their place, in one call."""
    manager = windowed(device, 64, prefix_cache="radix")
    first, second = begin(manager, range(20), 9), begin(manager, [*range(100, 104)])
    leave(manager, second)
    second = Req("2", range(20))
    extend(manager, second, 9)
    mine, targets = pages(manager, second)[:2], window_pages(manager, second)[:2]
    checkpoint_kv_cache(manager, first)
    manager.free_group_begin()
    checkpoint_kv_cache(manager, second)
    state = sound(manager)
    assert pages(manager, second)[:2] == pages(manager, first)[:2]
    assert [pool.queued.tolist() for pool in state.pools.values()] == [mine, targets]
    manager.free_group_end()
    sound(manager)
    assert {*mine} <= free_sets(manager)[0]


def test_nothing_is_reclaimable_while_a_group_is_open_and_what_is_evicted_waits(device: str) -> None:
    manager = windowed(device, 64, num_pages=8, window_pages=8, prefix_cache="radix")
    leave(manager, begin(manager, range(20)), checkpoint=True)
    req = Req("r", OTHER)
    manager.free_group_begin()
    assert short(manager, lambda: alloc_for_extend(manager, [req], [16])) == ("full", 4, 3, 0)
    assert evict_from_tree_cache(manager, 8) == 8
    assert [len(pool.queued) for pool in sound(manager).pools.values()] == [2, 2]
    assert short(manager, lambda: alloc_for_extend(manager, [req], [16])) == ("full", 4, 3, 0)
    extend(manager, req, 12)
    manager.free_group_end()
    assert counts(manager) == [2, 2]
    extend(manager, req, 32)
    assert evict_from_tree_cache(manager, 99) == 0


@pytest.mark.parametrize("kind", ["pool", "pure"])
def test_what_a_window_gives_up_inside_a_group_is_no_room_for_the_same_step(device: str, kind: str) -> None:
    sizes: dict[str, Any] = {"num_pages": 4} if kind == "pure" else {"window_pages": 4}
    manager = windowed(device, 4, kind=kind, **sizes)
    req = begin(manager, range(40), 16)
    batch = batch_of(manager, req)
    manager.free_group_begin()
    assert short(manager, lambda: alloc_for_decode(manager, batch)) == ("window", 1, 0, 0)
    assert evict_window(manager, batch) == 12
    sound(manager)
    assert short(manager, lambda: alloc_for_decode(manager, batch)) == ("window", 1, 0, 0)
    manager.free_group_end()
    alloc_for_decode(manager, batch)
    sound(manager)
    assert kind == "pure" or live(manager, req) == [3, 4]


def test_every_way_of_freeing_is_queued(device: str) -> None:
    manager = windowed(device, 5, speculation=Speculation("dflash", 1, 1, 4), num_pages=40, window_pages=40)
    ways: dict[str, tuple[Callable[[KVCacheManager, Req], object], int, int]] = {
        "release": (lambda m, r: leave(m, r), 5, 5),
        "retract": (lambda m, r: retract(m, [r]), 5, 5),
        "trim": (release_overallocated, 2, 2),
        "slide": (lambda m, r: evict_window(m, batch_of(m, r)), 0, 3),
        "decode": (lambda m, r: alloc_for_decode(m, batch_of(m, r)), 0, 3),
    }
    for name, (way, full, window) in ways.items():
        req = begin(manager, range(30), 18)
        if name == "trim":
            alloc_for_spec_decode(manager, batch_of(manager, req), 8)
            sound(manager)
        before = counts(manager)
        manager.free_group_begin()
        way(manager, req)
        state = sound(manager)
        assert counts(manager) == before, name
        assert [len(pool.queued) for pool in state.pools.values()] == [full, window], name
        manager.free_group_end()
        sound(manager)
        assert counts(manager) == [before[0] + full, before[1] + window], name
        if req.kv.holds_kv:
            leave(manager, req)
    assert counts(manager) == [40, 40]
    assert not snapshot(manager).maps["window"].size
