"""Marks in every slot: what was written there, and by whom. Aliasing shows as wrong data, not only in the books.

stamps = Stamps(num_slots, table_shape)
stamps.write(held, row, start, slots)
stamps.check(req_to_token, bound)             # Broken if someone else has written into a live slot since
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..snapshots import Snapshot
from .texts import Text
from .verdicts import Broken, Held

_MIX = 0x2545F4914F6CDD1D


def content_of(prefix: Any, position: Any) -> Any:
    """The content stamp: a hash of what is said up to `position`, int64, from the number that `texts` knows the prefix
    by; tells every pair apart below 2**31."""
    return (position + (np.int64(prefix) << 32)) * np.int64(_MIX)


def contents(text: Text, start: int, end: int) -> NDArray[np.int64]:
    """The content stamps of positions [start, end) of a text."""
    stamps: NDArray[np.int64] = content_of(text.prefixes_at(start, end), np.arange(start, end))
    return stamps


class Stamps:
    """The pretended KV buffer, on the host: a content and an owner stamp in each slot, and which are expected where.

    The owner is the request whose page it is, 0 for what belongs to the prefix cache.
    """

    def __init__(self, num_slots: int, table_shape: tuple[int, ...]) -> None:
        # Slot 0 stays zero: positions that mean nothing are read there and expect zero.
        self.written = np.zeros((num_slots, 2), dtype=np.int64)
        self.expected = np.zeros((*table_shape, 2), dtype=np.int64)
        self.live = np.zeros(table_shape, dtype=np.int32)

    def write(self, held: Held, row: int, start: int, slots: NDArray[Any]) -> None:
        """Stamp the positions from `start` on through their slots."""
        position = slice(start, start + len(slots))
        stamp = self.expected[row, position]
        stamp[:, 0] = contents(held.text, position.start, position.stop)
        stamp[:, 1] = held.number
        self.live[row, position] = 1
        self.written[slots] = stamp

    def share(self, held: Held, row: int, start: int, end: int) -> None:
        """[start, end) of the row lies on pages of the prefix cache, where somebody has written it."""
        stamp = self.expected[row, start:end]
        stamp[:, 0] = contents(held.text, start, end)
        stamp[:, 1] = 0
        self.live[row, start:end] = 1

    def publish(self, slots: NDArray[Any]) -> None:
        """These slots belong to the prefix cache from now on."""
        self.written[slots, 1] = 0

    def forget(self, row: int, start: int, end: int | None = None) -> None:
        """Positions from `start` on of a row, or up to `end`, mean nothing any more."""
        self.expected[row, start:end] = 0
        self.live[row, start:end] = 0

    def check(self, req_to_token: NDArray[np.int32], bound: dict[int, Any]) -> None:
        """Read every live position back through the table: content over [0, allocated), owner likewise."""
        found = self.written[req_to_token * self.live]
        if found.tobytes() != self.expected.tobytes():
            wrong = found != self.expected
            row, position = (int(i[0]) for i in np.nonzero(wrong.any(axis=2)))
            slot = int(req_to_token[row, position])
            writer = int(self.written[slot, 1])
            wrote = f"request {writer} wrote" if writer else "another request wrote for the prefix cache"
            raise Broken(
                "KV-1", f"request {bound.get(row)}, position {position}: slot {slot} holds what {wrote}", rows=(row,)
            )


class WindowStamps:
    """The pretended buffer of the window layers: content stamps, written and read through rows and map."""

    def __init__(self, num_slots: int, page_size: int) -> None:
        self.written = np.zeros(num_slots, dtype=np.int64)
        self.page_size = page_size

    def write(self, content: NDArray[np.int64], slots: NDArray[Any], pairs: NDArray[np.int64]) -> None:
        """Stamp the window slots of these slots."""
        self.written[self._through(slots.astype(np.int64), pairs)] = content

    def check(self, stamps: Stamps, state: Snapshot) -> None:
        """Every live position that has a window page holds in it what is expected in its slot."""
        slots = state.slots.astype(np.int64) * stamps.live
        window_slots = self._through(slots, state.maps["window"])
        wrong = (window_slots >= self.page_size) & (self.written[window_slots] != stamps.expected[:, :, 0])
        if wrong.any():
            row, position = (int(i[0]) for i in np.nonzero(wrong))
            slot = int(window_slots[row, position])
            what = (
                f"request {state.bound.get(row)}, position {position}: window slot {slot} holds what another one wrote"
            )
            raise Broken("KV-10", what, rows=(row,))

    def _through(self, slots: NDArray[np.int64], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The window slot of each slot; one of the padding page where there is none."""
        size, (mapped, target) = self.page_size, pairs
        pages = slots // size
        table = np.zeros(max(int(pages.max(initial=0)), int(mapped.max(initial=0))) + 1, dtype=np.int64)
        table[mapped] = target
        window_slots: NDArray[np.int64] = table[pages] * size + slots % size
        return window_slots
