"""A stack of free page ids in one tensor that never moves.

    free = FreeList(num_pages=8)
    pages = free.pop(3)          # a copy of ids[head:head + 3]
    free.push(pages)             # writes ids[head - 3:head]

The live part is ids[head:]; it grows to the left. Push and pop cost O(k) whatever the pool's size (KV-14),
and the head is a host integer, so nothing is ever read back from the device.
A sorted list keeps its live part ascending: what comes back is staged in the dead left part, ids[:staged], and sorted
in when the live part alone is short.
"""

from __future__ import annotations

import torch

from ..errors import DoubleFree


class FreeList:
    """Free page ids 1..num_pages, int64: num_pages - head live ones and `staged` others."""

    def __init__(self, num_pages: int, device: str = "cpu", need_sort: bool = False) -> None:
        self.num_pages, self.need_sort = num_pages, need_sort
        self.ids = torch.arange(1, num_pages + 1, dtype=torch.int64, device=device)
        self.head = self.staged = 0

    @property
    def count(self) -> int:
        """Free pages."""
        return self.num_pages - self.head + self.staged

    @property
    def live(self) -> torch.Tensor:
        """The free ids that are listed, next to be popped first: a view, overwritten by the next push."""
        return self.ids[self.head :]

    def pop(self, n: int) -> torch.Tensor:
        """Take `n` <= count pages. Returns a copy that the caller owns, int64[n]."""
        head = self.advance(n)
        return self.ids[head : head + n].clone()

    def advance(self, n: int) -> int:
        """Take `n` <= count pages whose ids a kernel reads at ids[head:head + n]; returns that head."""
        if n > self.num_pages - self.head:
            self._sort_in()
        head = self.head
        self.head = head + n
        return head

    def push(self, pages: torch.Tensor) -> None:
        """Give `pages` (int64[k]) back, first of them on top. More pages than are out is a DoubleFree (KV-8)."""
        out = self.head - self.staged
        if len(pages) > out:
            raise DoubleFree("KV-8", "pages", f"{len(pages)} pages come back, {out} are handed out")
        if self.need_sort:
            self.ids[self.staged : self.staged + len(pages)] = pages
            self.staged += len(pages)
        else:
            head = self.head - len(pages)
            self.ids[head : self.head] = pages
            self.head = head

    def clear(self) -> None:
        """All pages free again, in ascending order."""
        torch.arange(1, self.num_pages + 1, out=self.ids)
        self.head = self.staged = 0

    def _sort_in(self) -> None:
        """All free pages listed, in ascending order. The size is the host's, so a device does not wait for it."""
        free = torch.cat((self.ids[: self.staged], self.live)).sort().values
        self.head, self.staged = self.head - self.staged, 0
        self.ids[self.head :] = free
