"""What the audit says of a state, word for word, and what a snapshot says of another: people read it in a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ..auditing import Violation, audit
from ..records import FIELDS
from ..snapshots import CACHE_FIELDS, PoolState, Snapshot


def table(height: int, width: int, cells: dict[tuple[int, int], int]) -> Any:
    found = np.zeros((height, width), dtype=np.int64)
    for place, value in cells.items():
        found[place] = value
    return found


def pool(num_pages: int, *free: int) -> PoolState:
    return PoolState(num_pages, np.array(free, dtype=np.int64))


def cached(width: int = 16) -> Snapshot:
    """Row 1 (a) has pages 1, which is cached, 2 and 3; row 2 (b) has page 4; the rest is free."""
    slots = np.zeros((4, width), dtype=np.int32)
    slots[1, :10], slots[2, :4] = np.arange(4, 14), np.arange(16, 20)
    lens = {(field, row): length for field in (1, 2) for row, length in ((1, 10), (2, 4))}
    return Snapshot(
        page_size=4, context_len=16, pools={"full": pool(8, 5, 6, 7, 8)}, bound={1: "a", 2: "b"}, free_rows=(3,),
        records=table(len(FIELDS), 4, {(0, 1): 4, **lens, (-1, 1): 1, (-1, 2): 1}), slots=slots,
        cache=table(len(CACHE_FIELDS), 9, {(0, 1): 4, (3, 1): 1}), cache_nodes=((1,),),
    )  # fmt: skip


def offloaded() -> Snapshot:
    """Row 1 (a) has pages 1 and 2, on the device; row 2 (b) page 3, a buffer, a copy on the host; c left one there."""
    slots = np.zeros((4, 16), dtype=np.int32)
    slots[1, :8], slots[2, :4] = np.arange(4, 12), np.arange(12, 16)
    lens = {(field, row): length for field in (1, 2) for row, length in ((1, 8), (2, 4))}
    places = {(7, 1): 8, (8, 2): 4, (9, 2): 1}
    return Snapshot(
        page_size=4, context_len=16, bound={1: "a", 2: "b"}, free_rows=(3,),
        pools={"full": pool(4, 4), "device": pool(4, 4), "host": pool(4, 3, 4)},
        records=table(len(FIELDS), 4, lens | places), slots=slots, maps={"device": np.array([[1, 2], [1, 2]])},
        held={"buffer": {2: (3,)}, "host": {2: (1,)}, "newest": {}, "backup": {"c": (2,)}},
    )  # fmt: skip


def with_free(state: Snapshot, name: str, *free: int) -> Snapshot:
    return replace(state, pools=state.pools | {name: pool(state.pools[name].num_pages, *free)})


def with_record(state: Snapshot, field: str, row: int, value: int) -> Snapshot:
    state.records[FIELDS.index(field), row] = value
    return state


NOWHERE = "neither free, nor cached, nor in a row"
KV_1 = [
    (
        replace(cached(), free_rows=()),
        Violation("KV-1", "rows (3,) are bound and free, listed twice, or lost", rows=(3,)),
    ),
    (
        replace(cached(), free_rows=(3, 2)),
        Violation("KV-1", "rows (2,) are bound and free, listed twice, or lost", rows=(2,)),
    ),
    (
        with_free(cached(), "full", 2, 6, 7, 8),
        Violation(
            "KV-1", f"page 2 is in 2 places: the free list, row 1 (a); pages [5] are lost: {NOWHERE}", (2, 5), (1,)
        ),
    ),
    (
        with_free(cached(), "full", 1, 5, 6, 7, 8),
        Violation("KV-1", "page 1 is in 2 places: the free list, the prefix cache", (1,)),
    ),
    (
        with_free(offloaded(), "full", 2, 4),
        Violation("KV-1", "page 2 is in 2 places: the free list, row 1 (a)", (2,), (1,)),
    ),
    (
        with_free(cached(), "full", 6, 8),
        Violation("KV-1", f"pages [5, 7] are lost: {NOWHERE}", (5, 7), only_lost=True),
    ),
    (
        with_free(offloaded(), "device", 3),
        Violation(
            "KV-1",
            "page 3 of pool device is in 2 places: the free list, the buffer of row 2; "
            "pages [4] of pool device are lost: neither free, nor held",
            (3, 4),
        ),
    ),
    (
        with_free(offloaded(), "host", 1, 3, 4),
        Violation("KV-1", "page 1 of pool host is in 2 places: the free list, row 2", (1,)),
    ),
    (
        with_free(offloaded(), "host", 2, 3, 4),
        Violation("KV-1", "page 2 of pool host is in 2 places: the free list, the back-up of c", (2,)),
    ),
]


@pytest.mark.parametrize("make", [cached, offloaded])
def test_of_a_sound_state_there_is_nothing_to_say(make: Callable[[], Snapshot]) -> None:
    assert audit(make()) == []
    assert make().differences(make()) == []


@pytest.mark.parametrize(("state", "found"), KV_1)
def test_what_is_twice_or_lost_is_named_with_all_its_places(state: Snapshot, found: Violation) -> None:
    assert audit(state) == [found]


def test_of_a_record_that_is_wrong_nothing_else_is_said() -> None:
    state = with_free(with_record(cached(), "committed", 2, 5), "full", 1, 2, 3)
    message = f"row 2 has the record {state.record(2)}, row width 16"
    assert audit(state) == [Violation("KV-4", message, rows=(2,))]


# Row 1 has 4, 10 and 10 tokens protected, committed and allocated, and no hole.
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protected", 2), ("protected", -4), ("protected", 12), ("committed", 3), ("committed", 11), ("allocated", 17),
        ("cursor", 2), ("cursor", -4), ("cursor", 12), ("hole_lo", 4), ("hole_hi", 4), ("hole_hi", 8),
    ],
)  # fmt: skip
def test_a_record_out_of_bounds_is_shown_with_its_row(field: str, value: int) -> None:
    state = with_record(cached(), field, 1, value)
    message = f"row 1 has the record {state.record(1)}, row width 16"
    assert audit(state) == [Violation("KV-4", message, rows=(1,))]


def with_cached(field: str, value: int) -> Snapshot:
    state = cached()
    state.cache[CACHE_FIELDS.index(field), 1] = value
    return state


def test_what_the_cache_has_wrong_is_told_with_the_row_that_relies_on_it() -> None:
    told = "row 1 (a) protects pages that are not cached at their place"
    follows = Violation("KV-9", "cached page 1 does not follow on the page before it", (1,))
    assert audit(with_cached("end", 8)) == [Violation("KV-9", told, rows=(1,)), follows]
    told = "cached page 1 has 2 locks, 1 rows and leases hold it"
    assert audit(with_cached("locks", 2)) == [Violation("KV-9", told, (1,))]
    assert audit(replace(with_cached("locks", 2), leases=((1,),))) == []


DIFFERENCES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "pool full: free pages": lambda s: with_free(s, "full", 5, 6, 8, 7),
    "bound": lambda s: replace(s, bound={1: "a", 2: "z"}),
    "free_rows": lambda s: replace(s, free_rows=()),
    "cache_nodes": lambda s: replace(s, cache_nodes=((2,),)),
    "leases": lambda s: replace(s, leases=((1,),)),
    "held": lambda s: replace(s, held={"buffer": {}}),
    "records": lambda s: with_record(s, "cursor", 1, 4),
    "slots": lambda s: replace(s, slots=s.slots + 1),
    "cache": lambda s: replace(s, cache=s.cache + 1),
    "maps": lambda s: replace(s, maps={"window": np.zeros((2, 0), dtype=np.int64)}),
}


# Large arrays are compared in another way than small ones.
@pytest.mark.parametrize("width", [16, 1 << 14])
@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_named_by_its_part(name: str, width: int) -> None:
    changed = DIFFERENCES[name](cached(width))
    assert changed.differences(cached(width)) == [name]
    assert changed != cached(width)


def test_a_map_that_differs_is_named() -> None:
    changed = replace(offloaded(), maps={"device": np.array([[1, 2], [2, 1]])})
    assert changed.differences(offloaded()) == ["map device"]
