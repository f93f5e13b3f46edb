"""The ledger's model of the prefix cache: which prefix lies on which page, who holds it, what goes next.

    path = prefixes.find(text, tokens=40)           # cached pages that an extend over these tokens hits
    prefixes.claim(held, path)
    duplicates = prefixes.publish(held, tokens=48)  # pages that the cache had already
    pages = prefixes.evict(3)

Page by page, in a dict from a prefix to its page: there are no nodes, and nothing is split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import islice

from ..snapshots import digest_of_extra_key, digests_of
from .configuration import Configuration
from .texts import Text
from .verdicts import Held


class CachedPage:
    """One page of the cache: the prefix that ends with it, how many requests hold it, and its history."""

    __slots__ = (
        "born", "children", "dead", "digest", "end", "hits", "key", "last_use", "locks", "page", "parent",
        "window_locks",
    )  # fmt: skip

    def __init__(self, key: int, page: int, parent: CachedPage | None, end: int, digest: int, now: int) -> None:
        self.key, self.page, self.parent, self.end, self.digest, self.born = key, page, parent, end, digest, now
        self.locks = self.hits = self.children = self.last_use = self.window_locks = 0
        self.dead = False  # has no window page

    def column(self) -> tuple[int, ...]:
        """What a snapshot shows of it."""
        parent = self.parent.page if self.parent else 0
        return (
            self.end, parent, self.digest, self.locks, self.last_use, self.hits, self.born, self.dead, self.window_locks
        )  # fmt: skip


ORDER: dict[str, Callable[[CachedPage], tuple[int, ...]]] = {
    "lru": lambda cached: (cached.last_use,),
    "lfu": lambda cached: (cached.hits, cached.last_use),
    "fifo": lambda cached: (cached.born,),
}


class Prefixes:
    """`unlocked`: pages that nobody holds, all of which an eviction can free. `changed`: pages that the last operation
    has put in, used, or taken out; `evicted`: pages taken out so far."""

    def __init__(self, config: Configuration) -> None:
        self.on = config.prefix_cache != "none"
        self.size, self.bigram = config.page_size, config.has_bigram_keys
        self.by_prefix: dict[int, CachedPage] = {}
        self.by_page: dict[int, CachedPage] = {}
        self.changed: set[int] = set()
        self.gone: list[CachedPage] = []  # what the last eviction has taken out
        self.clock = self.unlocked = self.evicted = 0
        self._order = ORDER[config.eviction]
        self._next: list[tuple[tuple[int, ...], int, CachedPage]] = []

    def find(self, text: Text, tokens: int) -> list[CachedPage]:
        """The longest cached prefix of the first `tokens` tokens, page by page. No effect."""
        pages = max(tokens - self.bigram, 0) // self.size if self.on else 0
        path: list[CachedPage] = []
        if not pages or not self.by_prefix:
            return path
        for key in islice(text.page_keys(pages, self.size, self.bigram), pages):
            cached = self.by_prefix.get(key)
            if cached is None:
                break
            path.append(cached)
        return path

    def pinned(self, paths: Iterable[list[CachedPage]]) -> int:
        """Unlocked pages that holding these paths would lock."""
        return len({cached.page for path in paths for cached in path if not cached.locks})

    def claim(self, held: Held, path: list[CachedPage]) -> None:
        """An extend or a pre-allocation hits the path and holds it."""
        if not path:
            return
        self.clock += 1
        for cached in path:
            cached.hits += 1
        self._use(path)
        self.lock(path)
        held.shared = list(path)
        held.pages[:] = [cached.page for cached in path]
        held.protected = len(path) * self.size

    def publish(self, held: Held, tokens: int) -> tuple[list[int], list[int]]:
        """Enter the request's own whole pages of its first `tokens` tokens. Returns the pages that were duplicates and
        are the request's to free, and those that are the cache's now. `held` holds the whole prefix from now on."""
        begin, pages = len(held.shared), max(tokens - self.bigram, 0) // self.size if self.on else 0
        if pages <= begin:
            return [], []
        keys = held.text.page_keys(pages, self.size, self.bigram)
        duplicates, new = [], []
        self.clock += 1
        path: list[CachedPage] = list(held.shared)
        digests: list[int] | None = None
        for index in range(begin, pages):
            cached = self.by_prefix.get(keys[index])
            if cached is None:
                if digests is None:
                    digests = self._digests(held.text, pages)
                cached = self._enter(keys[index], index, held.pages[index], path[-1] if path else None, digests[index])
                new.append(cached.page)
            else:
                duplicates.append(held.pages[index])
                held.pages[index] = cached.page
            path.append(cached)
        self._use(path)
        self.lock(path[begin:])
        held.shared, held.protected = path, pages * self.size
        return duplicates, new

    def release(self, held: Held) -> None:
        """The request holds nothing of the cache any more."""
        self.unlock(held.shared)
        held.shared = []
        held.protected = 0

    def unlock(self, path: list[CachedPage]) -> None:
        """Undo a lock."""
        for cached in reversed(path):
            cached.locks -= 1
            self.changed.add(cached.page)
            if not cached.locks:
                self.unlocked += 1
                self._offer(cached)

    def evict(self, pages: int) -> list[int]:
        """Take so many pages out: always the unlocked page without a successor that comes first in the order."""
        gone: list[int] = []
        self.gone.clear()
        while len(gone) < pages:
            order, _, cached = heappop(self._next)
            in_cache = self.by_page.get(cached.page) is cached
            if not in_cache or not self._may_go(cached) or self._order(cached) != order:
                continue
            while True:  # up its path, as long as nothing else comes first
                del self.by_prefix[cached.key], self.by_page[cached.page]
                gone.append(cached.page)
                self.gone.append(cached)
                if cached.parent is None:
                    break
                cached = cached.parent
                cached.children -= 1
                other_first = self._next and self._next[0][0] < self._order(cached)
                if other_first or len(gone) == pages or not self._may_go(cached):
                    self._offer(cached)
                    break
        self.changed.update(gone)
        self.unlocked -= pages
        self.evicted += pages
        return gone

    def _enter(self, key: int, index: int, page: int, parent: CachedPage | None, digest: int) -> CachedPage:
        cached = CachedPage(key, page, parent, (index + 1) * self.size, digest, self.clock)
        self.by_prefix[key] = self.by_page[page] = cached
        if parent is not None:
            parent.children += 1
        self.unlocked += 1
        return cached

    def _use(self, path: list[CachedPage]) -> None:
        for cached in path:
            cached.last_use = self.clock
        self.changed.update([cached.page for cached in path])

    def lock(self, path: list[CachedPage]) -> None:
        """These are held once more."""
        for cached in path:
            self.changed.add(cached.page)
            if not cached.locks:
                self.unlocked -= 1
            cached.locks += 1

    def _offer(self, cached: CachedPage) -> None:
        if self._may_go(cached):
            heappush(self._next, (self._order(cached), cached.page, cached))

    def _may_go(self, cached: CachedPage) -> bool:
        return not cached.locks and not cached.children

    def _digests(self, text: Text, pages: int) -> list[int]:
        """The digest of each page of the text's key, as a snapshot has it."""
        tokens = text.tokens(pages * self.size + self.bigram).astype("int64")
        elements = tokens[:-1] << 32 | tokens[1:] if self.bigram else tokens
        digests = digests_of([elements.reshape(pages, self.size)])
        found: list[int] = (digests + digest_of_extra_key(text.salt or None)).tolist()
        return found
