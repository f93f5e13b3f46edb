"""need_sort: pages go out in ascending order, and what comes back is sorted in only when the listed pages run short.

`FreeList` is also held to a model of a few lines, sorted and not.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..allocation import alloc_for_decode, alloc_for_extend
from ..allocators.free_list import FreeList
from ..allocators.paged import PagedAllocator
from ..errors import DoubleFree, KVCacheOutOfMemory
from ..records import Req
from ..snapshots import pool_state, snapshot
from .window_worlds import batch_of, begin, counts, leave, pages, plain, quarantined, sound, window_pages, windowed

OTHER = range(100, 200)


def sorted_allocator() -> PagedAllocator:
    """Eight pages of four, handed out in ascending order."""
    return PagedAllocator(num_pages=8, page_size=4, need_sort=True)


def parts(allocator: PagedAllocator) -> tuple[list[int], list[int]]:
    """Listed and staged pages."""
    state = pool_state(allocator)
    return state.free.tolist(), state.staged.tolist()


def pages_in(slots: torch.Tensor) -> list[int]:
    """The pages of some slots, in their order."""
    return list(dict.fromkeys((slots // 4).tolist()))


def test_what_is_freed_is_staged_and_sorted_in_when_the_listed_pages_are_too_few() -> None:
    allocator = sorted_allocator()
    held = allocator.alloc(24)
    allocator.free(held[16:20])
    allocator.free(held[4:12])
    assert parts(allocator) == ([7, 8], [5, 2, 3])
    assert allocator.available_size() == 20, "staged pages are free, too"
    assert pages_in(allocator.alloc(4)) == [7], "one is listed: nothing is sorted"
    assert parts(allocator) == ([8], [5, 2, 3])
    assert pages_in(allocator.alloc(8)) == [2, 3]
    assert parts(allocator) == ([5, 8], [])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_staged_pages_are_sorted_in_at_the_first_page_that_is_missing_and_not_before(count: int) -> None:
    allocator = sorted_allocator()
    held = allocator.alloc(32)
    allocator.free(held[20:32])
    allocator.alloc(4)
    allocator.free(held[0:8])
    assert parts(allocator) == ([7, 8], [1, 2])
    if count > 4:
        with pytest.raises(KVCacheOutOfMemory) as caught:
            allocator.alloc(4 * count)
        assert (caught.value.need, caught.value.free) == (5, 4)
        assert parts(allocator) == ([7, 8], [1, 2]), "a refused call sorts nothing"
        return
    taken = pages_in(allocator.alloc(4 * count))
    assert taken == ([7, 8] if count <= 2 else [1, 2, 7, 8])[:count]


@pytest.mark.parametrize("way", ["alloc", "extend", "decode"])
def test_every_call_of_the_slot_allocator_hands_out_ascending_pages(way: str) -> None:
    allocator = sorted_allocator()
    held = allocator.alloc(32)
    for page in (6, 2, 7, 4):
        allocator.free(held[4 * (page - 1) : 4 * page])
    nothing = torch.full((4,), -1)
    if way == "alloc":
        slots = allocator.alloc(16)
    elif way == "extend":
        slots = allocator.alloc_extend([0, 0, 0, 0], [4, 1, 2, 3], nothing)
    else:
        slots = allocator.alloc_decode([1, 1, 1, 1], nothing)
    assert pages_in(slots) == [2, 4, 6, 7]
    assert allocator.available_size() == 0


def test_clearing_lists_every_page_in_order_and_stages_none() -> None:
    allocator = sorted_allocator()
    allocator.free(allocator.alloc(24)[8:20])
    allocator.clear()
    assert parts(allocator) == (list(range(1, 9)), [])


def test_a_page_freed_in_pieces_is_refused_in_a_sorted_list_too() -> None:
    allocator = sorted_allocator()
    held = allocator.alloc(8)
    allocator.free(held[:4])
    for again in (held[:4], held[:2], held[2:8]):
        with pytest.raises(DoubleFree):
            allocator.free(again)
    assert parts(allocator) == ([3, 4, 5, 6, 7, 8], [1])


@pytest.mark.parametrize("window", [False, True])
def test_the_paths_take_ascending_pages_of_both_pools(device: str, window: bool) -> None:
    manager = windowed(device, 64, need_sort=True) if window else plain(device, need_sort=True)
    reqs = [begin(manager, range(base, base + 16)) for base in (0, 50, 90, 130)]
    for req in (reqs[2], reqs[0], reqs[3]):
        leave(manager, req)
    assert [len(pool.staged) for pool in snapshot(manager).pools.values()] == [12] * (1 + window)
    new = begin(manager, range(60), 35)
    taken = pages(manager, new)
    assert taken == sorted(taken) == [1, 2, 3, 4, 9, 10, 11, 12, 13]
    if window:
        assert window_pages(manager, new) == taken
    assert counts(manager) == [3] * (1 + window)
    alloc_for_decode(manager, batch_of(manager, new, reqs[1]))
    sound(manager)
    assert pages(manager, reqs[1])[-1] == 14
    leave(manager, new, reqs[1])
    assert not any(quarantined(manager))
    assert counts(manager) == [16] * (1 + window)


def test_a_sorted_list_and_an_unsorted_one_give_the_same_counts_and_refusals(device: str) -> None:
    managers = [plain(device, need_sort=need_sort, num_pages=6) for need_sort in (False, True)]
    for manager in managers:
        one, two = begin(manager, range(40), 10), begin(manager, OTHER, 5)
        leave(manager, one)
        alloc_for_decode(manager, batch_of(manager, two))
        sound(manager)
        with pytest.raises(KVCacheOutOfMemory) as caught:
            alloc_for_extend(manager, [Req("n", range(40))], [17])
        assert (caught.value.need, caught.value.free) == (5, 4)
        begin(manager, range(40), 16)
        assert counts(manager) == [0]


# The model: what is listed, what is staged, as two Python lists.

TOTAL = 9
steps = st.lists(st.tuples(st.sampled_from(["pop", "push", "push", "clear"]), st.integers(0, TOTAL)), max_size=60)


class Model:
    """A stack, or an ascending list with a heap of staged pages beside it."""

    def __init__(self, need_sort: bool) -> None:
        self.need_sort, self.listed, self.staged = need_sort, list(range(1, TOTAL + 1)), list[int]()

    def pop(self, count: int) -> list[int]:
        if count > len(self.listed):
            self.listed, self.staged = sorted(self.listed + self.staged), []
        taken, self.listed = self.listed[:count], self.listed[count:]
        return taken

    def push(self, pages: list[int]) -> None:
        if self.need_sort:
            self.staged += pages
        else:
            self.listed = pages + self.listed


@pytest.mark.parametrize("need_sort", [False, True])
@settings(max_examples=200, deadline=None)
@given(steps=steps, data=st.data())
def test_the_free_list_is_two_python_lists(need_sort: bool, steps: list[tuple[str, int]], data: st.DataObject) -> None:
    free, model, out = FreeList(TOTAL, need_sort=need_sort), Model(need_sort), list[int]()
    for name, number in steps:
        if name == "clear":
            free.clear()
            model, out = Model(need_sort), []
        elif name == "pop":
            count = min(number, free.count)
            taken = free.pop(count)
            assert taken.tolist() == model.pop(count)
            out += taken.tolist()
            taken.zero_()  # a copy: it is the caller's
        else:
            back = data.draw(st.permutations(out))[:number]
            pushed = torch.tensor(back, dtype=torch.int64)
            free.push(pushed)
            pushed.zero_()
            model.push(back)
            out = [page for page in out if page not in back]
        assert free.live.tolist() == model.listed
        assert free.ids[: free.staged].tolist() == model.staged
        assert free.count == TOTAL - len(out)
        too_many = torch.ones(len(out) + 1, dtype=torch.int64)
        with pytest.raises(DoubleFree):
            free.push(too_many)
