"""The bookkeeping of all requests: one array a field, one column a row of `req_to_token`.

    req = Req("chat-17", token_ids)
    alloc_for_extend(manager, [req], [len(token_ids)])
    req.kv.kv_allocated_len          # reading works; assigning raises AttributeError

The record belongs to the pool and not to the request: only the paths that move pages can move it
(KV-4). What a request shows as `kv` is a read-only view for people; paths work on the arrays.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import BadArgument

if TYPE_CHECKING:
    from .req_to_token import ReqToTokenPool

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
"""A request's tokens: any sequence of integers, an array included."""

FIELDS = (
    "protected", "committed", "allocated", "cursor", "floor", "hole_lo", "hole_hi",
    "resident", "hosted", "buffered", "newest", "generation",
)  # fmt: skip
"""Rows of `Records.table`: all but the last zero while the row is free, in tokens but for `buffered`, which is pages;
`generation` counts up at every bind and every release and is never reset, so it is odd while the row is bound.
resident, hosted, buffered, newest: see `offload`."""


class Records:
    """Records of `max_requests` rows and the padding row 0, host int64. Public arrays are read-only views.

    `table` is int64[len(FIELDS), max_requests + 1]; row 0 stays zero, so a request without a row (row 0) reads as
    a request of length zero.
    """

    def __init__(self, max_requests: int) -> None:
        self._table = np.zeros((len(FIELDS), max_requests + 1), dtype=np.int64)
        self.table = self._table.view()
        self.table.flags.writeable = False
        self.protected, self.committed, self.allocated, self.cursor, self.floor = self.table[:5]
        self.hole_lo, self.hole_hi, self.resident, self.hosted, self.buffered, self.newest = self.table[5:11]
        self.generation = self.table[11]

    def _bind(self, rows: NDArray[np.int64]) -> None:
        self._table[-1, rows] += 1

    def _move(self, rows: NDArray[np.int64], committed: Any, allocated: Any) -> None:
        """What every path ends with: the new committed and allocated lengths of `rows`, in tokens."""
        self._table[1, rows] = committed
        self._table[2, rows] = allocated

    def _protect(self, rows: NDArray[np.int64], protected: Any) -> None:
        """[0, protected) of each row belongs to the prefix cache from now on."""
        self._table[0, rows] = protected

    def _open_hole(self, rows: NDArray[np.int64], low: Any, high: Any) -> None:
        """[low, high) of each row has no slots yet; (0, 0) closes it."""
        self._table[5, rows] = low
        self._table[6, rows] = high

    def _move_cursor(self, rows: NDArray[np.int64], cursor: Any) -> None:
        """Before the cursor the window of each row is given back."""
        self._table[3, rows] = cursor

    def _set_floor(self, rows: NDArray[np.int64], floor: int) -> None:
        """The window of [0, floor) of each row is never given back."""
        self._table[4, rows] = floor

    def _move_resident(self, rows: NDArray[np.int64], resident: Any) -> None:
        """[0, resident) of each row has device pages of its own, by the map."""
        self._table[7, rows] = resident

    def _move_hosted(self, rows: NDArray[np.int64], hosted: Any) -> None:
        """[0, hosted) of each row has host slots."""
        self._table[8, rows] = hosted

    def _move_buffer(self, rows: NDArray[np.int64], pages: Any, newest: Any) -> None:
        """The device buffer of each row has so many pages, and position newest - 1 lies in its reserved slot."""
        self._table[9, rows] = pages
        self._table[10, rows] = newest

    def _clear(self, rows: NDArray[np.int64]) -> None:
        self._table[:-1, rows] = 0
        self._table[-1, rows] += 1


class Req:
    """What the core needs of a request: an id, its tokens so far (any int sequence), and its record `kv`.

    extra_key: what else its KV depends on (a LoRA, a salt), hashable and read-only; prefixes are shared only under an
    equal one. The caller owns `token_ids` and may append to it or replace it; the core only reads it.
    """

    __slots__ = ("_extra_key", "_pool", "_row", "rid", "token_ids")

    def __init__(self, rid: Any, token_ids: TokenIds, extra_key: Hashable = None) -> None:
        self.rid = rid
        self.token_ids = token_ids
        try:
            hash(extra_key)
        except TypeError:
            raise BadArgument("KV-15", "extra_key", f"is {extra_key!r}; it has to be hashable") from None
        self._extra_key = extra_key
        self._pool: ReqToTokenPool | None = None
        self._row = 0

    @property
    def extra_key(self) -> Hashable:
        """What its prefixes are shared under; another one is another request."""
        return self._extra_key

    @property
    def kv(self) -> ReqKvInfo:
        """A live, read-only view of the request's record."""
        return ReqKvInfo(self)

    def __repr__(self) -> str:
        return f"Req({self.rid!r}, {len(self.token_ids)} tokens, row {self._row or None})"


class ReqKvInfo:
    """Read-only view of a request's record, in tokens. Without a row, `req_pool_idx` is None and the rest zero."""

    __slots__ = ("_req",)
    _req: Req

    def __init__(self, req: Req) -> None:
        object.__setattr__(self, "_req", req)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} is read-only: the record moves only inside an allocation path (KV-4)")

    def _read(self, field: int) -> int:
        req = self._req
        return 0 if req._pool is None else int(req._pool.records.table[field, req._row])

    @property
    def req_pool_idx(self) -> int | None:
        """The request's row, or None."""
        return self._req._row or None

    @property
    def holds_kv(self) -> bool:
        """Whether the request has a row."""
        return self._req._row != 0

    @property
    def cache_protected_len(self) -> int:
        """[0, here) belongs to the prefix cache; page aligned."""
        return self._read(0)

    @property
    def kv_committed_len(self) -> int:
        """Tokens whose KV content is settled."""
        return self._read(1)

    @property
    def kv_allocated_len(self) -> int:
        """Tokens that have a slot."""
        return self._read(2)

    @property
    def swa_evicted_seqlen(self) -> int:
        """Window slots before here are given back; page aligned."""
        return self._read(3)

    def __repr__(self) -> str:
        return (
            f"ReqKvInfo(req_pool_idx={self.req_pool_idx}, cache_protected_len={self.cache_protected_len}, "
            f"kv_committed_len={self.kv_committed_len}, kv_allocated_len={self.kv_allocated_len}, "
            f"swa_evicted_seqlen={self.swa_evicted_seqlen})"
        )
