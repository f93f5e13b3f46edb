"""Faults of the prefix cache and of eviction: locks, published pages, keys, hits.

kvcore faults --only a_lock_lost_in_a_split
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ... import allocation, caching, release
from ...allocators.paged import PagedAllocator
from ...errors import KVCacheOutOfMemory
from ...manager import KVCacheManager
from ...prefix_cache.radix import Node, RadixCache
from ..configuration import Configuration
from ..subjects.kvcore import KvcoreEngine
from . import replaced
from .paths import enter, require_room


def _do_nothing(*call: Any, **named: Any) -> None:
    """What is forgotten."""


def _forgets_protected(manager: KVCacheManager, rows: Any) -> Any:
    """A request's own pages begin at position 0, or behind its hole."""
    return manager.req_to_token_pool.records.hole_hi[rows]


_release, _publish, _split = RadixCache.release, RadixCache.publish, RadixCache._split
_claim, _evict, _peek, _key = RadixCache.claim, RadixCache.evict, RadixCache.peek, RadixCache.key
_look_up = allocation.look_up


# Locks.


@enter("none known", "KV-9")
class a_lock_lost_in_a_split(KvcoreEngine):
    """A hit ends inside a node that another request holds, and the new half begins without its locks. The request that
    held the whole has half of it evicted."""

    def extend(self, *call: Any) -> Any:
        def without_locks(cache: RadixCache, node: Node, pages: int) -> Node:
            upper = _split(cache, node, pages)
            upper.locks = 0
            return upper

        with replaced(RadixCache, "_split", without_locks):
            return super().extend(*call)


@enter("sgl-project/sglang#18694", "KV-9")
class a_prefix_unlocked_twice(KvcoreEngine):
    """Two places finish a request, and each lets go of its prefix. The second one takes the lock of whoever else holds
    it, or goes below zero."""

    def release(self, *call: Any) -> Any:
        def twice(cache: RadixCache, row: int) -> None:
            held = cache._held[row]
            _release(cache, row)
            if held is not None:
                cache._unlock(held)

        with replaced(RadixCache, "release", twice):
            return super().release(*call)


@enter("none known", "KV-9")
class a_lock_kept_by_a_retract(KvcoreEngine):
    """A retracted request gives its own pages back and keeps its prefix locked. What it held is never evicted again."""

    def retract(self, *call: Any) -> Any:
        with replaced(RadixCache, "release", _do_nothing):
            return super().retract(*call)


# What is published, and what comes back.


@enter("sgl-project/sglang-jax#1000", "KV-8")
class duplicates_never_freed(KvcoreEngine):
    """A chunk is published that the cache had already: the row takes the cache's pages, and its own are dropped. The
    range to free is computed as empty, and nobody finds them again."""

    def checkpoint(self, *call: Any) -> Any:
        with replaced(PagedAllocator, "give_back", _do_nothing):
            return super().checkpoint(*call)


@enter("none known", "KV-9")
class a_row_that_keeps_its_duplicates(KvcoreEngine):
    """The duplicates are freed and the row goes on naming them. The next request that gets these pages writes over a
    prefix that is being read."""

    def checkpoint(self, *call: Any) -> Any:
        with replaced(self.manager.kernels, "write_pages", _do_nothing):
            return super().checkpoint(*call)


@enter("none known", "KV-8", "KV-9")
class a_protected_prefix_freed_on_release(KvcoreEngine):
    """A finished request frees [0, allocated) of its row. The pages of its prefix are free then, and the cache goes on
    serving them."""

    def release(self, *call: Any) -> Any:
        with replaced(release, "private_from", _forgets_protected):
            return super().release(*call)


@enter("sgl-project/sglang#38319", "KV-8")
class published_pages_freed_by_a_retract(KvcoreEngine):
    """The chunks of a prefill are published while it runs, and a retract takes them for the request's own. Each later
    hit reads what another request has written there."""

    def retract(self, *call: Any) -> Any:
        with replaced(release, "private_from", _forgets_protected):
            return super().retract(*call)


@enter("sgl-project/sglang#24063", "KV-8")
class published_pages_freed_by_a_checkpoint(KvcoreEngine):
    """What a request has handed over is freed at once, while the request goes on reading it. The next prefill writes
    over its prompt."""

    def checkpoint(self, *call: Any) -> Any:
        def and_free(cache: RadixCache, row: int, key: Any, pages: torch.Tensor, extra_key: Any) -> Any:
            duplicates, cached = _publish(cache, row, key, pages, extra_key)
            self.manager.allocator.give_back(pages[duplicates:])
            return duplicates, cached

        with replaced(RadixCache, "publish", and_free):
            return super().checkpoint(*call)


@enter("none known", "KV-9")
class a_partial_page_published(KvcoreEngine):
    """The committed length is rounded up to the page before a finished request is published. The last token of the last
    page is known and its KV was never computed."""

    def release(self, *call: Any) -> Any:
        def rounded_up(cache: RadixCache, token_ids: Any, length: int) -> Any:
            return _key(cache, token_ids, -(-length // cache.page_size) * cache.page_size)

        with replaced(RadixCache, "key", rounded_up):
            return super().release(*call)


@enter("sgl-project/sglang#34870", "KV-9")
class a_bigram_key_one_too_long(KvcoreEngine):
    """A key is measured in tokens although one of bigrams is an element shorter. A page whose last bigram reaches past
    what is committed is published with the rest."""

    def release(self, *call: Any) -> Any:
        def in_tokens(cache: RadixCache, token_ids: Any, length: int) -> Any:
            return _key(cache, token_ids, length + cache.bigram)

        with replaced(RadixCache, "key", in_tokens):
            return super().release(*call)


# Hits.


@enter("none known", "KV-5", "KV-6")
class a_hit_that_includes_the_last_token(KvcoreEngine):
    """The hit is not capped one token before the end. A request whose whole pages are all cached computes nothing, and
    there is no token to sample from."""

    def extend(self, *call: Any) -> Any:
        def uncapped(manager: Any, reqs: Any, lens: Any) -> Any:
            return _look_up(manager, reqs, lens + 1)

        with replaced(allocation, "look_up", uncapped):
            return super().extend(*call)


@enter("none known", "KV-9")
class the_extra_key_ignored(KvcoreEngine):
    """A finished request is published by its tokens alone. A request without a LoRA hits what was computed under
    one."""

    def release(self, *call: Any) -> Any:
        def by_tokens(cache: RadixCache, row: int, key: Any, pages: torch.Tensor, extra_key: Any) -> Any:
            return _publish(cache, row, key, pages)

        with replaced(RadixCache, "publish", by_tokens):
            return super().release(*call)


@enter("none known", "KV-9")
class a_peek_that_moves_recency(KvcoreEngine):
    """A router asks what a request would hit, and the asking counts as a use. Prefixes that are asked for and never
    used outlive those that are."""

    def peek(self, *call: Any) -> Any:
        def a_use(cache: RadixCache, *key: Any) -> Any:
            hit = _peek(cache, *key)
            if hit.pages:
                cache.clock += 1
                cache._touch(hit.path[-1][0])
            return hit

        with replaced(RadixCache, "peek", a_use):
            return super().peek(*call)


@enter("none known", "KV-9")
class a_hit_that_does_not_move_recency(KvcoreEngine):
    """A hit locks its path and leaves its last use as it was. The prefix that everybody uses is evicted first."""

    def extend(self, *call: Any) -> Any:
        with replaced(RadixCache, "_touch", _do_nothing):
            return super().extend(*call)


# Eviction, and the demand that it covers.


@enter("none known", "KV-9", "KV-1")
class evicted_by_age(KvcoreEngine):
    """The policy that was asked for is not handed on, and the oldest prefix goes first. Records and sums are right, and
    the system prompt is computed again and again."""

    def __init__(self, config: Configuration) -> None:
        super().__init__(replace(config, eviction="fifo"))


@enter("none known", "KV-9", "KV-1")
class a_whole_leaf_evicted(KvcoreEngine):
    """Eviction takes leaves and no parts of them. For one page that is short a whole prompt goes."""

    def extend(self, *call: Any) -> Any:
        def whole(cache: RadixCache, pages: int) -> torch.Tensor:
            first = cache._leaves.pop()
            cache._leaves.offer(first)
            return _evict(cache, max(pages, len(first)))

        with replaced(RadixCache, "evict", whole):
            return super().extend(*call)


@enter("none known", "KV-1", "KV-9")
class its_own_hits_evicted(KvcoreEngine):
    """The batch's hits are looked up, room is made, and only then they are locked. Where the hits come first in the
    order, the batch evicts what it is about to read."""

    def extend(self, *call: Any) -> Any:
        found: list[list[torch.Tensor]] = []

        def make_room(manager: KVCacheManager, plan: Any) -> None:
            require_room(manager, plan)
            found.extend([node.pages[:pages] for node, pages in hit.path] for hit in plan.hits)
            short = plan.pages - manager.allocator.free_list.count
            if short > 0 and manager.tree_cache is not None:
                manager.evict(short)

        def late(cache: RadixCache, *call: Any) -> list[torch.Tensor]:
            _claim(cache, *call)
            return found.pop(0)

        with replaced(allocation, "require_room", make_room), replaced(RadixCache, "claim", late):
            return super().extend(*call)


@enter("none known", "KV-6")
class pinned_pages_counted_as_reclaimable(KvcoreEngine):
    """The demand is compared with all that nobody holds, the batch's own hits included. They are locked a moment later,
    and what was promised is not there."""

    def extend(self, *call: Any) -> Any:
        with replaced(RadixCache, "pinned", lambda cache, hits: 0):
            return super().extend(*call)


@enter("seen in SGLang 0.5.23", "KV-7")
class eviction_before_a_refusal(KvcoreEngine):
    """An extend evicts what there is and then finds it too little. It is refused, and the cache is empty."""

    def extend(self, *call: Any) -> Any:
        def evict_first(manager: KVCacheManager, plan: Any) -> None:
            try:
                require_room(manager, plan)
            except KVCacheOutOfMemory:
                caching.evict_from_tree_cache(manager, plan.pages * manager.page_size)
                raise

        with replaced(allocation, "require_room", evict_first):
            return super().extend(*call)
