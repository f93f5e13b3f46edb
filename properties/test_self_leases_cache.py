"""Leases beside a prefix cache: what is cached of a leased request stays, until the last lease on it is retired."""

from __future__ import annotations

import pytest

from ..allocation import alloc_for_extend
from ..auditing import audit
from ..caching import checkpoint_kv_cache, evict_from_tree_cache, peek_prefix
from ..config import KVCacheConfig
from ..errors import KVCacheOutOfMemory
from ..leases import begin_lease, retire
from ..manager import KVCacheManager
from ..records import Req
from ..release import release_kv_cache
from ..sizing import Speculation
from ..snapshots import snapshot
from ..window import Window
from ..window_eviction import evict_window
from .window_worlds import (
    WAYS,
    batch_of,
    begin,
    counts,
    extend,
    leave,
    pages,
    plain,
    quarantined,
    short,
    sound,
    windowed,
)

OTHER = range(100, 200)
DFLASH = Speculation("dflash", 1, 1, 4)


@pytest.mark.parametrize("way", WAYS)
def test_cached_pages_under_a_lease_are_not_evicted_and_say_so_in_a_refusal(device: str, way: str) -> None:
    manager = plain(device, prefix_cache="radix", num_pages=8)
    leave(manager, begin(manager, range(12)), checkpoint=True)
    req = begin(manager, range(30), 13)
    lease = begin_lease(manager, batch_of(manager, req))
    WAYS[way](manager, req)
    assert [len(waits) for waits in quarantined(manager)] == [1], "the page of its own that is not whole"
    assert sound(manager).cache[3].sum() == 3
    assert short(manager, lambda: alloc_for_extend(manager, [Req("n", OTHER)], [20])) == ("full", 5, 4, 0)
    assert evict_from_tree_cache(manager, 99) == 0
    retire(manager, lease)
    assert short(manager, lambda: alloc_for_extend(manager, [Req("n", OTHER)], [33])) == ("full", 9, 5, 3)
    assert evict_from_tree_cache(manager, 99) == 12
    assert counts(manager) == [8]


def test_what_is_published_under_a_lease_stays_locked_and_duplicates_wait(device: str) -> None:
    manager = plain(device, prefix_cache="radix")
    one, two = begin(manager, range(20), 10), Req("2", range(20))
    extend(manager, two, 14)
    held = pages(manager, two)
    lease = begin_lease(manager, batch_of(manager, two))
    checkpoint_kv_cache(manager, one)
    checkpoint_kv_cache(manager, two)
    assert quarantined(manager) == [set(held[:2])]
    leave(manager, one, two, checkpoint=True)
    assert evict_from_tree_cache(manager, 99) == 0, "the lease has all that the cache holds"
    assert peek_prefix(manager, Req("", range(20))) == 12
    retire(manager, lease)
    assert evict_from_tree_cache(manager, 99) == 12
    assert counts(manager) == [16]


@pytest.mark.parametrize("first", [0, 1])
def test_two_leases_hold_a_prefix_until_both_are_retired(device: str, first: int) -> None:
    manager = windowed(device, 8, prefix_cache="radix")
    req = begin(manager, range(40), 12)
    leases = [begin_lease(manager, batch_of(manager, req))]
    checkpoint_kv_cache(manager, req)
    extend(manager, req, 20)
    leases.append(begin_lease(manager, batch_of(manager, req)))
    leave(manager, req, checkpoint=True)
    assert evict_from_tree_cache(manager, 99) == 0
    retire(manager, leases[first])
    assert evict_from_tree_cache(manager, 99) == (0 if first == 0 else 8)
    sound(manager)
    retire(manager, leases[1 - first])
    assert evict_from_tree_cache(manager, 99) == (20 if first == 0 else 12)
    sound(manager)
    assert counts(manager) == [16, 16]


def test_the_window_that_a_leased_step_looks_at_is_not_evicted_from_the_cache(device: str) -> None:
    manager = windowed(device, 8, 5, prefix_cache="radix", speculation=DFLASH)
    req = begin(manager, range(40), 16)
    checkpoint_kv_cache(manager, req)
    lease = begin_lease(manager, batch_of(manager, req))
    held = pages(manager, req)
    leave(manager, req)
    other = Req("o", OTHER)
    assert short(manager, lambda: alloc_for_extend(manager, [other], [16])) == ("window", 4, 1, 2)
    extend(manager, other, 12)
    assert [bool(manager.window_map[page]) for page in held] == [False, False, True, True]
    leave(manager, other)
    retire(manager, lease)
    extend(manager, Req("p", OTHER), 20)
    assert counts(manager)[1] == 0, "all of it"


@pytest.mark.parametrize("way", ["checkpoint", "finish", "slide", "abort"])
def test_window_pages_under_a_lease_are_not_handed_out_however_the_request_gives_them_up(device: str, way: str) -> None:
    """The lease covers all of the window that was live when it began, not only what the next query looks at."""
    config = KVCacheConfig(4, 16, 4, 64, device, prefix_cache="radix", window=Window(4, 6), checked=False)
    manager = KVCacheManager(config)
    req = Req("r", range(40))
    _, batch = alloc_for_extend(manager, [req], [20])
    lease = begin_lease(manager, batch)
    if way == "checkpoint":
        checkpoint_kv_cache(manager, req)
    elif way == "slide":
        evict_window(manager, batch)
    else:
        release_kv_cache(manager, [req], checkpoint=way == "finish")
    with pytest.raises(KVCacheOutOfMemory) as refused:
        alloc_for_extend(manager, [Req("o", OTHER)], [16])
    assert (refused.value.pool, refused.value.need, refused.value.free, refused.value.reclaimable) == (
        "window",
        4,
        1,
        0,
    )
    retire(manager, lease)
    alloc_for_extend(manager, [Req("o", OTHER)], [12])
    assert not audit(snapshot(manager))
