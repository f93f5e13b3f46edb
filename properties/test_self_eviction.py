"""Room from the prefix cache: exactly what is short, in the policy's order, and never what somebody holds.

The cache is also held to a model: a dict from each cached prefix to its page, evicted page by page.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode
from ..caching import checkpoint_kv_cache, evict_from_tree_cache, peek_prefix
from ..manager import Batch
from ..prefix_cache.radix import RadixCache
from ..records import Req
from ..release import retract
from ..sizing import Speculation
from .worlds import cache_of, cached_pages, extend, free_pages, pages_of, radix_manager, serve, short, sound, start

OTHER = range(100, 200)


def test_short_of_rows_with_a_prompt_that_is_cached(device: str) -> None:
    manager = radix_manager(device, max_requests=2)
    serve(manager, range(8))
    start(manager, OTHER, 3)
    reqs = [Req("a", range(9)), Req("b", range(9))]
    assert short(manager, lambda: alloc_for_extend(manager, reqs, [9, 9])) == ("rows", 2, 1, 0)


def test_what_a_batch_hits_is_not_reclaimable_for_it(device: str) -> None:
    manager = radix_manager(device, num_pages=8)
    hit = serve(manager, range(16))
    serve(manager, OTHER[:8])
    reqs = [Req("a", [*range(16), *OTHER]), Req("b", [*range(10), *OTHER])]
    # Free 2, reclaimable 2: the four pages that both hit are counted once.
    assert short(manager, lambda: alloc_for_extend(manager, reqs, [28, 16])) == ("full", 3 + 2, 2, 2)
    assert short(manager, lambda: alloc_for_extend(manager, reqs[1:], [40])) == ("full", 8, 2, 4), "half of it"
    extend(manager, reqs, 24, 16)
    assert cached_pages(manager) == set(hit), "the other prompt went, the whole of it"
    assert free_pages(manager) == set()


def test_a_batch_whose_own_hit_is_all_that_could_go_is_refused(device: str) -> None:
    manager = radix_manager(device, num_pages=6)
    serve(manager, range(16))
    req = Req("r", range(30))
    assert short(manager, lambda: alloc_for_extend(manager, [req], [25])) == ("full", 3, 2, 0)
    extend(manager, [req], 24)


def test_every_path_evicts_what_it_is_short_of_and_refuses_what_is_held(device: str) -> None:
    manager = radix_manager(device, num_pages=4, speculation=Speculation("dflash", 1, 1, 4))
    known = serve(manager, OTHER[:12])
    req = start(manager, range(40), 4)  # takes the free page
    batch = Batch(manager, [req])
    alloc_for_decode(manager, batch)
    assert cached_pages(manager) == set(known[:2])
    alloc_for_spec_decode(manager, batch, 8)
    assert sound(manager).record(req._row)["allocated"] == 16
    assert cached_pages(manager) == set()
    retract(manager, [req])
    extend(manager, [req], 15)
    batch = Batch(manager, [req])
    checkpoint_kv_cache(manager, req)
    assert short(manager, lambda: alloc_for_spec_decode(manager, batch, 2)) == ("full", 1, 0, 0)
    alloc_for_decode(manager, batch)
    assert short(manager, lambda: alloc_for_decode(manager, batch)) == ("full", 1, 0, 0)


@pytest.mark.parametrize("pages", [1, 2, 3, 4])
def test_exactly_the_shortfall_is_taken_from_the_tail(device: str, pages: int) -> None:
    manager = radix_manager(device, num_pages=8)
    known = serve(manager, range(16))
    req = start(manager, OTHER, 4 * (4 + pages))
    assert cached_pages(manager) == set(known[: 4 - pages])
    assert set(pages_of(manager, req)) >= set(known[4 - pages :])
    assert peek_prefix(manager, Req("", range(20))) == 4 * (4 - pages)


@pytest.mark.parametrize(("policy", "order"), [("lru", "cba"), ("lfu", "cab"), ("fifo", "abc")])
def test_pages_go_in_the_order_of_the_policy_each_prompt_from_its_tail(device: str, policy: str, order: str) -> None:
    manager = radix_manager(device, eviction=policy)
    prompts = {name: range(number * 50, number * 50 + 9) for number, name in enumerate("abc")}
    pages = {name: serve(manager, tokens)[:2] for name, tokens in prompts.items()}
    for name in "bba":
        retract(manager, [start(manager, prompts[name])])
    expected = [page for name in order for page in reversed(pages[name])]
    found = []
    for _ in expected:
        before = cached_pages(manager)
        assert evict_from_tree_cache(manager, 1) == 4
        (page,) = before - cached_pages(manager)
        found.append(page)
    assert found == expected


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_a_prefix_goes_behind_all_that_continues_it(device: str, policy: str) -> None:
    manager = radix_manager(device, eviction=policy)
    trunk = serve(manager, range(8))
    tails = [serve(manager, [*range(8), *OTHER[n : n + 4]])[2] for n in (0, 50)]
    evict_from_tree_cache(manager, 8)
    assert cached_pages(manager) == set(trunk)
    assert set(tails) <= free_pages(manager)
    evict_from_tree_cache(manager, 4)
    assert cached_pages(manager) == set(trunk[:1])


@pytest.mark.parametrize(("tokens", "freed"), [(0, 0), (1, 4), (4, 4), (5, 8), (19, 20), (99, 20)])
def test_an_eviction_is_asked_for_in_tokens_and_says_what_it_freed(device: str, tokens: int, freed: int) -> None:
    manager = radix_manager(device)
    serve(manager, range(12))
    serve(manager, OTHER[:8])
    held = start(manager, range(200, 220), 16)
    checkpoint_kv_cache(manager, held)
    assert evict_from_tree_cache(manager, tokens) == freed
    assert len(cached_pages(manager)) == 9 - freed // 4
    assert len(free_pages(manager)) == 7 + freed // 4
    assert sound(manager).cache[3, pages_of(manager, held)].tolist() == [1] * 4


def test_the_root_of_an_extra_key_goes_with_its_last_page(device: str) -> None:
    manager = radix_manager(device)
    for key in (None, "lora", "salt"):
        serve(manager, range(8), key)
    evict_from_tree_cache(manager, 12)
    assert list(cache_of(manager).roots) == ["lora", "salt"]
    start(manager, range(8), extra_key="unseen")
    assert "unseen" not in cache_of(manager).roots, "a look-up leaves nothing behind"
    evict_from_tree_cache(manager, 99)
    assert cache_of(manager).roots == {}


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_a_prompt_served_over_and_over_does_not_grow_the_queue_of_eviction(device: str, policy: str) -> None:
    cache = RadixCache(4, 1, policy, False, "cpu")
    key = cache.key(range(8), 8)
    cache.publish(1, key, torch.tensor([1, 2]))
    cache.release(1)
    for _ in range(1_000):
        cache.claim(1, key)
        cache.release(1)
    assert len(cache._leaves._heap) < 200
    assert cache.evict(2).tolist() == [1, 2]


# The model.

Prefix = tuple[int, ...]
PAGE_TOKENS = 2


@dataclass
class Entry:
    """One cached page: what a policy looks at."""

    page: int
    born: int
    last_use: int
    hits: int = 0


ORDERS: dict[str, Any] = {
    "lru": lambda entry: entry.last_use,
    "lfu": lambda entry: (entry.hits, entry.last_use),
    "fifo": lambda entry: entry.born,
}


class Model:
    """A dict from each cached prefix to its page; `held`: the prefix of each row that holds one."""

    def __init__(self, policy: str) -> None:
        self.order, self.entries, self.held, self.now = ORDERS[policy], dict[Prefix, Entry](), dict[int, Prefix](), 0

    def prefixes(self, tokens: Prefix) -> list[Prefix]:
        """The whole pages of some tokens, each with all before it."""
        return [tokens[:end] for end in range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS)]

    def hit(self, tokens: Prefix) -> list[Prefix]:
        return [prefix for prefix in self.prefixes(tokens) if prefix in self.entries]

    def claim(self, row: int, tokens: Prefix) -> None:
        found = self.hit(tokens)
        if found:
            self.now += 1
            self.held[row] = found[-1]
            for prefix in found:
                self.entries[prefix].last_use = self.now
                self.entries[prefix].hits += 1

    def publish(self, row: int, tokens: Prefix, pages: list[int]) -> int:
        """Returns how many of `pages` were cached already."""
        self.now += 1
        mine = self.prefixes(tokens)[-len(pages) :]
        duplicates = sum(prefix in self.entries for prefix in mine)
        for prefix, page in zip(mine, pages, strict=True):
            self.entries.setdefault(prefix, Entry(page, self.now, self.now))
        for prefix in self.prefixes(tokens):
            self.entries[prefix].last_use = self.now
        self.held[row] = mine[-1]
        return duplicates

    def locks(self) -> Counter[Prefix]:
        return Counter(prefix for held in self.held.values() for prefix in self.prefixes(held))

    def evict(self, count: int) -> list[int]:
        """Page by page, the first in the order of those that nobody holds and nothing continues."""
        pages = []
        for _ in range(count):
            locks, parents = self.locks(), {prefix[:-PAGE_TOKENS] for prefix in self.entries}
            first = min(
                self.entries.keys() - locks.keys() - parents, key=lambda prefix: self.order(self.entries[prefix])
            )
            pages.append(self.entries.pop(first).page)
        return pages


def contents(cache: RadixCache) -> dict[Prefix, tuple[Entry, int]]:
    """Entry and locks of each prefix in the tree."""
    found: dict[Prefix, tuple[Entry, int]] = {}
    before: dict[int, Prefix] = {}
    for _, node in cache.nodes():
        prefix = before.get(id(node.parent), ())
        for tokens, page in zip(node.key.tolist(), node.pages.tolist(), strict=True):
            prefix = (*prefix, *tokens)
            found[prefix] = Entry(page, node.born, node.last_use, node.hits), node.locks
        before[id(node)] = prefix
    return found


ROWS = (1, 2, 3)
steps = st.lists(
    st.tuples(
        st.sampled_from(["serve", "pass", "pass", "release", "evict", "peek"]),
        st.sampled_from(ROWS),
        st.lists(st.integers(0, 1), max_size=9).map(tuple),
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
@settings(max_examples=150, deadline=None)
@given(steps=steps)
def test_the_tree_is_a_dict_from_prefixes_to_pages(policy: str, steps: list[tuple[str, int, Prefix]]) -> None:
    cache, model, next_page = RadixCache(PAGE_TOKENS, len(ROWS), policy, False, "cpu"), Model(policy), 1
    for name, row, drawn in steps:
        tokens = model.held.get(row, ()) + drawn
        key = cache.key(tokens, len(tokens))
        if name == "release":
            cache.release(row)
            model.held.pop(row, None)
        elif name == "evict":
            count = min(len(drawn), cache.evictable_pages)
            assert sorted(cache.evict(count).tolist()) == sorted(model.evict(count))
        elif name == "peek":
            assert cache.peek(key).pages == len(model.hit(tokens))
        else:
            if row not in model.held:
                cache.claim(row, key)
                model.claim(row, tokens)
            count = len(key) - len(model.held.get(row, ())) // PAGE_TOKENS
            pages = list(range(next_page, next_page + count))
            next_page += count
            if count:
                duplicates, cached = cache.publish(row, key, torch.tensor(pages))
                assert duplicates == model.publish(row, tokens, pages)
                assert cached.tolist() == [model.entries[p].page for p in model.prefixes(tokens)[-count:][:duplicates]]
            if name == "pass":
                cache.release(row)
                model.held.pop(row, None)
        locks = model.locks()
        assert contents(cache) == {prefix: (entry, locks[prefix]) for prefix, entry in model.entries.items()}
        assert cache.cached_pages == len(model.entries)
        assert cache.evictable_pages == len(model.entries.keys() - locks.keys())
        assert len(cache.roots) == bool(model.entries)
