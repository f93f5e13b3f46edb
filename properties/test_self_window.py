"""The window pool beside the full one: one demand for both, one map, and what slides out comes back.

The rule of what may go is written here once more, page by page, and the core is held to it at every length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..manager import KVCacheManager
from ..preallocation import fill_hole
from ..records import Req
from ..sizing import Speculation
from ..window_eviction import evict_window
from .window_worlds import (
    batch_of,
    begin,
    counts,
    leave,
    live,
    pages,
    prealloc,
    short,
    sound,
    window_pages,
    windowed,
)

OTHER = range(100, 200)
DFLASH = Speculation("dflash", 1, 1, 4)
CACHES = pytest.mark.parametrize("cache", ["none", "radix"])


@dataclass(frozen=True)
class Path:
    """A call, what stands before it, and the pages that it takes of the full pool and of the window pool."""

    before: Callable[[KVCacheManager], Any]
    call: Callable[[KVCacheManager, Any], object]
    full: int
    window: int


def three(manager: KVCacheManager) -> Any:
    return batch_of(manager, begin(manager, range(30), 8), begin(manager, OTHER, 4), begin(manager, range(50, 80), 5))


PATHS = {
    "extend": Path(
        lambda m: begin(m, range(30), 5), lambda m, r: alloc_for_extend(m, [r, Req("n", OTHER)], [13, 10]), 5, 5
    ),
    "extend inside a page": Path(lambda m: begin(m, range(30), 5), lambda m, r: alloc_for_extend(m, [r], [8]), 0, 0),
    "decode": Path(three, alloc_for_decode, 2, 2),
    "spec decode": Path(
        lambda m: batch_of(m, begin(m, range(30), 5)), lambda m, b: alloc_for_spec_decode(m, b, 8), 2, 2
    ),
    "prealloc": Path(lambda m: Req("p", range(30)), lambda m, r: prealloc(m, r, 10), 3, 3),
    "prealloc of a tail": Path(lambda m: Req("p", range(30)), lambda m, r: prealloc(m, r, 18, None, 6), 5, 2),
    "prealloc of no tail": Path(lambda m: Req("p", range(30)), lambda m, r: prealloc(m, r, 18, None, 18), 5, 5),
    "prealloc without a window": Path(lambda m: Req("p", range(30)), lambda m, r: prealloc(m, r, 16, None, 0), 4, 0),
    "fill": Path(lambda m: prealloc(m, Req("p", range(30)), 10, 8), fill_hole, 2, 2),
    "fill before a tail": Path(lambda m: prealloc(m, Req("p", range(30)), 18, 8, 6), fill_hole, 2, 0),
}


@CACHES
@pytest.mark.parametrize("name", PATHS)
def test_a_path_takes_exactly_its_demand_of_both_pools_and_is_refused_where_either_is_one_short(
    device: str, name: str, cache: str
) -> None:
    path = PATHS[name]
    options: dict[str, Any] = {"prefix_cache": cache, "speculation": DFLASH}
    wide = windowed(device, 64, **options)
    given = path.before(wide)
    used = [16 - free for free in counts(wide)]
    path.call(wide, given)
    sound(wide)
    assert [16 - free for free in counts(wide)] == [used[0] + path.full, used[1] + path.window]
    for pool, need in (("full", path.full), ("window", path.window)):
        if need:
            sizes = used[0] + path.full, used[1] + path.window
            full, window = (size - (name == pool) for name, size in zip(("full", "window"), sizes, strict=True))
            manager = windowed(device, 64, window or 1, **options, num_pages=full)
            given = path.before(manager)
            assert short(manager, lambda m=manager, g=given: path.call(m, g)) == (pool, need, need - 1, 0)  # type: ignore[misc]
    exact = windowed(device, 64, used[1] + path.window or 1, **options, num_pages=used[0] + path.full)
    path.call(exact, path.before(exact))
    sound(exact)


def test_short_of_both_pools_names_the_full_one_and_rows_come_before_it(device: str) -> None:
    manager = windowed(device, 64, 2, num_pages=2, max_requests=1)
    req = Req("r", range(30))
    assert short(manager, lambda: alloc_for_extend(manager, [req], [20])) == ("full", 5, 2, 0)
    assert short(manager, lambda: alloc_for_extend(manager, [req, Req("s", OTHER)], [20, 9])) == ("rows", 2, 1, 0)


def test_every_live_page_has_a_window_page_of_its_own_and_no_other_page_has_one(device: str) -> None:
    manager = windowed(device, 8)
    one, two = begin(manager, range(40), 18), begin(manager, OTHER, 7)
    for step in range(14):
        alloc_for_decode(manager, batch_of(manager, one, two))
        sound(manager)
        first = [max(length - 1 - 8, 0) // 4 for length in (19 + step, 8 + step)]  # by what was committed before
        held = [pages(manager, req)[begin:] for req, begin in zip((one, two), first, strict=True)]
        targets = [page for req in (one, two) for page in window_pages(manager, req) if page]
        assert [live(manager, req)[0] for req in (one, two)] == first
        assert set(manager.window_map.nonzero().flatten().tolist()) == {*held[0], *held[1]}
        assert len(set(targets)) == len(targets) == len(held[0]) + len(held[1])
        assert counts(manager)[1] == 16 - len(targets)


LENGTHS = range(1, 34)


def lengths_of(device: str) -> range:
    """All of them, or in a kernel lane, where a step takes ten times as long, one in eleven: the rule is the host's."""
    return LENGTHS if device == "cpu" else LENGTHS[::11]


def may_go(length: int, size: int, page_size: int, interval: int, floor: int, cursor: int = 0) -> list[int]:
    """Pages past `cursor` of a request of so many committed tokens that no later query looks at and no floor keeps."""
    first = max(cursor // page_size, -(-floor // page_size))
    if length - size < first * page_size + interval:
        return []
    return [page for page in range(first, length // page_size) if (page + 1) * page_size <= length - size]


@pytest.mark.parametrize("floor", [0, 5])
@pytest.mark.parametrize("interval", [0, 6])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("size", [1, 4, 5, 9])
def test_what_no_later_query_looks_at_goes_and_nothing_else(
    device: str, size: int, page_size: int, interval: int, floor: int
) -> None:
    sizes: dict[str, Any] = {"page_size": page_size, "num_pages": 40}
    manager = windowed(device, size, 40, interval=interval, floor=floor, **sizes)
    for length in lengths_of(device):
        req = begin(manager, range(length))
        gone = may_go(length, size, page_size, interval, floor)
        assert evict_window(manager, batch_of(manager, req)) == len(gone) * page_size
        sound(manager)
        assert live(manager, req) == [page for page in range(-(-length // page_size)) if page not in gone]
        assert evict_window(manager, batch_of(manager, req)) == 0, "once"
        leave(manager, req)
    assert counts(manager) == [40, 40]


@pytest.mark.parametrize(("size", "page_size", "interval", "floor"), [(5, 4, 0, 0), (5, 4, 6, 0), (3, 1, 2, 2)])
def test_while_a_request_decodes_its_window_slides_by_the_same_rule(
    device: str, size: int, page_size: int, interval: int, floor: int
) -> None:
    manager = windowed(device, size, 40, interval=interval, floor=floor, page_size=page_size, num_pages=40)
    req, gone = begin(manager, range(3)), list[int]()
    for length in range(3, 33):
        gone += may_go(length, size, page_size, interval, floor, (gone[-1] + 1) * page_size if gone else 0)
        alloc_for_decode(manager, batch_of(manager, req))
        sound(manager)
        assert live(manager, req) == [page for page in range(-(-(length + 1) // page_size)) if page not in gone]


@pytest.mark.parametrize("algorithm", ["dflash", "eagle"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("size", [1, 4, 5, 9])
def test_where_prefixes_are_shared_a_whole_window_stays_live_below_the_end_of_the_key(
    device: str, size: int, page_size: int, algorithm: str
) -> None:
    sizes: dict[str, Any] = {"page_size": page_size, "num_pages": 40, "prefix_cache": "radix"}
    for length in lengths_of(device):
        manager = windowed(device, size, 40, **sizes, speculation=Speculation(algorithm, 1, 1, 1))
        req = begin(manager, range(length))
        key = (length - (algorithm == "eagle")) // page_size
        keep = -(-max(size, page_size) // page_size)
        gone = list(range(max(key - keep, 0))) if length > size else []
        evict_window(manager, batch_of(manager, req))
        sound(manager)
        assert live(manager, req) == [page for page in range(-(-length // page_size)) if page not in gone]
        assert req.kv.swa_evicted_seqlen < max(key * page_size, 1), "the last page of the key is live"
        leave(manager, req, checkpoint=True)
        again = begin(manager, [*range(length), *OTHER], length + 1)
        assert again.kv.cache_protected_len == max(key - (algorithm == "eagle" and key * page_size == length), 0) * (
            page_size
        ), "and what was published is hit"


def test_an_eviction_counts_what_is_committed_and_not_what_a_step_was_promised(device: str) -> None:
    manager = windowed(device, 8, speculation=DFLASH)
    req = begin(manager, range(40), 12)
    batch = batch_of(manager, req)
    alloc_for_spec_decode(manager, batch, 8)
    assert live(manager, req) == [1, 2, 3, 4], "twenty are allocated, twelve committed"
    assert evict_window(manager, batch) == 0
    commit(manager, batch, [1])
    assert evict_window(manager, batch) == 0
    assert live(manager, req) == [1, 2, 3, 4], "position 6 is still looked at"
    commit(manager, batch, [3])
    assert evict_window(manager, batch) == 4
    sound(manager)


@CACHES
def test_what_a_window_gives_up_is_room_for_the_step_that_follows(device: str, cache: str) -> None:
    manager = windowed(device, 4, 5, prefix_cache=cache)
    req, other = begin(manager, range(40), 16), begin(manager, OTHER, 4)
    batch = batch_of(manager, req, other)
    assert counts(manager)[1] == 0
    assert short(manager, lambda: alloc_for_extend(manager, [Req("n", OTHER)], [1])) == ("window", 1, 0, 0)
    alloc_for_decode(manager, batch)
    sound(manager)
    assert live(manager, req) == [3, 4]
    assert counts(manager)[1] == 1
