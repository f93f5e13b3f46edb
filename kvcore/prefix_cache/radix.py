"""A radix tree of cached pages: what was computed once is shared by every request whose tokens begin alike.

    cache = RadixCache(page_size=16, max_requests=64, policy="lru", bigram=False, device="cpu")
    hit = cache.peek(cache.key(token_ids, 1000))           # pages that would be hit; no effect
    cache.claim(row, key, hit.pages)                       # the row holds the path from now on
    cache.publish(row, key, pages)                         # what the row has computed belongs to the cache
    cache.release(row)
    pages = cache.evict(100)

A node is a run of pages with one history; it is split where a hit or an insertion ends inside it. Sizes and counts
live on the host, page ids in tensors on the device: nothing is read back. A lock on a node is a lock on its path to
the root, so whatever is unlocked can be evicted, leaves first. Match and insert cost what the key's pages cost,
whatever the tree's size.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from ..records import TokenIds
from .eviction import POLICIES, Queue
from .keys import Key, common_pages, page_key


class Node:
    """A run of pages. `key`: a row a page; `pages`: their ids, int64 on the device; `locks`: rows that hold it.

    begin: pages before it. dead, window_locks: see `windowed`. last_use, born: the cache's clock when it was last hit
    or inserted, and first inserted; hits: how often it was hit. A node that is out of the tree has no parent.
    """

    __slots__ = (
        "begin", "born", "children", "dead", "hits", "key", "last_use", "locks", "pages", "parent", "window_locks"
    )  # fmt: skip

    def __init__(self, key: Key, pages: torch.Tensor, parent: Node | None, now: int) -> None:
        self.key, self.pages, self.parent = key, pages, parent
        self.children: dict[bytes, Node] = {}
        self.begin: int = parent.begin + len(parent) if parent is not None else 0
        self.dead: int = 0
        self.window_locks: int = 0
        self.locks: int = 0
        self.hits: int = 0
        self.last_use: int = now
        self.born: int = now

    def __len__(self) -> int:
        return len(self.key)


class Root(Node):
    """Where the tree of an extra key begins: no pages, no parent, never locked; gone with its last child."""

    __slots__ = ("extra_key",)

    def __init__(self, extra_key: Hashable, key: Key, pages: torch.Tensor) -> None:
        super().__init__(key, pages, None, 0)
        self.extra_key = extra_key


class Hit(NamedTuple):
    """What a key finds: `pages` of it are cached, on this path (from the root, the last node perhaps in part)."""

    pages: int = 0
    path: tuple[tuple[Node, int], ...] = ()


class RadixCache:
    """Cached pages by what was computed into them. One extra key (a LoRA, a salt) is one tree of its own.

    `evictable_pages`: cached pages that nobody holds; `cached_pages`: all of them. A row's lock is kept by row number.
    """

    def __init__(self, page_size: int, max_requests: int, policy: str, bigram: bool, device: str) -> None:
        self.page_size, self.bigram = page_size, bigram
        self.roots: dict[Hashable, Root] = {}
        self.clock = 0
        self.evictable_pages = self.cached_pages = 0
        self._leaves = Queue(POLICIES[policy], _is_free_leaf)
        self._held: list[Node | None] = [None] * (max_requests + 1)
        self._no_pages = torch.zeros(0, dtype=torch.int64, device=device)

    def key(self, token_ids: TokenIds, length: int) -> Key:
        """The key of the first `length` tokens, in whole pages."""
        return page_key(token_ids, length, self.page_size, self.bigram)

    def peek(self, key: Key, extra_key: Hashable = None) -> Hit:
        """What a hit on `key` would be now. No effect at all."""
        root = self.roots.get(extra_key)
        return Hit() if root is None else _walk(root, key)

    def pinned(self, hits: Iterable[Hit]) -> int:
        """Evictable pages that these hits together would lock."""
        most: dict[int, int] = {}
        for hit in hits:
            for node, pages in hit.path:
                if not node.locks:
                    most[id(node)] = max(pages, most.get(id(node), 0))
        return sum(most.values())

    def claim(self, row: int, key: Key, extra_key: Hashable = None) -> list[torch.Tensor]:
        """Hit `key`: the row holds what it finds from now on. Returns the pages, int64 on the device, part by part."""
        hit = self.peek(key, extra_key)
        if not hit.pages:
            return []
        node = self._cut_behind(hit)
        self.clock += 1
        self._touch(node, hits=1)
        self._lock(node)
        self._held[row] = node
        return [part.pages for part, _ in hit.path[:-1]] + [node.pages]

    def publish(self, row: int, key: Key, pages: torch.Tensor, extra_key: Hashable = None) -> tuple[int, torch.Tensor]:
        """Insert what the row has computed behind the part that it holds; the row holds the whole key from now on.

        `pages` (int64 on the device) are the row's own for the rest of the key. Returns how many of the first of them
        were cached already, and the cached pages in their place: the row's own are duplicates and the caller's to
        free. The others belong to the cache from now on.
        """
        held = self._held[row]
        at = held or self._root(extra_key)
        rest = key[len(key) - len(pages) :]
        hit = _walk(at, rest)
        node = self._cut_behind(hit) if hit.pages else at
        parts = [part.pages for part, _ in hit.path[:-1]] + [node.pages] if hit.pages else []
        self.clock += 1
        if hit.pages < len(rest):
            # Copies: a slice would keep the whole of what it was cut from.
            node = self._add(node, rest[hit.pages :].copy(), pages[hit.pages :].clone())
        self._touch(node)
        self._lock(node)
        if held is not None:
            self._unlock(held)
        self._held[row] = node
        return hit.pages, torch.cat(parts) if parts else self._no_pages

    def release(self, row: int) -> None:
        """The row holds nothing any more."""
        held = self._held[row]
        if held is not None:
            self._held[row] = None
            self._unlock(held)

    def window_from(self, row: int, tokens: int, live_from: int) -> int:
        """The page from which a lease on the row's first `tokens` tokens covers the window, too."""
        return 0

    def lend(self, row: int, tokens: int, first: int) -> tuple[Node, int] | None:
        """Lock what the row holds of its first `tokens` tokens once more, for a lease. What `take_back` wants.

        first: the page from which its window is held.
        """
        node, pages = self._held[row], -(-tokens // self.page_size)
        while node is not None and node.parent is not None and node.begin >= pages:
            node = node.parent
        if node is None or node.parent is None:
            return None
        if node.begin + len(node) > pages:
            node = self._split(node, pages - node.begin)
        self._lock(node)
        return node, 0

    def take_back(self, hold: tuple[Node, int]) -> None:
        """Undo a `lend`."""
        self._unlock(hold[0])

    def evict(self, pages: int) -> torch.Tensor:
        """Take exactly `pages` <= evictable_pages pages out, the tails of the leaves that come first. int64[pages]."""
        taken, left = [self._no_pages], pages
        while left:
            node = self._leaves.pop()
            keep = max(len(node) - left, 0)
            left -= len(node) - keep
            taken.append(node.pages[keep:])
            if not keep:
                self._remove(node)
            self._trim(node, keep)
            if keep:
                self._leaves.offer(node)
        self.evictable_pages -= pages
        self.cached_pages -= pages
        return torch.cat(taken)

    def nodes(self) -> Iterator[tuple[Hashable, Node]]:
        """Every node that holds pages, with its extra key, parents before their children."""
        for extra_key, root in self.roots.items():
            open_nodes = list(root.children.values())
            while open_nodes:
                node = open_nodes.pop()
                yield extra_key, node
                open_nodes += node.children.values()

    def _root(self, extra_key: Hashable) -> Node:
        root = self.roots.get(extra_key)
        if root is None:
            # Of a root's key nobody reads more than that it is empty.
            root = self.roots[extra_key] = Root(extra_key, np.zeros((0, self.page_size)), self._no_pages)
        return root

    def _cut_behind(self, hit: Hit) -> Node:
        """The node that ends where the hit ends: the last of its path, split if the hit ends inside it."""
        node, pages = hit.path[-1]
        return node if pages == len(node) else self._split(node, pages)

    def _split(self, node: Node, pages: int) -> Node:
        """A new node for the first pages of `node`, its parent from now on, with the same history and locks. `node`
        stays what is held, and offered for eviction, under its name."""
        assert node.parent is not None
        upper = Node(node.key[:pages], node.pages[:pages], node.parent, node.born)
        upper.locks, upper.hits, upper.last_use = node.locks, node.hits, node.last_use
        node.begin += pages
        node.parent.children[_branch(node.key)] = upper
        node.key, node.pages, node.parent = node.key[pages:], node.pages[pages:], upper
        upper.children[_branch(node.key)] = node
        return upper

    def _trim(self, node: Node, keep: int) -> None:
        """An eviction leaves the first `keep` pages of a leaf."""
        node.key, node.pages = node.key[:keep], node.pages[:keep]

    def _add(self, parent: Node, key: Key, pages: torch.Tensor) -> Node:
        node = parent.children[_branch(key)] = Node(key, pages, parent, self.clock)
        self.evictable_pages += len(key)
        self.cached_pages += len(key)
        return node

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[_branch(node.key)]
        node.parent = None
        if isinstance(parent, Root):
            if not parent.children:
                del self.roots[parent.extra_key]
        elif not parent.children and not parent.locks:
            self._leaves.offer(parent)

    def _touch(self, node: Node, hits: int = 0) -> None:
        at: Node | None = node
        while at is not None:
            at.last_use = self.clock
            at.hits += hits
            at = at.parent

    def _lock(self, node: Node) -> None:
        while node.parent is not None:
            if not node.locks:
                self.evictable_pages -= len(node)
            node.locks += 1
            node = node.parent

    def _unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.evictable_pages += len(node)
                if not node.children:
                    self._leaves.offer(node)
            node = node.parent


def _is_free_leaf(node: Node) -> bool:
    return not node.locks and not node.children


def _walk(node: Node, key: Key) -> Hit:
    """Down the tree from `node` as far as `key` goes."""
    path, at = [], 0
    while at < len(key):
        child = node.children.get(_branch(key, at))
        if child is None:
            break
        pages = common_pages(child.key, key[at : at + len(child)])
        path.append((child, pages))
        at += pages
        if pages < len(child):
            break
        node = child
    return Hit(at, tuple(path))


def _branch(key: Key, at: int = 0) -> bytes:
    """What a child is found by: the first page of its key."""
    page: bytes = key[at].tobytes()
    return page
