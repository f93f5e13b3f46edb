"""Whether there is room: what a call asks of each pool, what of that is free, and what can be made free.

verdict = ledger._room_for(growth, returns=3)       # Legal, or Short of the first pool that is
"""

from __future__ import annotations

from collections.abc import Sequence

from .offload_books import OffloadBooks
from .prefixes import CachedPage
from .texts import Text
from .verdicts import Growth, Legal, Short, Verdict
from .window_prefixes import WindowPrefixes


class Room(OffloadBooks):
    """The books, and whether a demand can be met."""

    def _room_for(
        self,
        growth: tuple[Growth, ...],
        *,
        returns: int | None,
        hits: tuple[tuple[Text, list[CachedPage]], ...] = (),
        window_from: int | None = None,
        evicting: tuple[int, ...] = (),
        device_pages: int = 0,
        host_pages: int = 0,
        touched: tuple[int, ...] = (),
    ) -> Verdict:
        """Legal or Short. window_from: only what lies behind it has window pages; evicting: whose windows go first."""
        pages, window = sum(self.pages.needed(g.start, g.end) for g in growth), self.pools.window
        gives_up = self._behind_window(evicting)
        window_pages = pages if window is not None else 0
        if window is not None and window_from is not None:
            window_pages = sum(window.needed(max(g.start, window_from), g.end) for g in growth)
        closed = not self.pools.group_open  # while a group is open nothing is reclaimable
        if pages > self.pages.free:
            reclaimable = self.cache.unlocked - self.cache.pinned(path for _, path in hits) if closed else 0
            reclaimable += self._at_once(gives_up) if closed and self.pools.is_pure else 0
            if pages > self.pages.free + reclaimable:
                return Short(self.pools.name, pages, self.pages.free, reclaimable)
        if window is not None and window_pages > window.free:
            reclaimable = self._at_once(gives_up) if closed else 0
            if closed and isinstance(self.cache, WindowPrefixes):
                reclaimable += self.cache.live_unlocked - self.cache.pinned_window(path for _, path in hits)
            if window_pages > window.free + reclaimable:
                return Short("window", window_pages, window.free, reclaimable)
        for name, need in (("device", device_pages), ("host", host_pages)):
            if need and need > self.pools.by_name(name).free:
                return Short(name, need, self.pools.by_name(name).free)
        return Legal(growth, pages, returns, touched, hits, window_pages, window_from, gives_up)

    def _behind_window(self, requests: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """What each would give up of its window now: (request, from, to)."""
        window, size, found = self.config.window, self.config.page_size, []
        if window is None or window.kind == "ring":
            return ()
        for held in (self.live[number] for number in requests):
            begin = max(held.cursor, held.protected, -(-held.floor // size) * size)
            target = held.committed - window.size
            if target < begin + window.interval:
                continue
            if self.cache.on:  # a whole window has to stay live below the end of the key
                key_end = (held.committed - self.cache.bigram) // size * size
                target = key_end - -(-max(window.size, size) // size) * size
            end = target // size * size
            if end > begin:
                found.append((held.number, begin, end))
        return tuple(found)

    def _at_once(self, gives_up: tuple[tuple[int, int, int], ...]) -> int:
        """How many of the pages that the windows give up are under no lease."""
        pages, size = 0, self.config.page_size
        for number, begin, end in gives_up:
            covered = self.pools.covered(number, self.live[number].binding) if self.pools.leases else 0
            pages += max(end // size - max(begin // size, covered), 0)
        return pages
