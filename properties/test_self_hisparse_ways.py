"""HiSparse: every way out of every state, under leases and in free groups; each page of each pool comes back once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..allocation import alloc_for_spec_decode, commit
from ..leases import begin_lease, retire
from ..manager import KVCacheManager
from ..offload import drop_backup, swap_out
from ..records import Req
from ..release import retract
from ..sizing import Speculation
from .hisparse_worlds import admit, admitted, decode, held, prealloc_host, sparse
from .window_worlds import WAYS, batch_of, begin, counts, extend, free_sets, leave, quarantined, sound

OTHER = range(100, 200)
DFLASH = Speculation("dflash", 1, 1, 4)


def _resident(manager: KVCacheManager) -> Req:
    return begin(manager, range(40), 10)


def _half_hosted(manager: KVCacheManager) -> Req:
    req = begin(manager, range(40), 5)
    swap_out(manager, req)
    extend(manager, req, 18)
    return req


def _preallocated(manager: KVCacheManager) -> Req:
    req = Req("p", range(40))
    prealloc_host(manager, req, 10, 2 if manager.window_allocator is not None else None)
    return req


def _decoding(manager: KVCacheManager) -> Req:
    req = admitted(manager, 3)
    decode(manager, req, steps=9)
    return req


def _drafted(manager: KVCacheManager) -> Req:
    req = _decoding(manager)
    batch = batch_of(manager, req)
    alloc_for_spec_decode(manager, batch, 8)
    commit(manager, batch, [2])
    return req


def _resumed(manager: KVCacheManager) -> Req:
    req = _decoding(manager)
    retract(manager, [req], backup=True)
    prealloc_host(manager, req, 20)
    return req


STATES: list[Callable[[KVCacheManager], Req]] = [
    _resident, _half_hosted, _preallocated, lambda m: admitted(m, 30), _decoding, _drafted, _resumed,
]  # fmt: skip
OUT = WAYS | {"backup": lambda manager, req: retract(manager, [req], backup=True)}


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("way", OUT)
@pytest.mark.parametrize("number", range(len(STATES)))
@pytest.mark.parametrize("during", ["nothing", "lease", "group"])
def test_every_page_of_every_pool_comes_back_once(
    device: str, number: int, way: str, window: bool, during: str
) -> None:
    manager = sparse(device, window=window, speculation=DFLASH)
    stays, req = admitted(manager, 6, OTHER), STATES[number](manager)
    before, mine = free_sets(manager), held(manager, "host", req)
    lease = begin_lease(manager, batch_of(manager, req)) if during == "lease" else None
    if during == "group":
        manager.free_group_begin()
    OUT[way](manager, req)
    kept = set(sound(manager).held["backup"].get(req.rid, ()))
    assert kept == (set(mine) if way == "backup" else set())
    if during != "nothing":
        assert free_sets(manager) == before
    if lease is not None:
        assert not kept & quarantined(manager)[-1]
        retire(manager, lease)
    if during == "group":
        manager.free_group_end()
    sound(manager)
    if kept:
        drop_backup(manager, req)
    leave(manager, stays)
    assert counts(manager) == [16] * (3 + window)
    assert not any(quarantined(manager))
    assert not manager.offload or not manager.offload.map.any()


def test_what_an_admission_gives_back_waits_for_the_lease_of_the_prefill(device: str) -> None:
    manager = sparse(device, 1)
    req = begin(manager, range(40), 16)
    swap_out(manager, req)
    lease = begin_lease(manager, batch_of(manager, req))
    admit(manager, req)
    assert quarantined(manager) == [set(), {3, 4}, set()]
    leave(manager, req)
    assert quarantined(manager) == [{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}]
    retire(manager, lease)
    sound(manager)
    assert counts(manager) == [16, 16, 16]


def test_what_an_admission_gives_back_in_a_group_is_there_when_it_ends(device: str) -> None:
    manager = sparse(device, 1)
    req = begin(manager, range(40), 16)
    swap_out(manager, req)
    manager.free_group_begin()
    admit(manager, req)
    assert counts(manager) == [12, 12, 12]
    manager.free_group_end()
    assert counts(manager) == [12, 14, 12]
    sound(manager)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_copy_to_the_host_keeps_its_pages_through_retractions(
    device: str, dropped: bool, again: int, order: int
) -> None:
    manager = sparse(device)
    req = admitted(manager, 10)
    leases, mine = [begin_lease(manager, batch_of(manager, req))], set(held(manager, "host", req))
    for _ in range(again):
        retract(manager, [req], backup=True)
        prealloc_host(manager, req, 10)
        leases.append(begin_lease(manager, batch_of(manager, req)))
    if dropped:
        retract(manager, [req], backup=True)
        drop_backup(manager, req)
    else:
        leave(manager, req)
    for lease in leases[::order]:
        assert quarantined(manager)[-1] == mine, "one of them covers the pages under its binding"
        assert counts(manager)[-1] == 13
        retire(manager, lease)
    sound(manager)
    assert counts(manager) == [16, 16, 16]
    assert not manager.leases.former


def test_a_lease_before_a_retraction_covers_nothing_of_a_request_that_begins_anew(device: str) -> None:
    manager = sparse(device)
    req = admitted(manager, 10)
    lease = begin_lease(manager, batch_of(manager, req))
    retract(manager, [req])
    extend(manager, req, 10)
    swap_out(manager, req)
    mine = set(held(manager, "host", req))
    leave(manager, req)
    assert mine <= free_sets(manager)[-1]
    retire(manager, lease)
    assert counts(manager) == [16, 16, 16]
