"""What the prefix cache costs on the host: a long match, its insertion, an eviction, and memory a page.

    for figure in cache_figures():
        print(figure.what, figure.value, figure.unit)

The tree holds ten million tokens: a prompt of 100,000 tokens that others branch off at 200 places, so that its match
walks 200 nodes whatever the tree's size, and conversations that go on from there or from one another. A match is the
whole of it as a path does it: a Python list of tokens to a key, the peek, the claim. Page ids are made up; the cache
never looks at them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from ..prefix_cache.keys import Key
from ..prefix_cache.radix import RadixCache
from .bench_suite import Figure

PAGE_SIZES = (64, 1)
SMALL, FULL = 1_000_000, 10_000_000
LONG, BRANCHES = 100_000, 200
MATCH_BAR, EVICT_BAR = 30.0, 20.0
GROWTH_BAR = 1.5
"""Times, in ms, and how much longer a match may take in ten times the tree: what is left is caches and noise."""

ROUNDS = 9


class Filled:
    """A cache of `page_size`, grown to a number of tokens; `long` is cached, and branched off at 200 places."""

    def __init__(self, page_size: int) -> None:
        self.cache = RadixCache(page_size, 4, "lru", False, "cpu")
        self.rng = np.random.default_rng(page_size)
        self.next_page = 1
        self.long = self.tokens(LONG)
        self.begun = [self.long]
        self.insert(self.long)
        for place in range(BRANCHES):
            self.insert(np.concatenate((self.long[: place * LONG // BRANCHES], self.tokens(page_size))))

    def tokens(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return self.rng.integers(0, 128_000, count, dtype=np.int32)

    def grow(self, tokens: int) -> None:
        """Conversations until so many tokens are cached: half of them off the long prompt, half off earlier ones."""
        while self.cache.cached_pages * self.cache.page_size < tokens:
            off_long = self.rng.integers(2)
            prompt = self.long if off_long else self.begun[int(self.rng.integers(len(self.begun)))]
            places = BRANCHES if off_long else 2
            shared = int(self.rng.integers(places)) * len(prompt) // places
            turn = np.concatenate((prompt[:shared], self.tokens(int(self.rng.integers(64, 8_000)))))
            if len(self.begun) < 100:  # few: they are not to count as the cache's memory
                self.begun.append(turn[:4_000].copy())
            self.insert(turn)

    def insert(self, tokens: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        key = self.cache.key(tokens, len(tokens))
        self.publish(key, self.claim(key))
        self.cache.release(1)

    def claim(self, key: Key) -> int:
        """The row holds what is cached of `key`; returns how many pages that is."""
        return sum(map(len, self.cache.claim(1, key)))

    def publish(self, key: Key, hit: int) -> None:
        """Insert what is not cached of `key`."""
        count = len(key) - hit
        pages = torch.arange(self.next_page, self.next_page + count)
        self.next_page += count
        if count:
            self.cache.publish(1, key, pages)

    def match(self) -> float:
        """Milliseconds of a match of the long prompt, all of it cached: key, peek, claim."""
        tokens = self.long.tolist()

        def run() -> None:
            key = self.cache.key(tokens, LONG)
            self.cache.peek(key)
            self.claim(key)

        return _median(run, lambda: self.cache.release(1))

    def make_key(self) -> float:
        """Milliseconds of the key alone."""
        tokens = self.long.tolist()
        return _median(lambda: self.cache.key(tokens, LONG), lambda: None)

    def insert_another(self) -> float:
        """Milliseconds to insert a prompt of 100,000 tokens that nobody has begun, its key at hand."""
        times = []
        for _ in range(ROUNDS):
            key = self.cache.key(self.tokens(LONG), LONG)
            started = time.perf_counter()
            self.publish(key, self.claim(key))
            times.append((time.perf_counter() - started) * 1e3)
            self.cache.release(1)
        return statistics.median(times)

    def evict(self, pages: int) -> float:
        """Milliseconds to evict so many pages."""
        return _median(lambda: self.cache.evict(pages), lambda: None)


def cache_figures(full: int = FULL, small: int = SMALL) -> Iterator[Figure]:
    """The figures of a tree of `full` tokens, and how a match compares with one of `small`, at each page size."""
    torch.set_num_threads(1)
    for size in PAGE_SIZES:
        before = _resident()
        filled = Filled(size)
        filled.grow(small)
        at_small = filled.match()
        filled.grow(full)
        memory = (_resident() - before) / filled.cache.cached_pages
        nodes = sum(1 for _ in filled.cache.nodes())
        what = f"page size {size}, {full:,} tokens"
        yield Figure(f"{what}: nodes", nodes, "nodes")
        yield Figure(f"{what}: memory a cached page", memory, "bytes")
        match = filled.match()
        yield Figure(f"{what}: match of {LONG:,} tokens", match, "ms", MATCH_BAR, at_most=True)
        yield Figure(f"{what}: of which the key", filled.make_key(), "ms")
        yield Figure(f"{what}: the match beside that in {small:,} tokens", match / at_small, "x", GROWTH_BAR, True)
        yield Figure(f"{what}: insertion of {LONG:,} tokens", filled.insert_another(), "ms")
        yield Figure(f"{what}: eviction of 1,000 pages", filled.evict(1_000), "ms", EVICT_BAR, at_most=True)


def _median(run: Callable[[], object], after: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
        after()
    return statistics.median(times)


def _resident() -> int:
    """Bytes of this process in memory. Not tracemalloc: it does not see what torch allocates."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
