"""What a caller asks of the prefix cache itself; hits happen inside the paths that bind rows.

    peek_prefix(manager, req)                      # tokens that an extend would hit now
    checkpoint_kv_cache(manager, req)              # publish what a chunk of a prefill has computed
    evict_from_tree_cache(manager, num_tokens)     # make room before it is needed

Without a prefix cache (prefix_cache="none") there is nothing to hit, to publish or to evict, and they do nothing.
"""

from __future__ import annotations

import numpy as np

from . import arguments
from .errors import BadArgument
from .freeing import Freed, gather_pages
from .manager import KVCacheManager, bound_rows, rows_of
from .records import Req
from .release import publish, publishable
from .sizing import pages_for


def peek_prefix(manager: KVCacheManager, req: Req) -> int:
    """Tokens that an extend to all of the request's tokens would hit now: a page multiple, 0 if it holds a row.

    No effect at all: no node is split, no recency moves. Raises BadArgument, StaleRow.
    """
    (member,) = arguments.requests("req", [req], Req)
    cache = manager.tree_cache
    if rows_of(manager, [member])[0] or cache is None:
        return 0
    return cache.peek(cache.key(member.token_ids, len(member.token_ids) - 1), member.extra_key).pages * cache.page_size


def checkpoint_kv_cache(manager: KVCacheManager, req: Req) -> None:
    """Publish the whole pages of what a request has committed, so that others can hit them while it goes on.

    What the cache had already is exchanged: the row holds the cache's pages, and the request's own are freed.
    Raises BadArgument (an open hole), StaleRow.
    """
    (member,) = arguments.requests("req", [req], Req)
    rows, records = bound_rows(manager, [member]), manager.req_to_token_pool.records
    if records.hole_hi[rows].any():
        raise BadArgument("KV-15", "req", "has an open hole: fill_hole first")
    keys, cache, size = publishable(manager, [member], rows), manager.tree_cache, manager.page_size
    protected = records.protected[rows]
    if cache is None or keys is None or len(keys[0]) * size <= protected[0]:
        return
    (key,) = keys
    pages, freed = gather_pages(manager, rows, protected, np.array([len(key) * size])), Freed(manager)
    cached = publish(manager, member, key, pages, freed)
    if len(cached):
        exchanged = protected + len(cached) * size
        table = manager.req_to_token_pool.req_to_token
        manager.kernels.write_pages(table, rows, protected, exchanged, cached, size)
    freed.give_back()
    records._protect(rows, len(key) * size)


def evict_from_tree_cache(manager: KVCacheManager, num_tokens: int) -> int:
    """Evict pages for `num_tokens` tokens, or all that nobody holds if those are fewer. Returns the tokens freed."""
    pages = pages_for(arguments.integer("num_tokens", num_tokens, 0), manager.page_size)
    cache = manager.tree_cache
    if cache is None:
        return 0
    pages = min(pages, cache.evictable_pages)
    manager.evict(pages)
    return pages * manager.page_size
