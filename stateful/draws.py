"""Small draws and what they stand for: a batch out of some candidates, a length counted from the edges.

    requests = members(candidates, who=3, many=7)
    seq_len = target(start=5, size=4, limit=32, room=3, much=1, bound=True)      # the next page edge

Smaller draws are simpler: a batch of one, one token more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .operations import FreeGroupBegin, FreeGroupEnd, Operation

DRAWS = 64
"""Each draw is 0..63: room for every batch size below and every length kind, and still few enough to shrink at once."""

SIZES = (
    1, 1, 2, 1, 3, 2, 1, 4, 2, 3, 5, 1, 8, 2, 4, 6, 1, 7, 3, 2, 17, 9, 1, 16, 10, 15, 11, 13, 12, 14, 2, 3,
    17, 1, 16, 2, 15, 1, 14, 3, 13, 1, 12, 2, 11, 1, 17, 4, 16, 1, 15, 2, 14, 1, 13, 5, 10, 1, 17, 2, 9, 3, 7, 1,
)  # fmt: skip
"""Batch sizes 1 to 17, small ones most often: bugs between members need two or three, scans need odd ones."""

Possible = dict[str, Callable[[Any], Any]]

Pick = dict[str, Callable[[Any, int, int, int], Operation]]


def members(candidates: Sequence[int], who: int, many: int) -> tuple[int, ...]:
    """A batch out of `candidates` (oldest first): starts at the `who`-th newest and goes on from there."""
    count = min(SIZES[many % len(SIZES)], len(candidates))
    last = len(candidates) - 1
    return tuple(candidates[last - (who + i) % len(candidates)] for i in range(count))


def new_number(ledger: Any) -> int:
    """A number that no request has had."""
    return int(ledger.highest) + 1


def target(start: int, size: int, limit: int, room: int, much: int, *, bound: bool) -> int:
    """A length to extend to from `start`: `much` picks the edge; clipped to `limit` tokens, mostly to `room` pages."""
    edge = -(-start // size) * size
    kind = much % 16
    want = (
        start + 1,
        max(edge, start + 1),
        edge + 1,
        start if bound else start + 1,
        edge + size,
        max(edge - 1, start + 1),
        edge + size + 1,
        start + 2,
        edge + 2 * size - 1,
        edge + 2 * size,
        edge + room * size,
        edge + room * size + 1,
        limit,
        limit - 1,
        start + 3 + much // 16 * size,
        edge + size - 1,
    )[kind]
    most = limit if kind == 11 else min(limit, edge + room * size)
    least = start if bound else start + 1
    return max(min(want, most), min(least, limit))


def free_group_begin(ledger: Any, who: int, many: int, much: int) -> Operation:
    return FreeGroupBegin()


def free_group_end(ledger: Any, who: int, many: int, much: int) -> Operation:
    return FreeGroupEnd()


def group_is_open(ledger: Any) -> bool:
    return bool(ledger.pages.group_open)


def kept(ledger: Any, requests: tuple[int, ...], draw: int) -> bool:
    return draw % 2 == 1 and ledger.batches.get(requests) == ledger.bindings(requests)
