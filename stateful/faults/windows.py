"""Faults of sliding windows: two pools that are short apart, a map, cursors, cached pages that are dead for the window.

kvcore faults --only a_page_of_live_tokens_given_up
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import allocation, preallocation, release, window_eviction
from ...errors import KVCacheOutOfMemory
from ...freeing import Freed, gather_pages
from ...manager import KVCacheManager
from ...prefix_cache.radix import RadixCache
from ...prefix_cache.windowed import WindowedCache
from ...window import next_cursor
from ..subjects.kvcore import KvcoreEngine
from . import replaced
from .paths import enter, require_room


def _do_nothing(*call: Any, **named: Any) -> None:
    """What is forgotten."""


def _nothing_is_dead(manager: KVCacheManager, rows: Any) -> Any:
    """As if no window had been given up."""
    low = manager.req_to_token_pool.records.protected[rows]
    return low, low


def _takes_first(manager: KVCacheManager, plan: Any) -> None:
    """The full pool's pages are taken, then the window pool is looked at."""
    try:
        require_room(manager, plan)
    except KVCacheOutOfMemory as error:
        if error.pool == "window" and manager.window_allocator is not None:
            manager.take_pages(plan.pages if not plan.hits else min(plan.pages, manager.allocator.free_list.count))
        raise


_behind_window, _give_up = window_eviction.behind_window, window_eviction.give_up
_take_slots, _publish_live = allocation.take_slots, WindowedCache.publish_live


# Two pools, one demand.


@enter("sgl-project/sglang#35338", "KV-7")
class a_decode_that_is_short_of_window_alone(KvcoreEngine):
    """A decode step, drafting or not, takes its pages from the full pool and then asks the window pool, which has none.
    The step is refused, and the full pages are gone."""

    def decode(self, *call: Any) -> Any:
        with replaced(allocation, "require_room", _takes_first):
            return super().decode(*call)

    def spec_reserve(self, *call: Any) -> Any:
        with replaced(allocation, "require_room", _takes_first):
            return super().spec_reserve(*call)


@enter("sgl-project/sglang#35338", "KV-7")
class an_extend_that_is_short_of_window_alone(KvcoreEngine):
    """A prefill takes its pages from the full pool before the joint demand is compared with both pools. Every prompt
    that waits for window pages costs the full pool as many pages as it has."""

    def extend(self, *call: Any) -> Any:
        with replaced(allocation, "require_room", _takes_first):
            return super().extend(*call)


@enter("sgl-project/sglang#40309", "KV-6")
class a_preallocation_that_evicts_no_window(KvcoreEngine):
    """Admission counts window pages of the cache that nobody holds, the pre-allocation looks at what is free. A request
    passes the one and is refused by the other, for ever."""

    def prealloc(self, *call: Any) -> Any:
        def admit_then_look(manager: KVCacheManager, plan: Any) -> None:
            require_room(manager, plan)
            if manager.window_allocator is not None:
                manager.window_allocator.require(plan.window_pages)

        with replaced(preallocation, "require_room", admit_then_look):
            return super().prealloc(*call)


@enter("none known", "KV-6")
class pinned_window_pages_counted_as_reclaimable(KvcoreEngine):
    """The window's demand is compared with all window pages that nobody holds, those of the batch's own hits included.
    They are held a moment later, and what was promised is not there."""

    def extend(self, *call: Any) -> Any:
        with replaced(WindowedCache, "pinned_window", lambda cache, hits: 0):
            return super().extend(*call)


# The map.


@enter("sgl-project/sglang#25805", "KV-10")
class a_stale_map_before_the_tail(KvcoreEngine):
    """A pre-allocation gives window pages to its tail alone, and the pages before it keep what the map had for their
    last owner. When they are released, window pages of somebody else are."""

    def prealloc(self, *call: Any) -> Any:
        def stale(manager: KVCacheManager, plan: Any) -> Any:
            slots = _take_slots(manager, plan)
            if plan.window_from is not None and manager.window_allocator is not None:
                pages = gather_pages(manager, plan.rows, plan.start, np.array([plan.window_from]))
                others = manager.window_allocator.free_list.ids[: len(pages)]
                manager.window_map[pages[: len(others)]] = others
            return slots

        with replaced(preallocation, "take_slots", stale):
            return super().prealloc(*call)


@enter("sgl-project/sglang#36081", "KV-10")
class peers_looked_up_at_the_flush(KvcoreEngine):
    """While a free group is open a release queues the full pages, and what they are mapped to is looked up when the
    group closes. Until then the map has pages that nobody holds, and then whatever it has by then is freed."""

    def release(self, *call: Any) -> Any:
        add_window = Freed.add_window

        def at_the_flush(freed: Freed, *call: Any) -> None:
            if freed.manager.allocator.queued is None:
                add_window(freed, *call)

        with replaced(Freed, "add_window", at_the_flush):
            return super().release(*call)

    def free_group_end(self) -> None:
        manager = self.manager
        if manager.window_allocator is not None and manager.allocator.queued:
            peers = manager.kernels.take_window_pages(manager.window_map, torch.cat(manager.allocator.queued))
            manager.window_allocator.give_back(peers[peers > 0])
        super().free_group_end()


@enter("sgl-project/sglang#38519", "KV-2", "KV-8")
class the_padding_page_in_the_window_list(KvcoreEngine):
    """A retracted request's window pages are looked up for its whole row, those that it has given up included. The map
    has 0 for them, and page 0 enters the window pool's free list."""

    def retract(self, *call: Any) -> Any:
        if self.manager.window_allocator is None:
            return super().retract(*call)
        with replaced(release, "dead_range", _nothing_is_dead):
            return super().retract(*call)


@enter("none known", "KV-10")
class a_trim_that_forgets_the_window(KvcoreEngine):
    """The tail that speculation reserved is given back to the full pool, and its window pages are not. They stay mapped
    to pages that nobody holds."""

    def release_overallocated(self, *call: Any) -> Any:
        with replaced(Freed, "add_window", _do_nothing):
            return super().release_overallocated(*call)


@enter("none known", "KV-10")
class an_eviction_that_forgets_the_window(KvcoreEngine):
    """Cached pages are evicted, and those that are live for the window take their window pages with them. The window
    pool drains by what the prefix cache gives up."""

    def evict(self, *call: Any) -> Any:
        with replaced(self.manager, "_free_window_of", _do_nothing):
            return super().evict(*call)


# Cursors: how far a request gives up its window.


@enter("none known", "KV-10")
class a_page_of_live_tokens_given_up(KvcoreEngine):
    """What is behind the window is cut in tokens and freed in pages, the page of the cut with the rest. The tokens on
    it that the next query looks back to have no window page any more."""

    def window_evict(self, *call: Any) -> Any:
        def with_the_page_of_the_cut(manager: KVCacheManager, given_up: Any) -> None:
            rows, end = given_up.rows, given_up.end
            more = manager.page_size if manager.window_allocator is not None else 0
            _give_up(manager, given_up._replace(end=end + more))
            manager.req_to_token_pool.records._move_cursor(rows, end)

        with replaced(window_eviction, "give_up", with_the_page_of_the_cut):
            return super().window_evict(*call)


@enter("vllm-project/vllm#47728", "KV-10")
class a_window_counted_from_the_reserve(KvcoreEngine):
    """What lies behind the window is counted from the tokens that a step has been promised. The draft is rejected, and
    the next query looks back to pages that are given up."""

    def window_evict(self, *call: Any) -> Any:
        records = self.manager.req_to_token_pool.records

        def optimistic(manager: KVCacheManager, rows: Any) -> Any:
            with replaced(records, "committed", records.allocated):
                return _behind_window(manager, rows)

        with replaced(window_eviction, "behind_window", optimistic):
            return super().window_evict(*call)


@enter("sgl-project/sglang#22470", "KV-10")
class a_window_given_up_to_the_end_of_the_key(KvcoreEngine):
    """A request gives up its window as far as its next query allows, whatever it will publish. Where a page is larger
    than the window nothing below the end of the key is live, and no request can hit it."""

    def window_evict(self, *call: Any) -> Any:
        def whatever_is_published(*call: Any, shares: bool, bigram: bool) -> Any:
            return next_cursor(*call, shares=False, bigram=bigram)

        with replaced(window_eviction, "next_cursor", whatever_is_published):
            return super().window_evict(*call)


@enter("sgl-project/sglang#34870", "KV-10")
class a_window_below_a_key_of_tokens(KvcoreEngine):
    """The live window is kept below the last whole page of tokens, although a key of bigrams is one shorter. At a page
    multiple it ends a page earlier, with a window that is not whole."""

    def window_evict(self, *call: Any) -> Any:
        def in_tokens(*call: Any, shares: bool, bigram: bool) -> Any:
            return next_cursor(*call, shares=shares, bigram=False)

        with replaced(window_eviction, "next_cursor", in_tokens):
            return super().window_evict(*call)


@enter("sgl-project/sglang#31486", "KV-8")
class a_pure_window_freed_twice(KvcoreEngine):
    """Every layer has the window, so that one pool gives up what lies behind it; a retract frees the row from its
    beginning. Whoever has the pages by then loses them."""

    def retract(self, *call: Any) -> Any:
        if self.manager.window_allocator is not None:
            return super().retract(*call)
        with replaced(release, "dead_range", _nothing_is_dead):
            return super().retract(*call)


@enter("sgl-project/sglang#31486", "KV-8", "KV-9")
class a_pure_window_published_over_its_gap(KvcoreEngine):
    """A finished request is published as far as it has committed, although the middle of it was given up. Later hits
    read pages that other requests write, and an eviction frees them once more."""

    def release(self, *call: Any) -> Any:
        def all_committed(manager: KVCacheManager, reqs: Any, rows: Any) -> Any:
            records, cache = manager.req_to_token_pool.records, manager.tree_cache
            lens = np.where(records.hole_hi[rows] > 0, records.hole_lo[rows], records.committed[rows]).tolist()
            return cache and [cache.key(req.token_ids, length) for req, length in zip(reqs, lens, strict=True)]

        if self.manager.window_allocator is not None:
            return super().release(*call)
        with replaced(release, "dead_range", _nothing_is_dead), replaced(release, "publishable", all_committed):
            return super().release(*call)


# Cached pages that are dead for the window.


@enter("sgl-project/sglang#27586", "KV-10")
class a_window_page_freed_as_it_moves_to_the_cache(KvcoreEngine):
    """A finished request brings a live window to a cached page whose own is gone, and the cached page is then cleared
    of what it had. What it has is the window page that it was just given."""

    def release(self, *call: Any) -> Any:
        def and_clear(cache: WindowedCache, row: int, key: Any, pages: Any, extra_key: Any, live_from: int) -> Any:
            path = RadixCache.peek(cache, key, extra_key).path
            found = torch.cat([cache._no_pages, *(node.pages[:count] for node, count in path)])
            was_dead = cache.window_map[found] == 0
            duplicates, cached, owners = _publish_live(cache, row, key, pages, extra_key, live_from)
            moved = found[was_dead & (cache.window_map[found] > 0)]
            return duplicates, cached, [*owners, (len(key), moved)]

        with replaced(WindowedCache, "publish_live", and_clear):
            return super().release(*call)


@enter("none known", "KV-5", "KV-6")
class a_hit_whose_window_is_dead(KvcoreEngine):
    """A prefill hits as far as its tokens are cached, whether the window below the hit is live or not. Its first query
    looks back to window pages that do not exist."""

    def extend(self, *call: Any) -> Any:
        with replaced(WindowedCache, "peek", RadixCache.peek):
            return super().extend(*call)
