"""Which request holds which page: the part of the ledger that both levels share.

pages = PageLedger(num_pages=8, page_size=4)
pages.grow(request, start=3, end=9, slots)      # the subject chose the slots; they have to fit and be free
pages.give_back([3, 4])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..snapshots import PoolState
from .verdicts import Broken, Held

Int64 = NDArray[np.int64]

CACHE = -1
"""The owner of a page that the prefix cache holds."""

FEW = 16
"""Up to here plain Python beats numpy's fixed cost a call."""


class PageLedger:
    """`owner`: page -> number of the request that holds it; `unheld`: the pages that nobody holds; `queued`: those that
    an open free group keeps; `quarantined`: those that wait for a lease."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.owner: dict[int, int] = {}
        self.unheld = set(range(1, num_pages + 1))
        self.queued: set[int] = set()
        self.quarantined: set[int] = set()
        self.group_open = False

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self.unheld)

    def needed(self, start: int, end: int) -> int:
        """Pages that lengthening from start to end tokens takes."""
        return -(-end // self.page_size) - -(-start // self.page_size)

    def are_exactly_free(self, listed: Int64) -> bool:
        """Whether these pages, each once, are the ones that nobody holds."""
        return len(listed) == len(self.unheld) and set(listed.tolist()) == self.unheld

    def agree(self, pool: PoolState) -> bool:
        """Whether a pool's lists hold exactly the pages that they have to."""
        listed = np.concatenate((pool.free, pool.staged)) if len(pool.staged) else pool.free
        return (
            self.are_exactly_free(listed)
            and len(pool.queued) == len(self.queued)
            and len(pool.quarantined) == len(self.quarantined)
            and (not self.queued or set(pool.queued.tolist()) == self.queued)
            and (not self.quarantined or set(pool.quarantined.tolist()) == self.quarantined)
        )

    def grow(self, held: Held, start: int, end: int, slots: Int64) -> None:
        """Accept the slots of positions [start, end): the old page continues, new pages were free and begin aligned."""
        size = self.page_size
        if len(slots) != end - start:
            raise Broken("KV-5", f"request {held.number} got {len(slots)} slots for positions {start}..{end}")
        if start == end:
            return
        first_new = -(-start // size)
        new = (slots[first_new * size - start :: size] // size).tolist()
        if len(new) > FEW and len(set(new)) == len(new) and self.unheld.issuperset(new):
            self.owner.update(dict.fromkeys(new, held.number))
            self.unheld.difference_update(new)
        else:
            for page in new:
                self.take(held, page)
        held.pages[first_new : first_new + len(new)] = new
        expected: Sequence[int] | Int64
        if end - start <= FEW:
            pages = held.pages
            expected = [pages[position // size] * size + position % size for position in range(start, end)]
            same = slots.tolist() == expected
        else:
            of_page = np.array(held.pages[start // size :], dtype=np.int64)
            whole = (of_page[:, None] * size + np.arange(size)).reshape(-1)
            expected = whole[start % size : start % size + end - start]
            same = bool((slots == expected).all())
        if not same:
            at = next(i for i, (slot, right) in enumerate(zip(slots, expected, strict=True)) if slot != right)
            raise Broken(
                "KV-3",
                f"request {held.number}, position {start + at}: slot {slots[at]}, its page makes it {expected[at]}",
            )

    def take(self, held: Held, page: int) -> None:
        """Accept a page that the subject chose: it was free."""
        if page == 0:
            raise Broken("KV-2", f"request {held.number} was given the padding page", pages=(0,))
        if not 0 < page <= self.num_pages:
            raise Broken("KV-1", f"request {held.number} was given page {page} of 1..{self.num_pages}")
        if page not in self.unheld:
            raise Broken(*self._why_not(held, page), pages=(page,))
        self.owner[page] = held.number
        self.unheld.discard(page)

    def _why_not(self, held: Held, page: int) -> tuple[str, str]:
        """The clause and what is wrong with handing out a page that is not free."""
        given = f"request {held.number} was given page {page} of 1..{self.num_pages}, which"
        if page in self.quarantined:
            return "KV-16", f"{given} is under a lease"
        if page in self.queued:
            return "KV-11", f"{given} waits for the free group to close"
        owner = self.owner[page]
        return "KV-1", f"{given} {'the prefix cache' if owner == CACHE else f'request {owner}'} holds"

    def publish(self, pages: Sequence[int]) -> None:
        """These pages are the prefix cache's from now on."""
        for page in pages:
            self.owner[page] = CACHE

    def give_back(self, pages: Sequence[int]) -> None:
        """Nobody holds these pages any more: they are free, or will be when the open group closes."""
        for page in pages:
            self.owner.pop(page, None)
        (self.queued if self.group_open else self.unheld).update(pages)

    def quarantine(self, page: int) -> None:
        """Nobody holds the page any more, and a lease still covers it."""
        del self.owner[page]
        self.quarantined.add(page)

    def close_group(self) -> None:
        """What the group has queued is free."""
        self.group_open = False
        self.unheld |= self.queued
        self.queued.clear()
