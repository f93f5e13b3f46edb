"""Slots of an extend: finish each request's partial page, then whole new pages, then a partial last one.

    out_cache_loc = alloc_extend(prefix_lens, seq_lens, last_loc, free_pages, page_size)

Slots are request-major. Request i takes ceil(seq / page_size) - ceil(prefix / page_size) pages, and they are the
next ones of the free list behind those of requests 0..i-1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def new_pages(prefix_lens: Int64, seq_lens: Int64, page_size: int) -> Int64:
    """Pages that each request takes, int64[bs]."""
    shift = page_size.bit_length() - 1
    pages: Int64 = ((seq_lens + (page_size - 1)) >> shift) - ((prefix_lens + (page_size - 1)) >> shift)
    return pages


def token_positions(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Owner (index in the batch) and position of every token of [start, end), request-major, int64[sum]."""
    lens = end - start
    if len(lens) == 1:
        position = np.arange(start[0], end[0])
        return np.zeros(len(position), dtype=np.int64), position
    owner = np.repeat(np.arange(len(lens)), lens)
    position = np.arange(len(owner)) + (start - (np.cumsum(lens) - lens))[owner]
    return owner, position


def alloc_extend_reference(
    prefix_lens: Int64, seq_lens: Int64, last_loc: Int64, free_pages: Int64, page_size: int
) -> Int64:
    """Slots for positions [prefix, seq) of each request, int64[sum(seq - prefix)].

    prefix_lens, seq_lens: int64[bs], tokens. last_loc: int64[bs], the slot of position prefix - 1 (unused where prefix
    is a page multiple). free_pages: the free list from its head; exactly sum(new_pages) entries are read.
    """
    shift = page_size.bit_length() - 1
    taken = new_pages(prefix_lens, seq_lens, page_size)
    first = np.cumsum(taken) - taken
    owner, position = token_positions(prefix_lens, seq_lens)
    # The free-list entry of a token: the request's first one, plus the pages between its first new page and the token.
    first_new_page = (prefix_lens + (page_size - 1)) >> shift
    entry = (position >> shift) + (first - first_new_page)[owner]
    on_old_page = position < (first_new_page << shift)[owner]
    if not on_old_page.any():
        return (free_pages[entry] << shift) + (position & (page_size - 1))
    out = (last_loc + 1 - prefix_lens)[owner] + position
    on_new_page = ~on_old_page
    out[on_new_page] = (free_pages[entry[on_new_page]] << shift) + (position[on_new_page] & (page_size - 1))
    return out
