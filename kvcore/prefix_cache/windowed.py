"""A prefix cache beside a window pool: cached pages whose window page is gone are dead for the window.

    cache = WindowedCache(..., window=Window(size=4096, num_pages=512), window_map=window_map)
    owners = cache.evict_window(3)          # full pages whose window pages are the caller's to free

A hit has to end with a whole live window: its first page still to be computed looks back so far. What a row holds it
holds in full, but of the window only the part behind which its next query does not look; before that a window page can
be evicted alone, and its entry stays, dead for the window. In a node the dead pages come first: the window is evicted
from the front, in the policy's order, and a request publishes what lies behind its window as dead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch

from ..window import Window
from .eviction import Order, Queue
from .keys import Key
from .radix import Hit, Node, RadixCache


class WindowedCache(RadixCache):
    """A RadixCache whose nodes also know how many of their first pages are `dead`, and how many rows hold their window.

    evictable_window_pages: live window pages that nobody holds. window_map: full page -> window page, on the device.
    """

    def __init__(self, *arguments: Any, window: Window, window_map: torch.Tensor) -> None:
        super().__init__(*arguments)
        self.window_map, self.window_size = window_map, window.size
        self.window_pages = -(-window.size // self.page_size)
        self.evictable_window_pages = 0
        self._first: dict[int, int] = {}  # of each row that holds something: the page from which it holds the window
        self._owners: list[torch.Tensor] = []  # of what an eviction takes out: the pages that are live
        self._live = Queue(self._window_order, _has_free_window)

    def peek(self, key: Key, extra_key: Hashable = None) -> Hit:
        """As far as the key goes, and back to where a whole window is live."""
        hit, run, usable = super().peek(key, extra_key), 0, 0
        for at, (node, pages) in enumerate(hit.path, start=1):
            run = max(pages - node.dead, 0) + (run if not node.dead else 0)
            if run >= min(self.window_pages, node.begin + pages):
                usable = at
        path = hit.path[:usable]
        return Hit(path[-1][0].begin + path[-1][1], path) if path else Hit()

    def pinned_window(self, hits: Iterable[Hit]) -> int:
        """Evictable window pages that these hits together would hold."""
        pinned: set[tuple[int, int]] = set()
        for hit in hits:
            first = max(hit.pages - self.window_pages, 0)
            for node, pages in hit.path:
                if not node.window_locks and node.begin + pages > first:
                    # None of these is dead: a hit ends with a whole live window.
                    pinned.update((id(node), page) for page in range(max(first, node.begin), node.begin + pages))
        return len(pinned)

    def claim(self, row: int, key: Key, extra_key: Hashable = None) -> list[torch.Tensor]:
        parts = super().claim(row, key, extra_key)
        self._hold_window(row)
        return parts

    def publish_live(
        self, row: int, key: Key, pages: torch.Tensor, extra_key: Hashable, live_from: int
    ) -> tuple[int, torch.Tensor, list[tuple[int, torch.Tensor]]]:
        """`publish`, where the row's own window is live from page `live_from` of the prefix on.

        Returns also those of its duplicates whose window pages are the caller's to free, in runs: where in the prefix a
        run begins, and its pages. Where the cache's page is dead and the row's is live, the cache takes over the window
        page of the row.
        """
        begin, held = len(key) - len(pages), self._held[row]
        duplicates, cached = self.publish(row, key, pages, extra_key)
        owners: list[tuple[int, torch.Tensor]] = []
        path = self._path(row, held)
        for node in path:
            own = max(live_from, node.begin)  # of this node's pages the row's window is live from here on
            end = node.begin + len(node)
            if node.begin >= begin + duplicates:
                node.dead = min(own, end) - node.begin
                self.evictable_window_pages += len(node) - node.dead
                continue
            alive = node.begin + node.dead
            if own < alive:
                # A free page of the window map is 0: what is moved away leaves nothing behind.
                mine, its = pages[own - begin : alive - begin], node.pages[own - node.begin : node.dead]
                self.window_map.index_copy_(0, its, self.window_map.index_select(0, mine))
                self.window_map.index_fill_(0, mine, 0)
                if not node.window_locks:
                    self.evictable_window_pages += alive - own
                node.dead = own - node.begin
            mine_left = max(own, alive)
            owners.append((mine_left, pages[mine_left - begin : end - begin]))
        self._let_window_go(row, held)
        self._hold_window(row)
        for node in path:
            self._offer_window(node)
        return duplicates, cached, owners

    def release(self, row: int) -> None:
        self._let_window_go(row, self._held[row])
        super().release(row)

    def window_from(self, row: int, tokens: int, live_from: int) -> int:
        """What the row holds of the cache's window, what its next query looks at, and all that is live of its own."""
        return min(self._first.get(row, live_from), max(tokens - self.window_size, 0) // self.page_size, live_from)

    def lend(self, row: int, tokens: int, first: int) -> tuple[Node, int] | None:
        hold = super().lend(row, tokens, first)
        if hold is None:
            return None
        self._lock_window(hold[0], first)
        return hold[0], first

    def take_back(self, hold: tuple[Node, int]) -> None:
        self._unlock_window(*hold)
        super().take_back(hold)

    def evict_window(self, pages: int) -> torch.Tensor:
        """The window pages of exactly `pages` <= evictable_window_pages cached pages go: int64[pages], full pages."""
        taken, left = [self._no_pages], pages
        while left:
            node = self._live.pop()
            dies = min(len(node) - node.dead, left)
            taken.append(node.pages[node.dead : node.dead + dies])
            node.dead += dies
            left -= dies
            self._offer_window(node)
        self.evictable_window_pages -= pages
        return torch.cat(taken)

    def evicted_owners(self) -> torch.Tensor:
        """Of the pages that were evicted since the last call, those that have window pages: the caller's to free."""
        owners, self._owners = self._owners, []
        return torch.cat([self._no_pages, *owners])

    def _window_order(self, node: Node) -> Order:
        # Of one path, the pages that the next window needs least.
        return (*self._leaves.order(node), node.begin + node.dead)

    def _offer_window(self, node: Node) -> None:
        if node.parent is not None and _has_free_window(node):
            self._live.offer(node)

    def _path(self, row: int, above: Node | None) -> list[Node]:
        """The nodes that the row holds, below `above`, the last first."""
        path, node = [], self._held[row]
        while node is not None and node is not above and node.parent is not None:
            path.append(node)
            node = node.parent
        return path

    def _hold_window(self, row: int) -> None:
        node = self._held[row]
        if node is not None:
            first = self._first[row] = max(node.begin + len(node) - self.window_pages, 0)
            self._lock_window(node, first)

    def _let_window_go(self, row: int, node: Node | None) -> None:
        if node is not None:
            self._unlock_window(node, self._first.pop(row))

    def _lock_window(self, at: Node, first: int) -> None:
        """Hold the window pages from page `first` of the prefix to the end of the node."""
        node: Node | None = at
        while node is not None and node.parent is not None and node.begin + len(node) > first:
            if node.begin < first:
                self._split(node, first - node.begin)
            if not node.window_locks:
                self.evictable_window_pages -= len(node) - node.dead
            node.window_locks += 1
            node = node.parent

    def _unlock_window(self, at: Node, first: int) -> None:
        node: Node | None = at
        while node is not None and node.parent is not None and node.begin >= first:
            node.window_locks -= 1
            if not node.window_locks:
                self.evictable_window_pages += len(node) - node.dead
                self._offer_window(node)
            node = node.parent

    def _split(self, node: Node, pages: int) -> Node:
        upper = super()._split(node, pages)
        upper.dead, node.dead = min(node.dead, pages), max(node.dead - pages, 0)
        upper.window_locks = node.window_locks
        self._offer_window(upper)
        self._offer_window(node)
        return upper

    def _trim(self, node: Node, keep: int) -> None:
        live = max(node.dead, keep)
        self._owners.append(node.pages[live:])
        self.evictable_window_pages -= len(node) - live
        node.dead = min(node.dead, keep)
        super()._trim(node, keep)

    def _touch(self, node: Node, hits: int = 0) -> None:
        super()._touch(node, hits)
        at: Node | None = node
        while at is not None:
            self._offer_window(at)
            at = at.parent


def _has_free_window(node: Node) -> bool:
    return not node.window_locks and node.dead < len(node)
