"""Two pools in step: WindowedAllocator and HiSparseAllocator, call by call.

    pytest kvcore/properties/test_self_mapped.py

After each call the slots, the map and what is free in both pools are looked at; a call that is refused leaves all of
it as it was, whichever pool was short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kvcore
from kvcore import BadArgument, DoubleFree, ForeignSlot, HiSparseAllocator, KVCacheOutOfMemory, WindowedAllocator

SIZE = 4
NO_PREFIX = torch.tensor([-1])


def windowed(full: int = 6, window: int = 6, **options: Any) -> WindowedAllocator:
    return WindowedAllocator(full, window, SIZE, **options)


def hisparse(logical: int = 6, device: int = 6, **options: Any) -> HiSparseAllocator:
    return HiSparseAllocator(logical, device, SIZE, **options)


BOTH = pytest.mark.parametrize("make", [windowed, hisparse])


def pages(slots: torch.Tensor) -> list[int]:
    """The pages of slots, in their order, each once."""
    return list(dict.fromkeys((slots // SIZE).tolist()))


def mapped(allocator: Any) -> dict[int, int]:
    """Page -> page of the second pool."""
    return {page: peer for page, peer in enumerate(allocator.map.tolist()) if peer}


def state(allocator: Any) -> Any:
    """All that a refused call has to leave as it is."""
    lists = [
        (one.free_list.ids[one.free_list.head :].tolist(), one.queued and torch.cat(one.queued).tolist())
        for one in (allocator.first, allocator.second)
    ]
    return lists, allocator.map.tolist(), allocator.first.handed_out.tolist(), allocator.second.handed_out.tolist()


def test_the_package_has_them_by_name() -> None:
    assert {"WindowedAllocator", "HiSparseAllocator"} <= set(kvcore.__all__)


@BOTH
def test_whole_pages_come_from_both_pools(make: Callable[..., Any]) -> None:
    allocator = make()
    slots = allocator.alloc(2 * SIZE)
    assert slots.tolist() == [page * SIZE + offset for page in pages(slots) for offset in range(SIZE)]
    assert set(mapped(allocator)) == set(pages(slots))
    assert len(set(mapped(allocator).values())) == 2
    assert allocator.available_sizes() == (4 * SIZE, 4 * SIZE)


@BOTH
def test_an_extend_maps_each_new_page_and_keeps_the_old_ones(make: Callable[..., Any]) -> None:
    allocator = make()
    first = allocator.alloc_extend([0, 0], [SIZE + 1, 1], torch.tensor([-1, -1]))
    before = mapped(allocator)
    assert len(before) == 3
    more = allocator.alloc_extend([SIZE + 1], [2 * SIZE + 1], first[SIZE : SIZE + 1])
    assert more.tolist()[:3] == [first[SIZE] + 1 + i for i in range(3)]
    assert mapped(allocator).items() > before.items()
    assert allocator.available_sizes() == (2 * SIZE, 2 * SIZE)


@BOTH
def test_free_gives_back_both_pages_and_the_entry(make: Callable[..., Any]) -> None:
    allocator = make()
    kept, gone = allocator.alloc(SIZE), allocator.alloc_extend([0], [SIZE + 2], NO_PREFIX)
    allocator.free(gone.flip(0))
    assert list(mapped(allocator)) == pages(kept)
    assert allocator.available_sizes() == (5 * SIZE, 5 * SIZE)


@BOTH
def test_a_segment_gives_back_both_pages_and_the_entry(make: Callable[..., Any]) -> None:
    allocator = make()
    slots = allocator.alloc_extend([0], [2 * SIZE + 1], NO_PREFIX)
    allocator.free_segment(slots[SIZE:], SIZE)
    assert list(mapped(allocator)) == pages(slots[:SIZE])
    assert allocator.available_sizes() == (5 * SIZE, 5 * SIZE)


@BOTH
def test_clear_takes_back_everything(make: Callable[..., Any]) -> None:
    allocator = make()
    allocator.alloc(3 * SIZE)
    allocator.clear()
    assert mapped(allocator) == {}
    assert allocator.available_sizes() == (6 * SIZE, 6 * SIZE)


@BOTH
def test_a_group_keeps_both_pages_until_it_closes(make: Callable[..., Any]) -> None:
    allocator = make()
    slots = allocator.alloc(2 * SIZE)
    allocator.free_group_begin()
    allocator.free(slots)
    assert allocator.available_sizes() == (4 * SIZE, 4 * SIZE)
    assert mapped(allocator) == {}
    allocator.free_group_end()
    assert allocator.available_sizes() == (6 * SIZE, 6 * SIZE)


@BOTH
def test_groups_do_not_nest_and_do_not_close_twice(make: Callable[..., Any]) -> None:
    allocator = make()
    with pytest.raises(BadArgument, match="KV-11"):
        allocator.free_group_end()
    allocator.free_group_begin()
    slots = allocator.alloc(SIZE)
    allocator.free(slots)
    before = state(allocator)
    with pytest.raises(BadArgument, match="KV-11"):
        allocator.free_group_begin()
    assert state(allocator) == before
    allocator.free_group_end()
    assert allocator.available_sizes() == (6 * SIZE, 6 * SIZE)


CALLS: dict[str, Callable[[Any], Any]] = {
    "alloc": lambda allocator: allocator.alloc(3 * SIZE),
    "alloc_extend": lambda allocator: allocator.alloc_extend([0, 0], [SIZE + 1, SIZE], torch.tensor([-1, -1])),
}
WINDOWED: dict[str, Callable[[Any], Any]] = {
    **CALLS,
    "alloc_decode": lambda allocator: allocator.alloc_decode([1, 1, 1], torch.tensor([-1, -1, -1])),
    "alloc_extend_tail": lambda allocator: allocator.alloc_extend_tail(0, 3 * SIZE, NO_PREFIX, 3 * SIZE),
}
SHORT = [
    *((windowed, name, call) for name, call in WINDOWED.items()),
    *((hisparse, name, call) for name, call in CALLS.items()),
]


@pytest.mark.parametrize(("make", "name", "call"), SHORT, ids=[f"{make.__name__}-{name}" for make, name, _ in SHORT])
@pytest.mark.parametrize("sizes", [(2, 6), (6, 2), (2, 1)])
def test_a_call_that_one_pool_is_short_for_changes_neither(
    make: Callable[..., Any], name: str, call: Callable[[Any], Any], sizes: tuple[int, int]
) -> None:
    """Three pages are asked for, and the first pool that is short is named."""
    allocator = make(*sizes)
    before = state(allocator)
    with pytest.raises(KVCacheOutOfMemory) as refused:
        call(allocator)
    short, free = (0, 2) if sizes[0] == 2 else (1, 2)
    assert refused.value.pool == allocator.names[short]
    assert (refused.value.need, refused.value.free) == (3, free)
    assert state(allocator) == before


def test_a_decode_takes_a_page_of_both_pools_at_a_page_edge_only() -> None:
    allocator = windowed()
    slots = allocator.alloc_extend([0], [SIZE - 1], NO_PREFIX)
    last = allocator.alloc_decode([SIZE], slots[-1:])
    assert last.tolist() == [slots[-1] + 1]
    assert allocator.available_sizes() == (5 * SIZE, 5 * SIZE)
    new = allocator.alloc_decode([SIZE + 1], last)
    assert set(mapped(allocator)) == {*pages(slots), *pages(new)}
    assert allocator.available_sizes() == (4 * SIZE, 4 * SIZE)


@pytest.mark.parametrize(("tail", "count"), [(0, 0), (1, 1), (SIZE + 1, 2), (2 * SIZE + 1, 3)])
def test_only_the_tail_has_window_pages(tail: int, count: int) -> None:
    allocator = windowed()
    slots = allocator.alloc_extend_tail(0, 2 * SIZE + 1, NO_PREFIX, tail)
    assert set(mapped(allocator)) == set(pages(slots)[3 - count :])
    assert allocator.available_sizes() == (3 * SIZE, (6 - count) * SIZE)


def test_a_tail_may_fit_where_the_whole_would_not() -> None:
    allocator = windowed(6, 1)
    slots = allocator.alloc_extend_tail(0, 3 * SIZE, NO_PREFIX, SIZE)
    assert list(mapped(allocator)) == pages(slots)[2:]


def test_a_tail_can_lengthen_a_request() -> None:
    allocator = windowed()
    slots = allocator.alloc_extend([0], [SIZE], NO_PREFIX)
    more = allocator.alloc_extend_tail(SIZE, 3 * SIZE, slots[-1:], SIZE)
    assert set(mapped(allocator)) == {*pages(slots), pages(more)[1]}


@pytest.mark.parametrize("tail", [-1, SIZE, 2 * SIZE + 3, 3])
def test_a_tail_that_begins_nowhere_is_refused(tail: int) -> None:
    """Of nine tokens, tails of 0, 1, 5 and 9 begin on a page edge."""
    allocator = windowed()
    before = state(allocator)
    with pytest.raises(BadArgument) as refused:
        allocator.alloc_extend_tail(0, 2 * SIZE + 1, NO_PREFIX, tail)
    assert (refused.value.argument, refused.value.clause) == ("tail", "KV-15")
    assert state(allocator) == before


def test_a_window_gives_up_its_pages_and_the_slots_stay() -> None:
    allocator = windowed()
    slots = allocator.alloc(3 * SIZE)
    allocator.free_window(slots[: 2 * SIZE])
    assert list(mapped(allocator)) == pages(slots)[2:]
    assert allocator.available_sizes() == (3 * SIZE, 5 * SIZE)


def test_a_window_that_is_freed_twice_is_freed_once() -> None:
    allocator = windowed()
    slots = allocator.alloc(3 * SIZE)
    allocator.free_window(slots[: 2 * SIZE])
    before = state(allocator)
    allocator.free_window(slots[: 2 * SIZE])
    assert state(allocator) == before
    allocator.free(slots)
    assert allocator.available_sizes() == (6 * SIZE, 6 * SIZE)


def test_a_window_given_up_in_a_group_belongs_to_nobody_until_it_closes() -> None:
    allocator = windowed(6, 2)
    slots = allocator.alloc(2 * SIZE)
    allocator.free_group_begin()
    allocator.free_window(slots)
    with pytest.raises(KVCacheOutOfMemory, match="window"):
        allocator.alloc(SIZE)
    allocator.free(slots)
    allocator.free_group_end()
    assert allocator.available_sizes() == (6 * SIZE, 2 * SIZE)


def test_what_is_logical_only_takes_nothing_of_the_device() -> None:
    allocator = hisparse(6, 1)
    slots = allocator.alloc_logical_only([0], [3 * SIZE], NO_PREFIX)
    slot = allocator.alloc_decode([3 * SIZE + 1], slots[-1:])
    assert len(pages(torch.cat((slots, slot)))) == 4
    assert mapped(allocator) == {}
    assert allocator.available_sizes() == (2 * SIZE, SIZE)


def test_a_decode_is_short_of_logical_pages_alone() -> None:
    allocator = hisparse(1, 6)
    slots = allocator.alloc(SIZE)
    before = state(allocator)
    with pytest.raises(KVCacheOutOfMemory, match="logical"):
        allocator.alloc_decode([SIZE + 1], slots[-1:])
    assert state(allocator) == before


@pytest.mark.parametrize("wanted", [0, 1, 2, 3, 5])
def test_a_buffer_is_made_of_the_resident_pages_first(wanted: int) -> None:
    """Smaller than what is resident, equal to it, larger: two pages are."""
    allocator = hisparse()
    slots = allocator.alloc_extend([0], [SIZE + 1], NO_PREFIX)
    resident = [mapped(allocator)[page] for page in pages(slots)]
    buffer = allocator.alloc_device_buffer(slots, wanted * SIZE)
    assert buffer.tolist() == [page * SIZE + offset for page in pages(buffer) for offset in range(SIZE)]
    assert len(pages(buffer)) == wanted
    assert set(pages(buffer)[:2]) == set(resident[: min(wanted, 2)])
    assert mapped(allocator) == {}
    assert allocator.available_sizes() == (4 * SIZE, (6 - wanted) * SIZE)
    allocator.free_device_buffer(buffer)
    allocator.free(slots)
    assert allocator.available_sizes() == (6 * SIZE, 6 * SIZE)


def test_a_buffer_that_does_not_fit_changes_nothing() -> None:
    allocator = hisparse(6, 3)
    slots = allocator.alloc(2 * SIZE)
    before = state(allocator)
    with pytest.raises(KVCacheOutOfMemory) as refused:
        allocator.alloc_device_buffer(slots, 4 * SIZE)
    assert (refused.value.pool, refused.value.need, refused.value.free) == ("device", 2, 1)
    assert state(allocator) == before


def test_a_buffer_that_is_freed_twice_is_refused() -> None:
    allocator = hisparse()
    slots = allocator.alloc(SIZE)
    buffer = allocator.alloc_device_buffer(slots, 2 * SIZE)
    allocator.free_device_buffer(buffer)
    before = state(allocator)
    with pytest.raises(DoubleFree, match="KV-8"):
        allocator.free_device_buffer(buffer)
    assert state(allocator) == before


BAD: list[tuple[Callable[..., Any], Callable[[Any, torch.Tensor], Any], type[Exception], str, str]] = [
    (windowed, lambda a, slots: a.alloc(SIZE + 1), BadArgument, "need_size", "KV-15"),
    (hisparse, lambda a, slots: a.alloc(-SIZE), BadArgument, "need_size", "KV-15"),
    (windowed, lambda a, slots: a.alloc_extend([2], [1], NO_PREFIX), BadArgument, "seq_lens", "KV-15"),
    (windowed, lambda a, slots: a.alloc_decode([0], NO_PREFIX), BadArgument, "seq_lens", "KV-15"),
    (hisparse, lambda a, slots: a.alloc_logical_only([0], [1], slots), BadArgument, "last_loc", "KV-15"),
    (windowed, lambda a, slots: a.free(slots[:1]), BadArgument, "slots", "KV-15"),
    (windowed, lambda a, slots: a.free_segment(slots, 1), BadArgument, "start_pos", "KV-15"),
    (windowed, lambda a, slots: a.free_window(slots[:-1]), BadArgument, "slots", "KV-15"),
    (windowed, lambda a, slots: a.free_window(slots + 2 * SIZE), DoubleFree, "slots", "KV-8"),
    (windowed, lambda a, slots: a.free_window(torch.tensor([0])), ForeignSlot, "slots", "KV-2"),
    (hisparse, lambda a, slots: a.alloc_device_buffer(slots, SIZE + 1), BadArgument, "need_size", "KV-15"),
    (hisparse, lambda a, slots: a.alloc_device_buffer(slots[:1], SIZE), BadArgument, "slots", "KV-15"),
    (hisparse, lambda a, slots: a.free_device_buffer(slots[1:]), BadArgument, "slots", "KV-15"),
]


@pytest.mark.parametrize(("make", "call", "error", "argument", "clause"), BAD)
def test_a_bad_argument_is_named_and_changes_nothing(
    make: Callable[..., Any],
    call: Callable[[Any, torch.Tensor], Any],
    error: type[Exception],
    argument: str,
    clause: str,
) -> None:
    allocator = make()
    slots = allocator.alloc(SIZE)
    before = state(allocator)
    with pytest.raises(error) as refused:
        call(allocator, slots)
    told: Any = refused.value
    assert (type(told), told.argument, told.clause) == (error, argument, clause)
    assert state(allocator) == before
