"""Marks in every slot: what was written there, and by whom. Aliasing shows as wrong data, not only in the books.

stamps = Stamps(num_slots, table_shape)
stamps.write(request, row, start, slots)
stamps.check(req_to_token, bound)             # Broken if someone else has written into a live slot since
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .verdicts import Broken

_MIX = 0x2545F4914F6CDD1D


def content_of(request: int, position: Any) -> Any:
    """The content stamp: a hash of the request's tokens up to `position`, int64; tells every pair apart below 2**31."""
    return (position + (request << 32)) * np.int64(_MIX)


class Stamps:
    """The pretended KV buffer, on the host: a content and an owner stamp in each slot, and which are expected where."""

    def __init__(self, num_slots: int, table_shape: tuple[int, ...]) -> None:
        # Slot 0 stays zero: positions that mean nothing are read there and expect zero.
        self.written = np.zeros((num_slots, 2), dtype=np.int64)
        self.expected = np.zeros((*table_shape, 2), dtype=np.int64)
        self.live = np.zeros(table_shape, dtype=np.int32)

    def write(self, request: int, row: int, start: int, slots: NDArray[Any]) -> None:
        """Stamp the positions from `start` on through their slots."""
        position = slice(start, start + len(slots))
        stamp = self.expected[row, position]
        stamp[:, 0] = content_of(request, np.arange(position.start, position.stop))
        stamp[:, 1] = request
        self.live[row, position] = 1
        self.written[slots] = stamp

    def forget(self, row: int, start: int) -> None:
        """Positions from `start` on of a row mean nothing any more."""
        self.expected[row, start:] = 0
        self.live[row, start:] = 0

    def check(self, req_to_token: NDArray[np.int32], bound: dict[int, Any]) -> None:
        """Read every live position back through the table: content over [0, allocated), owner likewise."""
        found = self.written[req_to_token * self.live]
        if found.tobytes() != self.expected.tobytes():
            wrong = found != self.expected
            row, position = (int(i[0]) for i in np.nonzero(wrong.any(axis=2)))
            slot = int(req_to_token[row, position])
            writer = int(self.written[slot, 1])
            raise Broken(
                "KV-1",
                f"request {bound.get(row)}, position {position}: slot {slot} holds what request {writer} wrote",
                rows=(row,),
            )
