"""The ledger's pools: what is free, queued or in quarantine, which page has which window page, what leases cover.

pools.free(held, index=2, page=7)        # free now, when the group closes, or when the last lease on it ends
pools.free_window(held, 2, 7)            # the same for the window page of page 7
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .configuration import Configuration
from .pages import PageLedger
from .verdicts import Broken, Held


@dataclass
class LeaseLedger:
    """What a lease covers: of each request its binding then and how far it reached; the cached pages that it holds, and
    from which of them on it holds the window."""

    requests: tuple[int, ...]
    bindings: dict[int, int]
    lens: dict[int, int]
    shared: dict[int, list[Any]] = field(default_factory=dict)
    window_first: dict[int, int] = field(default_factory=dict)


class Waiting(NamedTuple):
    """A page in quarantine: whose it was, under which bindings, in which place among its pages, and in which pool it
    lies."""

    number: int
    bindings: tuple[int, ...]
    place: int
    page: int
    pool: str


class Pools:
    """`main` is the pool that rows name, `window` the window pool or None; `map`: page -> window page."""

    def __init__(self, config: Configuration) -> None:
        kind = config.window.kind if config.window else "none"
        self.size, self.is_pure = config.page_size, kind == "pure"
        self.main = PageLedger(config.num_pages, config.page_size)
        self.window: PageLedger | None = None
        if config.window is not None and kind == "pool":
            self.window = PageLedger(config.window.num_pages, config.page_size)
        self.name = "logical" if config.hisparse else "window" if self.is_pure else "full"
        self.device: PageLedger | None = None
        self.host: PageLedger | None = None
        if config.hisparse is not None:
            self.device = PageLedger(config.hisparse.device_pages, config.page_size)
            self.host = PageLedger(config.hisparse.host_pages, config.page_size)
        self.device_map: dict[int, int] = {}
        self.map: dict[int, int] = {}
        self.leases: dict[int, LeaseLedger] = {}
        self.quarantine: list[Waiting] = []

    def all(self) -> list[PageLedger]:
        """The pools there are, in the order in which a shortage is looked for."""
        return [pool for pool in (self.main, self.window, self.device, self.host) if pool is not None]

    def by_name(self, name: str) -> PageLedger:
        """The pool of this name."""
        others = {"window": self.window, "device": self.device, "host": self.host}
        pool = self.main if name == self.name else others[name]
        assert pool is not None
        return pool

    def free_other(self, name: str, held: Held, pages: Sequence[int]) -> None:
        """Device or host pages that a request gives up: while any lease covers it, all of them wait; on the host, one
        from before a retraction that has kept them, too."""
        bindings = (held.binding, *held.former) if name == "host" else (held.binding,)
        for page in pages:
            self._free(self.by_name(name), name, held, -1, page, bindings)

    def take_other(self, name: str, held: Held, pages: Sequence[int]) -> None:
        """Device or host pages that the subject chose."""
        for page in pages:
            self.by_name(name).take(held, page)

    def take_resident(self, held: Held, pages: Sequence[int], found: Sequence[int]) -> None:
        """`found` are the device pages that the subject has mapped new logical pages to."""
        for page, device_page in zip(pages, found, strict=True):
            if not device_page:
                raise Broken("KV-10", f"request {held.number}: page {page} was taken and has no device page", (page,))
            self.take_other("device", held, [device_page])
            self.device_map[page] = device_page

    @property
    def group_open(self) -> bool:
        return self.main.group_open

    def covered(self, number: int, *bindings: int) -> int:
        """How many of the first pages of a request some lease covers."""
        lens = [lease.lens[number] for lease in self.leases.values() if lease.bindings.get(number) in bindings]
        return -(-max(lens, default=0) // self.size)

    def free(self, held: Held, index: int, page: int) -> None:
        """The request gives up its page number `index`."""
        self._free(self.main, self.name, held, index, page)

    def free_window(self, held: Held, index: int, page: int) -> None:
        """The request gives up the window page of its page number `index`."""
        assert self.window is not None
        self._free(self.window, "window", held, index, self.map.pop(page))

    def drop_window(self, pages: Sequence[int]) -> None:
        """The window pages of these cached pages are free."""
        if self.window is not None:
            self.window.give_back([self.map.pop(page) for page in pages if page in self.map])

    def take_window(self, held: Held, pages: Sequence[int], found: Sequence[int]) -> None:
        """`found` are the window pages that the subject has mapped new pages to."""
        assert self.window is not None
        for page, window_page in zip(pages, found, strict=True):
            if not window_page:
                raise Broken("KV-10", f"request {held.number}: page {page} was taken and has no window page", (page,))
            self.window.take(held, window_page)
            self.map[page] = window_page

    def retire(self, number: int) -> None:
        """A lease has ended: what no other covers comes back."""
        del self.leases[number]
        waiting, self.quarantine = self.quarantine, []
        for item in waiting:
            covered = self.covered(item.number, *item.bindings)
            if covered and item.place < covered:
                self.quarantine.append(item)
            else:
                pool = self.by_name(item.pool)
                pool.quarantined.discard(item.page)
                pool.give_back([item.page])

    def _free(
        self, pool: PageLedger, name: str, held: Held, index: int, page: int, bindings: tuple[int, ...] = ()
    ) -> None:
        bindings = bindings or (held.binding,)
        covered = self.covered(held.number, *bindings) if self.leases else 0
        if covered and index < covered:
            pool.quarantine(page)
            self.quarantine.append(Waiting(held.number, bindings, index, page, name))
        else:
            pool.give_back([page])
