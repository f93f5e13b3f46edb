"""The second pool of the slot level: which of its pages belongs to which page of the first one.

    second = SecondPool.of(config)             # None where there is one pool
    second.grow(held, start=3, end=9, window_from=0, state)

A window pool gives up what lies behind a window; a device pool gives a request's pages to its buffer. The subject
chooses the pages: they are read from its map, and have to have been free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..snapshots import Snapshot
from .configuration import Configuration
from .pages import PageLedger
from .verdicts import Broken, Held

Int64 = NDArray[np.int64]


class SecondPool:
    """`pages`: who holds what. `names`: of the first and of this pool. `Held.peers`: the page here of each page index,
    0 for none."""

    def __init__(self, names: tuple[str, str], num_pages: int, page_size: int) -> None:
        self.names, self.page_size = names, page_size
        self.pages = PageLedger(num_pages, page_size)

    @classmethod
    def of(cls, config: Configuration) -> SecondPool | None:
        """The pool that the configuration has beside the first."""
        if config.hisparse is not None:
            return cls(("logical", "device"), config.hisparse.device_pages, config.page_size)
        if config.window is not None:
            return cls(("full", "window"), config.window.num_pages, config.page_size)
        return None

    def grow(self, held: Held, start: int, end: int, window_from: int, state: Snapshot) -> None:
        """New page indices of [start, end) have a page here where they lie at or behind window_from."""
        size, target = self.page_size, _dense(state, self.names[1])
        for index in range(-(-start // size), -(-end // size)):
            page = 0
            if index * size >= window_from:
                slot = held.pages[index] * size
                page = int(target.get(slot, 0)) // size
                if page == 0:
                    raise Broken(
                        "KV-10",
                        f"request {held.number}, page {held.pages[index]}: slot {slot} has none in {self.names[1]}",
                        pages=(held.pages[index],),
                    )
                self.pages.take(held, page)
            held.peers[index:] = [page]

    def first_page(self, held: Held) -> int:
        """The position, in tokens, from which on a request has pages here."""
        gone = next((i for i, page in enumerate(held.peers) if page), len(held.peers))
        return gone * self.page_size

    def give_up(self, held: Held | None, count: int) -> None:
        """The first `count` page indices have no page here any more."""
        if held is not None:
            self.pages.give_back([page for page in held.peers[:count] if page])
            held.peers[:count] = [0] * count

    def forget(self, held: Held, keep: int) -> None:
        """What lies behind the first `keep` pages is freed, and with all of it the buffer."""
        self.pages.give_back([page for page in held.peers[keep:] if page])
        del held.peers[keep:]
        if keep == 0:
            self.pages.give_back(held.buffer)
            held.buffer = []

    def buffer(self, held: Held, out: Int64) -> None:
        """The slots of a buffer: whole pages, of the request itself or free before."""
        size = self.page_size
        pages = (out[::size] // size).tolist()
        whole = (np.array(pages, dtype=np.int64)[:, None] * size + np.arange(size)).reshape(-1)
        if not np.array_equal(whole, out):
            raise Broken("KV-3", f"the buffer of request {held.number} is no sequence of whole pages: {out.tolist()}")
        kept = [page for page in held.peers if page in set(pages)]
        self.pages.give_back([page for page in held.peers if page and page not in kept])
        if len(set(pages)) != len(pages):
            raise Broken("KV-1", f"the buffer of request {held.number} has a page twice: {pages}")
        for page in pages:
            if page not in kept:
                self.pages.take(held, page)
        held.peers, held.buffer = [0] * len(held.pages), pages

    def check(self, live: dict[int, Held], state: Snapshot, first: PageLedger) -> None:
        """The map has an entry for every live slot that has a page here, and for nothing else (KV-10). Of what an open
        free group keeps it is not asked."""
        size, name = self.page_size, self.names[1]
        found = np.zeros((first.num_pages + 1) * size, dtype=np.int64)
        source, target = state.maps[name]
        found[source] = target
        right, asked = np.zeros_like(found), np.ones_like(found, dtype=bool)
        for held in live.values():
            position = np.arange(held.allocated)
            pages, peers = (np.array(which, dtype=np.int64)[position // size] for which in (held.pages, held.peers))
            right[pages * size + position % size] = np.where(peers > 0, peers * size + position % size, 0)
            if held.allocated % size:  # the rest of its last page: not handed out, not asked
                last = held.pages[-1] * size
                asked[last + held.allocated % size : last + size] = False
        for page in first.queued:
            asked[page * size : (page + 1) * size] = False
        wrong = np.flatnonzero((found != right) & asked)
        if len(wrong):
            slot = int(wrong[0])
            what = f"slot {slot} (page {slot // size}) is mapped to {found[slot]} in {name}, should be {right[slot]}"
            raise Broken("KV-10", what, pages=(slot // size,))


def _dense(state: Snapshot, name: str) -> dict[int, int]:
    source, target = state.maps[name]
    return dict(zip(source.tolist(), target.tolist(), strict=True))
