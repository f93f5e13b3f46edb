"""Marks in every slot: what was written there, and by whom. Aliasing shows as wrong data, not only in the books.

stamps = Stamps(num_pages, page_size, table_shape, {"window": 12})
stamps.write(held, row, start, slots, {"window": {1: 3}})
stamps.check(state)             # Broken if someone else has written into a live slot since
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..snapshots import Snapshot
from .texts import Text
from .verdicts import Broken, Held

_MIX = 0x2545F4914F6CDD1D
_OWNER = 0x1B873593CC9E2D51


def content_of(prefix: Any, position: Any) -> Any:
    """The content stamp: a hash of what is said up to `position`, int64, from the number that `texts` knows the prefix
    by; tells every pair apart below 2**31."""
    return (position + (np.int64(prefix) << 32)) * np.int64(_MIX)


def _owner_mark(number: Any) -> Any:
    return np.asarray(number, dtype=np.int64) * np.int64(_OWNER)


def contents(text: Text, start: int, end: int) -> NDArray[np.int64]:
    """The content stamps of positions [start, end) of a text."""
    stamps: NDArray[np.int64] = content_of(text.prefixes_at(start, end), np.arange(start, end))
    return stamps


class Stamps:
    """The pretended KV buffer, on the host: a content and an owner stamp in each slot, and which are expected where.

    The owner is the request whose page it is, 0 for what belongs to the prefix cache. `mark` is both in one number, so
    that a check reads once. `second` are the buffers of the window and of the device pool, as far as there are such:
    content stamps, written and read through the map of that name.
    """

    def __init__(self, num_pages: int, page_size: int, table_shape: tuple[int, ...], second: dict[str, int]) -> None:
        # Slot 0 stays zero: positions that mean nothing are read there and expect zero.
        self.content = np.zeros((num_pages + 1, page_size), dtype=np.int64)
        self.owner, self.mark = (np.zeros((num_pages + 1) * page_size, dtype=np.int64) for _ in range(2))
        self.second = {name: np.zeros((count + 1, page_size), dtype=np.int64) for name, count in second.items()}
        self.expected = np.zeros(table_shape, dtype=np.int64)
        self.live = np.zeros(table_shape, dtype=np.int32)
        self.page_size = page_size

    def write(self, held: Held, row: int, start: int, slots: NDArray[Any], maps: dict[str, dict[int, int]]) -> None:
        """Stamp the positions from `start` on through their slots, and through the maps. A page begins empty."""
        end, size = start + len(slots), self.page_size
        content = contents(held.text, start, end)
        pages = slots[-start % size :: size] // size
        self.content[pages] = 0
        self.content.reshape(-1)[slots] = content
        self.owner[slots] = held.number
        self.mark[slots] = self.expected[row, start:end] = content + _owner_mark([held.number])
        self.live[row, start:end] = 1
        for name, buffer in self.second.items():
            mapped = maps[name]
            buffer[[mapped.get(page, 0) for page in pages.tolist()]] = 0
            there = np.array([mapped.get(page, 0) for page in (slots // size).tolist()], dtype=np.int64)
            buffer.reshape(-1)[there * size + slots % size] = content
            buffer[0] = 0

    def share(self, held: Held, row: int, start: int, end: int) -> None:
        """[start, end) of the row lies on pages of the prefix cache, where somebody has written it."""
        self.expected[row, start:end] = contents(held.text, start, end)
        self.live[row, start:end] = 1

    def publish(self, slots: NDArray[Any]) -> None:
        """These slots belong to the prefix cache from now on."""
        self.mark[slots] -= _owner_mark(self.owner[slots])
        self.owner[slots] = 0

    def forget(self, row: int, start: int, end: int | None = None) -> None:
        """Positions from `start` on of a row, or up to `end`, mean nothing any more."""
        self.expected[row, start:end] = 0
        self.live[row, start:end] = 0

    def check(self, state: Snapshot) -> None:
        """Read every live position back through the table, content and owner; and what is mapped through the map."""
        found = self.mark[state.slots * self.live]
        if (found != self.expected).any():
            row, position = (int(i[0]) for i in np.nonzero(found != self.expected))
            slot = int(state.slots[row, position])
            writer = int(self.owner[slot])
            wrote = f"request {writer} wrote" if writer else "another request wrote for the prefix cache"
            where = f"request {state.bound.get(row)}, position {position}"
            raise Broken("KV-1", f"{where}: slot {slot} holds what {wrote}", rows=(row,))
        for name, buffer in self.second.items():
            mapped, target = state.maps[name]
            wrong = (self.content[mapped] != buffer[target]).any(axis=1)
            if wrong.any():
                page = int(mapped[wrong.argmax()])
                message = f"the {name} page {int(target[wrong.argmax()])} of page {page} holds what another one wrote"
                raise Broken("KV-10", message, pages=(page,))
