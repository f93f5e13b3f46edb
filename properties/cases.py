"""One call of a device operation as plain data, and the state of a cache in which it makes sense.

    case = Case(page_size=4, members=((1, 2),))        # one request of 1 token, lengthened by 2
    state = State(case)
    state.table, state.rows, state.start, state.end, state.free_pages

A kernel is only shown what an allocator could produce: rows are distinct, each position of a row lies on a page of its
own request, free pages are distinct and are nobody's. The pages of write_pages are neither free nor a request's own:
they are somebody else's, and several requests may be given the same ones. With a window each page of a request has a
window page or has lost it, and a free page has none; take_window_pages is given the pages that an extend would take, as
if they had window pages already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

# What stands in entries that a call may neither use nor change; no slot and no page is negative.
CANARY = -123_456_789

WHOLE_PAGES = ("write_pages", "take_window_pages")
"""Operations that know whole pages alone."""

WITH_WINDOW = ("extend_rows", "decode_rows")
"""Operations that may be given a window."""

MAP_TOP = 2**12
"""The highest page id where there is a window map, which is as long: a `top` above it counts as this."""


@dataclass(frozen=True)
class Case:
    """Which requests, on which pages, in what memory.

    members: (tokens now, tokens to come) of each request; they repeat until there are `batch` of them (None: once).
    For the operations of WHOLE_PAGES the first is rounded down and the second up.
    top: the highest page id in use; None: as low as possible. order: of page ids and rows: 0 ascending, 1
    descending, from 2 on the seed of a shuffle. head: entries of the free list's tensor before its head.
    lens_dtype: of lengths and row numbers on the device. gap: entries between one row of the table and the next.
    tile: of the kernel, for the lanes' own kernels; None: the lane's. window: entries of the window pool's free list
    before its head, for the operations WITH_WINDOW; None: there is no window.
    """

    page_size: int
    members: tuple[tuple[int, int], ...]
    batch: int | None = None
    top: int | None = None
    order: int = 0
    head: int = 0
    lens_dtype: str = "int64"
    gap: int = 0
    tile: int | None = None
    window: int | None = None

    @property
    def lens(self) -> Int64:
        """int64[bs, 2]: tokens now, tokens to come."""
        members = np.array(self.members, dtype=np.int64)
        return members[np.arange(len(members) if self.batch is None else self.batch) % len(members)]


class State:
    """The cache before the call, for the operation `op`: which pages a call takes depends on it."""

    def __init__(self, case: Case, op: str = "extend_rows") -> None:
        self.case, self.op = case, op
        page_size, batch = case.page_size, len(case.lens)
        self.start, extend = case.lens.T.copy()
        if op in ("alloc_decode", "decode_rows"):
            extend = np.ones_like(extend)
        elif op in WHOLE_PAGES:
            self.start, extend = whole_pages(self.case)
        self.end = self.start + extend
        self.has_window = op in WITH_WINDOW and case.window is not None
        self.has_window_map = self.has_window or op == "take_window_pages"
        owned = -(-self.start // page_size)
        taken = -(-self.end // page_size) - owned
        used = int(owned.sum() + taken.sum())
        pages = in_order(np.arange(used), case.order) + 1
        if case.top is not None:
            pages += max((min(case.top, MAP_TOP) if self.has_window_map else case.top) - used, 0)
        self.free_pages = pages[owned.sum() :]
        self.rows = in_order(np.arange(batch + 1), case.order)[:batch] + 1
        self.first_owned = np.cumsum(owned) - owned
        self.owned = pages
        on_page = np.maximum(self.start - 1, 0)
        last_page = pages[np.minimum(self.first_owned + on_page // page_size, used - 1)] if used else on_page
        self.last_loc = np.where(self.start > 0, last_page * page_size + on_page % page_size, -1)
        # None of them is a full page's number; past 32 bits where full pages are numbered as high as may be.
        self.window_pages = in_order(np.arange(used), case.order + 1) + (MAP_TOP if case.top is None else 2**32) + 1
        self.free_window_pages = self.window_pages[owned.sum() :]

    def window_map(self) -> Int64:
        """A new window map, int64[highest page + 1]."""
        window_map = np.zeros(int(self.owned.max(initial=0)) + 1, dtype=np.int64)
        free = len(self.free_pages) if self.has_window else 0
        mapped = self.owned[: len(self.owned) - free]
        window_map[mapped] = self.window_pages[: len(mapped)]
        window_map[mapped[3::5]] = 0
        return window_map

    def table(self) -> NDArray[np.int32]:
        """A new req_to_token, int32[rows, row_width]: canaries but for positions [0, start) of the batch's rows."""
        page_size = self.case.page_size
        table = np.full((len(self.rows) + 3, int(max(self.end.max(), self.start.max() + 1)) + 2), CANARY, np.int32)
        for row, first, length in zip(self.rows, self.first_owned, self.start, strict=True):
            position = np.arange(length)
            table[row, :length] = self.owned[first + position // page_size] * page_size + position % page_size
        return table


def whole_pages(case: Case) -> tuple[Int64, Int64]:
    """The members' tokens now, rounded down to page multiples, and those to come, rounded up: int64[bs] each."""
    start, extend = case.lens.T
    return start // case.page_size * case.page_size, -(-extend // case.page_size) * case.page_size


def in_order(values: Int64, order: int) -> Int64:
    """`values` as they are (0), backwards (1), or shuffled by the seed `order`."""
    if order > 1:
        return np.random.default_rng(order).permutation(values)
    return values[::-1].copy() if order else values
