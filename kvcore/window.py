"""Sliding-window attention: layers that look back `size` tokens keep their KV in a pool of their own.

    KVCacheConfig(..., window=Window(size=4096, num_pages=512))

Every page of the full pool that a path takes gets a page of the window pool, and a map on the device says which. What
a request has left behind its window goes back to that pool while the request goes on: its cursor says up to where.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import BadArgument

Int64 = NDArray[np.int64]

KINDS = ("pool", "pure", "ring")


@dataclass(frozen=True)
class Window:
    """How a window is kept; frozen, validated on construction.

    size: tokens that a query looks back.
    num_pages: pages of the window pool, without its padding page 0; only for kind "pool".
    kind: "pool", a second pool with a map from full pages; "pure", every layer has the window, so that the one pool
        itself gives up what lies behind it; "ring", a fixed ring of slots for each row, which is never short and needs
        neither pool nor map (see `ring_slots`).
    interval: tokens that have to have left the window before anything is given up: fewer, larger frees.
    floor: the first tokens of a request, which are never given up (attention sinks).
    """

    size: int
    num_pages: int = 0
    kind: str = "pool"
    interval: int = 0
    floor: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadArgument("KV-15", "kind", f"is {self.kind!r}; known are {', '.join(map(repr, KINDS))}")
        least = {"size": 1, "num_pages": int(self.kind == "pool"), "interval": 0, "floor": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise BadArgument("KV-15", name, f"is {value!r}; it has to be an integer of at least {low}")
        if self.kind != "pool" and self.num_pages:
            raise BadArgument("KV-15", "num_pages", f"is {self.num_pages}; only a window of kind 'pool' has pages")


def next_cursor(
    window: Window, page_size: int, committed: Int64, dead_lo: Int64, cursor: Int64, *, shares: bool, bigram: bool
) -> tuple[Int64, Int64]:
    """From where to where each row gives up its window: [from, to), tokens, page aligned; from == to for nothing.

    Counted from committed tokens, never from those that a running step has only been promised. Where prefixes are
    shared (`shares`) a whole live window has to remain below the end of the key that the request will publish, which
    with bigrams is one token shorter; and a page, should it be larger than the window.
    """
    begin = np.maximum(cursor, dead_lo)
    if shares:
        most = max(window.size, page_size)
        target = ((committed - bigram) & -page_size) - ((most + page_size - 1) & -page_size)
    else:
        target = committed - window.size
    end = np.where(committed - window.size < begin + window.interval, begin, np.maximum(begin, target & -page_size))
    return begin, end


def ring_slots(window: Window, rows: Int64, positions: Int64) -> Int64:
    """Where the window layers of kind "ring" keep positions of rows: a ring of `size` slots for each row."""
    slots: Int64 = rows * window.size + positions % window.size
    return slots
