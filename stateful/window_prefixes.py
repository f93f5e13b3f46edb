"""The ledger's model of the prefix cache beside a window pool: which cached pages have a window page, and who holds it.

    path = prefixes.find(text, tokens=40)      # as far as a whole window is live
    prefixes.evict_window(3)                   # the cached pages whose window pages go

A request holds the window pages of the last `window_pages` pages of what it holds; of the others the policy's first
go, of one path the earliest.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from .configuration import Configuration
from .prefixes import CachedPage, Prefixes
from .texts import Text
from .verdicts import Held


class WindowPrefixes(Prefixes):
    """`live_unlocked`: window pages of cached pages that nobody holds; `window_evicted`: those evicted alone so far."""

    def __init__(self, config: Configuration) -> None:
        super().__init__(config)
        assert config.window is not None
        self.window_size = config.window.size
        self.window_pages = -(-config.window.size // config.page_size)
        self.live_unlocked = self.window_evicted = 0
        self._dies_next: list[tuple[tuple[int, ...], int, CachedPage]] = []

    def find(self, text: Text, tokens: int) -> list[CachedPage]:
        path, run, usable = super().find(text, tokens), 0, 0
        for count, cached in enumerate(path, start=1):
            run = 0 if cached.dead else run + 1
            if run >= min(self.window_pages, count):
                usable = count
        return path[:usable]

    def pinned_window(self, paths: Iterable[list[CachedPage]]) -> int:
        """Window pages that nobody holds and that holding these paths would hold."""
        ends = [cached for path in paths for cached in path[max(len(path) - self.window_pages, 0) :]]
        return len({cached.page for cached in ends if not cached.window_locks and not cached.dead})

    def claim(self, held: Held, path: list[CachedPage]) -> None:
        super().claim(held, path)
        for cached in path:
            self._offer_window(cached)
        self._hold(held)

    def publish_live(
        self, held: Held, tokens: int, live_from: int
    ) -> tuple[list[int], list[int], list[tuple[int, int]], list[tuple[int, int]]]:
        """`publish`, where the request's own window is live from page `live_from` on. Also: duplicates whose window
        pages go, as (index, page), and window pages that move, as (own page, cached page)."""
        begin, mine = len(held.shared), list(held.pages)
        before, first = held.shared, held.window_first
        duplicates, new = self.publish(held, tokens)
        orphans: list[tuple[int, int]] = []
        moved: list[tuple[int, int]] = []
        if len(held.shared) == begin:
            return duplicates, new, orphans, moved
        for index in range(begin, len(held.shared)):
            cached, own_lives = held.shared[index], index >= live_from
            if cached.page == mine[index]:  # entered now
                cached.dead = not own_lives
                self.live_unlocked += own_lives
            elif own_lives and cached.dead:
                moved.append((mine[index], cached.page))
                cached.dead = False
                self.live_unlocked += not cached.window_locks
            elif own_lives:
                orphans.append((index, mine[index]))
        self.let_window_go(before[first:])
        self._hold(held)
        for cached in held.shared:
            self._offer_window(cached)
        return duplicates, new, orphans, moved

    def release(self, held: Held) -> None:
        self.let_window_go(held.shared[held.window_first :])
        held.window_first = 0
        super().release(held)

    def evict(self, pages: int) -> list[int]:
        gone = super().evict(pages)
        self.live_unlocked -= sum(not cached.dead for cached in self.gone)
        return gone

    def evict_window(self, pages: int) -> list[int]:
        """The cached pages whose window pages go, in the policy's order."""
        gone: list[int] = []
        while len(gone) < pages:
            order, _, cached = heappop(self._dies_next)
            if (
                self.by_page.get(cached.page) is cached
                and self._may_die(cached)
                and self._order_of_death(cached) == order
            ):
                cached.dead = True
                self.changed.add(cached.page)
                gone.append(cached.page)
        self.live_unlocked -= pages
        self.window_evicted += pages
        return gone

    def hold_window(self, path: list[CachedPage]) -> None:
        """The window pages of these are held once more."""
        for cached in path:
            if not cached.window_locks and not cached.dead:
                self.live_unlocked -= 1
            cached.window_locks += 1
            self.changed.add(cached.page)

    def let_window_go(self, path: list[CachedPage]) -> None:
        """Undo a hold_window."""
        for cached in path:
            cached.window_locks -= 1
            self.changed.add(cached.page)
            if not cached.window_locks and not cached.dead:
                self.live_unlocked += 1
                self._offer_window(cached)

    def _hold(self, held: Held) -> None:
        held.window_first = max(len(held.shared) - self.window_pages, 0)
        self.hold_window(held.shared[held.window_first :])

    def _offer_window(self, cached: CachedPage) -> None:
        if self._may_die(cached):
            heappush(self._dies_next, (self._order_of_death(cached), cached.page, cached))

    def _order_of_death(self, cached: CachedPage) -> tuple[int, ...]:
        return (*self._order(cached), cached.end)

    def _may_die(self, cached: CachedPage) -> bool:
        return not cached.window_locks and not cached.dead
