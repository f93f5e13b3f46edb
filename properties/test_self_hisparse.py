"""HiSparse: what each call gives and takes on logical, window, device and host pool, and what is refused as wrong.

`_ways` has the ways out, `_short` the shortages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..errors import BadArgument, RowOverflow, StaleRow
from ..hisparse import HiSparse
from ..offload import alloc_for_decode_prealloc_hisparse, bind_newest, device_buffer, drop_backup, swap_out
from ..preallocation import alloc_for_decode_prealloc
from ..records import Req
from ..release import release_overallocated, retract
from ..sizing import Speculation
from .hisparse_worlds import admit, admitted, decode, held, prealloc_host, sparse
from .window_worlds import bad_call, batch_of, begin, counts, extend, leave, live, pages, plain, sound

OTHER = range(100, 200)
DFLASH = Speculation("dflash", 1, 1, 4)


# What each call returns.


@pytest.mark.parametrize("window", [False, True])
def test_an_extend_takes_a_device_page_for_each_logical_one(device: str, window: bool) -> None:
    manager = sparse(device, window=window)
    req = Req("r", range(40))
    slots, _ = alloc_for_extend(manager, [req], [10])
    assert slots.tolist() == list(range(4, 14))
    extend(manager, req, 15)  # from the middle of a page, the same one
    assert sound(manager).maps["device"].tolist() == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert counts(manager) == [12] * (2 + window) + [16]
    leave(manager, req)
    assert counts(manager) == [16] * (3 + window)


@pytest.mark.parametrize(
    ("size", "ratio", "expected"),
    [
        (4, 1, ([*range(4, 14)], [14, 15, 16, 17, 18], [19])),
        (8, 4, ([2, 3], [4], [5])),  # whole groups of four tokens, two a page
        (4, 4, ([1, 2], [3], [4])),
    ],
)
def test_a_swap_out_returns_host_slots_for_what_is_new(
    device: str, size: int, ratio: int, expected: tuple[list[int], ...]
) -> None:
    manager = sparse(device, page_size=size, ratio=ratio)
    req = begin(manager, range(40), 10)
    for length, slots in zip((10, 15, 16), expected, strict=True):
        extend(manager, req, length)
        assert swap_out(manager, req).tolist() == slots
        assert len(held(manager, "host", req)) == -(-length // size)
        assert swap_out(manager, req).tolist() == [], "nothing is new"
    leave(manager, req)
    assert counts(manager) == [16, 16, 16]


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [(1, [1, 2]), (4, [1, 2]), (5, [1, 2, 3]), (8, [1, 2, 3]), (9, [1, 2, 3, 4]), (60, [1, 2, 3, 4])],
)
@pytest.mark.parametrize("ratio", [1, 4])
def test_resident_pages_become_the_buffer_as_far_as_they_go(
    device: str, buffer: int, expected: list[int], ratio: int
) -> None:
    manager = sparse(device, buffer, ratio=ratio)
    req = begin(manager, range(40), 10)
    swap_out(manager, req)
    a_page = 4 // ratio
    assert admit(manager, req) == [page * a_page + i for page in expected for i in range(a_page)]
    assert held(manager, "buffer", req) == tuple(expected)
    assert counts(manager) == [13, 16 - len(expected), 13]
    assert not sound(manager).maps["device"].size
    leave(manager, req)
    assert counts(manager) == [16, 16, 16]


@pytest.mark.parametrize(("fill", "pages"), [(1, 2), (4, 2), (5, 3), (8, 3), (9, 3), (30, 3)])
def test_what_came_to_the_host_is_admitted_into_pages_that_are_all_new(device: str, fill: int, pages: int) -> None:
    manager = sparse(device)
    req = Req("r", range(40))
    assert prealloc_host(manager, req, fill) == list(range(4, 4 + fill))
    assert counts(manager) == [16 - -(-fill // 4), 16, 16 - -(-fill // 4)]
    assert len(admit(manager, req)) == 4 * pages
    assert counts(manager)[1] == 16 - pages
    leave(manager, req)


def test_a_pre_allocation_returns_a_slot_for_each_whole_group(device: str) -> None:
    manager = sparse(device, ratio=4, page_size=8)
    assert prealloc_host(manager, Req("r", range(40)), 23) == [2, 3, 4, 5, 6]
    assert prealloc_host(manager, Req("s", OTHER), 3) == []


@pytest.mark.parametrize(("tail", "expected"), [(None, [0, 1, 2]), (6, [1, 2]), (2, [2]), (10, [0, 1, 2])])
def test_a_tail_alone_has_a_window(device: str, tail: int | None, expected: list[int]) -> None:
    manager = sparse(device, window=True)
    req = Req("r", range(40))
    prealloc_host(manager, req, 10, tail)
    assert live(manager, req) == expected
    assert counts(manager) == [13, 16 - len(expected), 16, 13]
    assert req.kv.swa_evicted_seqlen == (expected[0] * 4)
    leave(manager, req)
    assert counts(manager) == [16] * 4


@pytest.mark.parametrize("ratio", [1, 4])
def test_the_newest_token_has_the_reserved_slot_and_the_one_before_it_none(device: str, ratio: int) -> None:
    manager = sparse(device, ratio=ratio)
    one, two = admitted(manager, 7), admitted(manager, 4, OTHER)
    reserved = [held(manager, "buffer", req)[0] * (4 // ratio) for req in (one, two)]
    for step in range(1, 10):
        assert decode(manager, one, two) == reserved
        for req, slot, begun in zip((one, two), reserved, (7, 4), strict=True):
            at = begun + step - 1
            logical = pages(manager, req)[at // 4] * 4 + at % 4
            assert held(manager, "newest", req) == (logical, slot)
            assert sound(manager).record(req._row)["hosted"] == at, "what was there has its place on the host"
            assert len(held(manager, "host", req)) == -(-at // 4)
    leave(manager, one, two)
    assert counts(manager) == [16, 16, 16]


def test_a_buffer_grows_up_to_its_size_and_keeps_the_pages_that_it_has(device: str) -> None:
    manager = sparse(device, 10)
    req = admitted(manager, 4)
    grown = [held(manager, "buffer", req)]
    for _ in range(14):
        decode(manager, req)
        grown.append(held(manager, "buffer", req))
        assert grown[-1][: len(grown[-2])] == grown[-2]
    assert [len(buffer) for buffer in grown] == [2, *[3] * 4, *[4] * 10]
    leave(manager, req)
    assert counts(manager) == [16, 16, 16]


def test_tokens_that_were_decoded_at_once_get_their_places_together(device: str) -> None:
    manager = sparse(device, 16, speculation=DFLASH)
    req = admitted(manager, 4)
    batch = batch_of(manager, req)
    alloc_for_spec_decode(manager, batch, 8)
    commit(manager, batch, [7])
    bind_newest(manager, batch)
    state = sound(manager)
    assert (len(state.held["host"][req._row]), len(state.held["buffer"][req._row])) == (3, 4)
    before = counts(manager)
    assert release_overallocated(manager, req) == 0
    alloc_for_spec_decode(manager, batch, 8)
    assert release_overallocated(manager, req) == 8
    sound(manager)
    assert counts(manager) == before, "a draft has logical pages alone"
    leave(manager, req)
    assert counts(manager) == [16, 16, 16]


# Back-ups.


def test_a_backup_stays_until_the_request_resumes_and_is_its_beginning_then(device: str) -> None:
    manager = sparse(device)
    req = admitted(manager, 10)
    decode(manager, req, steps=3)
    kept = held(manager, "host", req)
    retract(manager, [req], backup=True)
    assert sound(manager).held["backup"] == {req.rid: kept}
    assert counts(manager) == [16, 16, 13]
    assert bad_call(manager, lambda: prealloc_host(manager, req, 11)) == (BadArgument, "KV-15", "fill_len")
    slots = prealloc_host(manager, req, 13)
    assert slots[:12] == [page * 4 + i for page in kept for i in range(4)]
    assert held(manager, "host", req)[:3] == kept
    assert not sound(manager).held["backup"]
    assert bad_call(manager, lambda: drop_backup(manager, req)) == (BadArgument, "KV-15", "req")
    admit(manager, req)
    leave(manager, req)
    assert counts(manager) == [16, 16, 16]


def test_without_a_backup_a_request_begins_anew_and_one_with_it_may_drop_it(device: str) -> None:
    manager = sparse(device)
    one, two, three = admitted(manager, 10), admitted(manager, 5, OTHER), begin(manager, range(9))
    retract(manager, [one])
    retract(manager, [two, three], backup=True)
    assert set(sound(manager).held["backup"]) == {two.rid}, "nothing of the third one is on the host"
    extend(manager, one, 12)
    extend(manager, three, 9)
    assert bad_call(manager, lambda: alloc_for_extend(manager, [two], [5])) == (BadArgument, "KV-15", "reqs")
    drop_backup(manager, two)
    extend(manager, two, 5)
    leave(manager, one, two, three)
    assert counts(manager) == [16, 16, 16]


# Calls that cannot be right.


def test_a_call_in_a_state_that_does_not_allow_it_is_refused(device: str) -> None:
    manager = sparse(device, window=True, speculation=DFLASH)
    resident, running, came = begin(manager, range(40), 9), admitted(manager, 9), Req("c", range(10))
    prealloc_host(manager, came, 9)
    gone, new, plain_one = Req("g", range(40)), Req("n", range(10)), plain(device)
    there = begin(plain_one, range(8))
    batch = batch_of(manager, running, resident)
    bad, stale = (BadArgument, "KV-15"), (StaleRow, "KV-15")
    make: Any = alloc_for_decode_prealloc_hisparse
    cases: list[tuple[Callable[[], object], tuple[Any, ...]]] = [
        *[(lambda fill=fill: make(manager, new, fill_len=fill), (*bad, "fill_len")) for fill in (0, -1, 11, 2.0, True)],
        *[
            (lambda tail=tail: make(manager, new, fill_len=9, swa_tail_len=tail), (*bad, "swa_tail_len"))
            for tail in (-1, 2, 10, 1.0)
        ],
        (lambda: make(manager, Req("l", range(80)), fill_len=65), (RowOverflow, "KV-4", "fill_len")),
        (lambda: make(manager, running, fill_len=9), (*stale, "req")),
        (lambda: make(manager, there, fill_len=8), (*stale, "reqs")),
        (lambda: make(manager, None, fill_len=8), (*bad, "req")),
        (lambda: alloc_for_decode_prealloc(manager, new, fill_len=4), (*bad, "req")),
        *[(lambda call=call: call(manager, gone), (*stale, "reqs")) for call in (swap_out, device_buffer)],
        *[(lambda call=call: call(manager, there), (*stale, "reqs")) for call in (swap_out, device_buffer)],
        *[(lambda req=req: swap_out(manager, req), (*bad, "req")) for req in (running, came)],
        *[(lambda req=req: device_buffer(manager, req), (*bad, "req")) for req in (running, resident)],
        *[(lambda req=req: drop_backup(manager, req), (*bad, "req")) for req in (running, gone, resident)],
        (lambda: bind_newest(manager, batch), (*bad, "batch")),
        (lambda: bind_newest(manager, None), (*bad, "batch")),  # type: ignore[arg-type]
        (lambda: bind_newest(manager, batch_of(plain_one, there)), (*stale, "batch")),
        (lambda: alloc_for_decode(manager, batch), (*bad, "batch")),
        (lambda: alloc_for_spec_decode(manager, batch, 4), (*bad, "batch")),
        *[(lambda req=req: alloc_for_extend(manager, [req], [10]), (*bad, "reqs")) for req in (running, came)],
        (lambda: retract(manager, [running], backup=1), (*bad, "backup")),  # type: ignore[arg-type]
    ]
    for number, (call, expected) in enumerate(cases):
        assert bad_call(manager, call) == expected, number
    leave(manager, running)
    assert bad_call(manager, lambda: bind_newest(manager, batch)) == (*stale, "batch")


def test_without_hisparse_its_calls_are_refused(device: str) -> None:
    manager = plain(device)
    req, new = begin(manager, range(8)), Req("n", range(8))
    calls: list[tuple[str, Callable[[], object]]] = [
        ("req", lambda: alloc_for_decode_prealloc_hisparse(manager, new, fill_len=8)),
        ("req", lambda: swap_out(manager, req)),
        ("req", lambda: device_buffer(manager, req)),
        ("req", lambda: drop_backup(manager, req)),
        ("batch", lambda: bind_newest(manager, batch_of(manager, req))),
        ("backup", lambda: retract(manager, [req], backup=True)),
    ]
    for argument, call in calls:
        assert bad_call(manager, call) == (BadArgument, "KV-15", argument)


@pytest.mark.parametrize("changes", [{"prefix_cache": "radix"}, {"page_size": 2, "ratio": 4}, {"hisparse": 7}])
def test_a_configuration_that_cannot_be_is_refused(device: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadArgument) as caught:
        sparse(device, **changes)
    assert caught.value.argument == "hisparse"


@pytest.mark.parametrize(
    ("sizes", "name"),
    [((0, 1, 1), "device_pages"), ((1, -1, 1), "host_pages"), ((1, 1, 0), "buffer_size"), ((1, 1, 1, 2), "ratio"),
     ((1.0, 1, 1), "device_pages"), ((1, True, 1), "host_pages")],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(sizes: Any, name: str) -> None:
    with pytest.raises(BadArgument) as caught:
        HiSparse(*sizes)
    assert (caught.value.clause, caught.value.argument) == ("KV-15", name)
