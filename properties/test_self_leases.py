"""Leases: what a step still uses is not handed out, whatever becomes of its request, and comes back with the last."""

from __future__ import annotations

from typing import Any

import pytest

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..errors import BadArgument, DoubleFree, RowOverflow
from ..leases import begin_lease, late_result, retire
from ..records import Req
from ..release import release_overallocated, retract
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
    pages,
    plain,
    quarantined,
    short,
    sound,
    window_pages,
    windowed,
)

OTHER = range(100, 200)
DFLASH = Speculation("dflash", 1, 1, 4)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_request_leaves_under_a_lease_is_not_handed_out_before_it_is_retired(
    device: str, way: str, window: bool
) -> None:
    manager = windowed(device, 64) if window else plain(device)
    req, stays = begin(manager, range(18)), begin(manager, OTHER, 3)
    held = [set(pages(manager, req)), *([set(window_pages(manager, req))] if window else [])]
    lease = begin_lease(manager, batch_of(manager, req))
    before = free_sets(manager)
    WAYS[way](manager, req)
    assert quarantined(manager) == held
    assert free_sets(manager) == before
    new = Req("n", range(200, 300))
    assert short(manager, lambda: alloc_for_extend(manager, [new], [41])) == ("full", 11, 10, 0)
    extend(manager, new, 40)
    assert not held[0] & set(pages(manager, new))
    retire(manager, lease)
    assert quarantined(manager) == [set()] * len(held)
    assert free_sets(manager) == held
    leave(manager, new, stays)
    assert counts(manager) == [16] * len(held)


def test_a_lease_covers_what_its_rows_had_when_it_began_and_nothing_that_came_later(device: str) -> None:
    manager = plain(device)
    req = begin(manager, range(40), 6)
    lease = begin_lease(manager, batch_of(manager, req))
    extend(manager, req, 20)
    held = pages(manager, req)
    leave(manager, req)
    assert quarantined(manager) == [set(held[:2])], "the page of position 5 with all of it"
    assert set(held[2:]) <= free_sets(manager)[0]
    retire(manager, lease)
    assert counts(manager) == [16]


@pytest.mark.parametrize("window", [False, True])
def test_a_tail_that_is_trimmed_under_a_lease_waits_and_the_row_takes_other_pages(device: str, window: bool) -> None:
    manager = (
        windowed(device, 64, speculation=DFLASH) if window else plain(device, speculation=DFLASH)
    )  # fmt: skip
    req = begin(manager, range(40), 6)
    batch = batch_of(manager, req)
    alloc_for_spec_decode(manager, batch, 8)
    held = pages(manager, req)
    lease = begin_lease(manager, batch)
    assert release_overallocated(manager, req) == 8
    assert quarantined(manager)[0] == set(held[2:])
    extend(manager, req, 20)
    assert pages(manager, req)[:2] == held[:2]
    assert not set(pages(manager, req)[2:]) & set(held)
    retire(manager, lease)
    assert not any(quarantined(manager))
    assert set(held[2:]) <= free_sets(manager)[0]
    leave(manager, req)
    assert counts(manager) == [16] * (1 + window)


@pytest.mark.parametrize("kind", ["pool", "pure"])
def test_what_slides_out_of_the_window_under_a_lease_waits(device: str, kind: str) -> None:
    manager = windowed(device, 4, 8, kind=kind, num_pages=8)
    req = begin(manager, range(60), 16)
    gone = set((window_pages(manager, req) if kind == "pool" else pages(manager, req))[:3])
    batch = batch_of(manager, req)
    lease = begin_lease(manager, batch)
    extend(manager, req, 24)  # gives three pages up and takes two
    assert quarantined(manager)[-1] == gone
    assert counts(manager)[-1] == 2
    other = Req("o", OTHER)
    assert short(manager, lambda: alloc_for_extend(manager, [other], [12]))[:3] == (
        ("full", 3, 2) if kind == "pool" else ("window", 3, 2)
    )
    evict_window(manager, batch)  # [12, 20): page 3 is leased, page 4 is not
    gone_now = quarantined(manager)[-1]
    assert len(gone_now) == 4
    assert counts(manager)[-1] == 3
    retire(manager, lease)
    assert counts(manager)[-1] == 7
    assert not quarantined(manager)[-1]
    leave(manager, req)
    assert counts(manager) == [8] * (1 + (kind == "pool"))


@pytest.mark.parametrize("kind", ["pool", "pure"])
def test_a_step_does_not_count_what_its_window_gives_up_under_a_lease(device: str, kind: str) -> None:
    manager = windowed(device, 4, 4, kind=kind, num_pages=4 if kind == "pure" else 16)
    req = begin(manager, range(60), 16)
    batch = batch_of(manager, req)
    lease = begin_lease(manager, batch)
    assert short(manager, lambda: alloc_for_decode(manager, batch)) == ("window", 1, 0, 0)
    retire(manager, lease)
    alloc_for_decode(manager, batch)
    sound(manager)


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_leases_on_one_request_the_last_that_covers_a_page_gives_it_back(device: str, first: int) -> None:
    manager = windowed(device, 64)
    req = begin(manager, range(40), 6)
    leases = [begin_lease(manager, batch_of(manager, req))]
    extend(manager, req, 14)
    leases.append(begin_lease(manager, batch_of(manager, req)))
    held = pages(manager, req)
    leave(manager, req)
    assert quarantined(manager)[0] == set(held)
    retire(manager, leases[first])
    # The shorter lease lets nothing go that the longer one covers, the longer what the shorter does not.
    assert quarantined(manager)[0] == set(held if first == 0 else held[:2])
    assert counts(manager) == [12 if first == 0 else 14] * 2
    retire(manager, leases[1 - first])
    assert counts(manager) == [16, 16]


def test_a_lease_is_on_a_request_and_not_on_the_row_that_another_has_now(device: str) -> None:
    manager = plain(device)
    req = begin(manager, range(8))
    row = req._row
    lease = begin_lease(manager, batch_of(manager, req))
    held = set(pages(manager, req))
    retract(manager, [req])
    other = begin(manager, OTHER, 12)
    assert other._row == row
    mine = set(pages(manager, other))
    leave(manager, other)
    assert quarantined(manager) == [held]
    assert mine <= free_sets(manager)[0]
    extend(manager, req, 8)
    leave(manager, req)
    assert quarantined(manager) == [held], "bound anew, it is another one"
    retire(manager, lease)
    assert counts(manager) == [16]


def test_a_lease_on_several_requests_lets_each_go_by_itself(device: str) -> None:
    manager = plain(device)
    reqs = [begin(manager, range(base, base + 9)) for base in (0, 50, 90)]
    lease = begin_lease(manager, batch_of(manager, *reqs))
    leave(manager, reqs[1])
    assert len(quarantined(manager)[0]) == 3
    leave(manager, reqs[0], reqs[2])
    assert len(quarantined(manager)[0]) == 9
    retire(manager, lease)
    assert counts(manager) == [16]


def test_a_group_may_be_open_when_a_lease_is_retired(device: str) -> None:
    manager = windowed(device, 64)
    req = begin(manager, range(9))
    lease = begin_lease(manager, batch_of(manager, req))
    leave(manager, req)
    manager.free_group_begin()
    retire(manager, lease)
    assert [len(pool.queued) for pool in sound(manager).pools.values()] == [3, 3]
    manager.free_group_end()
    sound(manager)
    assert counts(manager) == [16, 16]


def test_a_lease_changes_nothing_for_a_request_that_goes_on(device: str) -> None:
    manager = windowed(device, 8, speculation=DFLASH, num_pages=24, window_pages=24)
    leased, free = begin(manager, range(40), 6), begin(manager, OTHER, 6)
    batches = batch_of(manager, leased), batch_of(manager, free)
    lease = begin_lease(manager, batches[0])
    for batch in batches:
        alloc_for_spec_decode(manager, batch, 8)
    late_result(manager, lease, [5])
    commit(manager, batches[1], [5])
    for batch, req in zip(batches, (leased, free), strict=True):
        release_overallocated(manager, req)
        alloc_for_decode(manager, batch)
        sound(manager)
    records = sound(manager).records[:-1]
    assert (records[:, leased._row] == records[:, free._row]).all()
    retire(manager, lease)
    leave(manager, leased, free)
    assert counts(manager) == [24, 24]


# Late results.


@pytest.mark.parametrize("gone", [*WAYS, "bound anew"])
def test_a_late_result_passes_over_a_member_that_is_not_what_it_was(device: str, gone: str) -> None:
    manager = plain(device, speculation=DFLASH)
    one, two = begin(manager, range(40), 6), begin(manager, OTHER, 5)
    batch = batch_of(manager, one, two)
    alloc_for_spec_decode(manager, batch, 8)
    lease = begin_lease(manager, batch)
    WAYS.get(gone, WAYS["retract"])(manager, one)
    if gone == "bound anew":
        extend(manager, one, 9)
    before = sound(manager)
    assert late_result(manager, lease, [60, 3]).tolist() == [False, True]
    state = sound(manager)
    assert state.record(two._row)["committed"] == 8
    changed = (state.records != before.records).nonzero()
    assert set(changed[1].tolist()) == {two._row}, "one number of one record"
    assert one.kv.kv_committed_len == (9 if gone == "bound anew" else 0)
    leave(manager, two)
    assert late_result(manager, lease, [0, 0]).tolist() == [False, False]
    retire(manager, lease)
    sound(manager)
    assert counts(manager) == [13 if gone == "bound anew" else 16]


def test_a_late_result_that_cannot_be_is_refused_for_all_members(device: str) -> None:
    manager = plain(device, speculation=DFLASH, context_len=10)
    one, two = begin(manager, range(40), 6), begin(manager, OTHER, 5)
    batch = batch_of(manager, one, two)
    alloc_for_spec_decode(manager, batch, 8)
    lease = begin_lease(manager, batch)
    cases: list[tuple[Any, tuple[Any, ...]]] = [
        ([1, 12], (BadArgument, "KV-15", "accepted")),
        ([1, 6], (RowOverflow, "KV-4", "accepted")),
        ([1], (BadArgument, "KV-15", "accepted")),
        ([1, -1], (BadArgument, "KV-15", "accepted")),
        ([1, 1.0], (BadArgument, "KV-15", "accepted")),
    ]
    for accepted, expected in cases:
        assert bad_call(manager, lambda accepted=accepted: late_result(manager, lease, accepted)) == expected  # type: ignore[misc]
    release_overallocated(manager, one)
    assert bad_call(manager, lambda: late_result(manager, lease, [1, 1])) == (BadArgument, "KV-15", "accepted")
    retire(manager, lease)
    assert bad_call(manager, lambda: late_result(manager, lease, [0, 0])) == (BadArgument, "KV-16", "lease")
    assert bad_call(manager, lambda: retire(manager, lease)) == (DoubleFree, "KV-16", "lease")
