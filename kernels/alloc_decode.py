"""Slots of a decode step: one token each; a request at a page edge takes a page.

    out_cache_loc = alloc_decode(seq_lens, last_loc, free_pages, page_size)       # seq_lens count the new token
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def starts_a_page(seq_lens: Int64, page_size: int) -> NDArray[np.bool_]:
    """Whether the token at position seq - 1 is the first of its page. True for all at page size 1 (`seq % 1 == 1`
    never is: public bug S-11)."""
    starts: NDArray[np.bool_] = ((seq_lens - 1) & (page_size - 1)) == 0
    return starts


def alloc_decode_reference(seq_lens: Int64, last_loc: Int64, free_pages: Int64, page_size: int) -> Int64:
    """The slot of position seq - 1 of each request, int64[bs].

    seq_lens: int64[bs], tokens after this step. last_loc: int64[bs], the slot of position seq - 2.
    free_pages: the free list from its head; one entry is read for each request that starts a page, in batch order.
    """
    takes = starts_a_page(seq_lens, page_size)
    out = last_loc + 1
    out[takes] = free_pages[: np.count_nonzero(takes)] * page_size
    return out
