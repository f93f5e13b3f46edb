"""What a prefix is known by: its tokens in whole pages, one row a page.

    key = page_key(req.token_ids, length=40, page_size=16, bigram=False)      # int32[2, 16]

Under EAGLE the draft model's KV at a position depends on the next token too, so an element is a pair of neighbours
(a bigram) and a key is one token shorter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadArgument
from ..records import TokenIds

Key = NDArray[Any]
"""int32[pages, page_size] of tokens, or int64[pages, page_size] of bigrams."""


def page_key(token_ids: TokenIds, length: int, page_size: int, bigram: bool) -> Key:
    """The key of the first `length` tokens (fewer if there are fewer), as whole pages. Raises BadArgument."""
    tokens = _tokens(token_ids, max(length, 0))
    elements: NDArray[Any] = tokens
    if bigram:
        pair = tokens.astype(np.int64)
        elements = pair[:-1] << 32 | (pair[1:] & 0xFFFFFFFF)
    pages = len(elements) // page_size
    return elements[: pages * page_size].reshape(pages, page_size)


def common_pages(a: Key, b: Key) -> int:
    """Pages that two keys have in common from their start."""
    most = min(len(a), len(b))
    differs = a[:most].reshape(-1) != b[:most].reshape(-1)
    first = int(differs.argmax()) if most else 0
    return first // a.shape[1] if most and differs[first] else most


def _tokens(token_ids: TokenIds, length: int) -> NDArray[np.int32]:
    try:
        found = np.asarray(token_ids[:length])
    except (TypeError, ValueError, OverflowError):
        raise BadArgument("KV-15", "token_ids", "is no sequence of integers") from None
    if found.ndim != 1 or (found.dtype.kind not in "iu" and len(found)):
        raise BadArgument("KV-15", "token_ids", f"holds {found.dtype}{list(found.shape)}; a key needs integers")
    if found.dtype == np.int32:
        return found
    if len(found) and not -(2**31) <= int(found.min()) <= int(found.max()) < 2**31:
        raise BadArgument("KV-15", "token_ids", "holds a token that does not fit 32 bits")
    return found.astype(np.int32)
