"""The ledger of the slot level: what a slot allocator has handed out, and what it may be asked.

    verdict = ledger.expected(AllocExtend(requests=(1,), seq_lens=(9,)))

A request here is a number under which slots are held: their slots by position. What a bad call names in raw slots is
judged by value only where the allocator checks values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import BadArgument, DoubleFree, ForeignSlot
from .configuration import Configuration
from .operations import (
    Alloc,
    AllocDecode,
    AllocExtend,
    BadCall,
    Clear,
    Free,
    FreeGroupBegin,
    FreeGroupEnd,
    FreeSegment,
    Operation,
    RawCall,
)
from .pages import PageLedger
from .verdicts import Bad, Growth, Held, Legal, Short, Verdict


class SlotLedger:
    """Numbers that hold slots; `live` are those that hold any, oldest first."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.pages = PageLedger(config.num_pages, config.page_size)
        self.live: dict[int, Held] = {}
        self.free_rows, self.near_the_limit = 1, sys.maxsize  # there are no rows to run out of
        self.highest = 0  # the highest number that any request has had

    def get(self, number: int) -> Held:
        """What a number holds; nothing is also known."""
        return self.live.get(number) or Held(number)

    def expected(self, operation: Operation) -> Verdict:
        """Legal, Short or Bad."""
        match operation:
            case BadCall(call=call):
                return self.expected(call)
            case Alloc(request=number, tokens=tokens):
                if tokens < 0 or tokens % self.config.page_size:
                    return Bad(BadArgument, "need_size")
                start = self.get(number).allocated
                return self._room_for((Growth(number, start, start + tokens, start + tokens),))
            case AllocExtend(requests=requests, seq_lens=seq_lens):
                if len(seq_lens) != len(requests) or any(seq < 0 for seq in seq_lens):
                    return Bad(BadArgument, "seq_lens")
                members = [self.get(number) for number in requests]
                if any(seq < held.allocated for held, seq in zip(members, seq_lens, strict=True)):
                    return Bad(BadArgument, "seq_lens")
                grown = zip(members, seq_lens, strict=True)
                return self._room_for(tuple(Growth(h.number, h.allocated, seq, seq) for h, seq in grown))
            case AllocDecode(requests=requests):
                members = [self.get(number) for number in requests]
                return self._room_for(
                    tuple(Growth(h.number, h.allocated, h.allocated + 1, h.allocated + 1) for h in members)
                )
            case FreeSegment(request=number, start=start):
                aligned = start >= 0 and start % self.config.page_size == 0
                return Legal() if aligned else Bad(BadArgument, "start_pos")
            case Free() | Clear():
                return Legal()
            case FreeGroupBegin():
                return Bad(BadArgument, "free_group", "KV-11") if self.pages.group_open else Legal()
            case FreeGroupEnd():
                return Legal() if self.pages.group_open else Bad(BadArgument, "free_group", "KV-11")
            case RawCall(method="free", arguments=(slots, *_)):
                return self._free(slots)
            case RawCall(method="alloc_extend", arguments=(prefix_lens, seq_lens, last_loc)):
                return self._raw_extend(prefix_lens, seq_lens, last_loc)
        raise TypeError(f"the slot level has no operation {operation.name}")

    def apply(self, operation: Operation, verdict: Legal, out: NDArray[np.int64]) -> None:
        """Enter a call that succeeded and returned `out`, request-major."""
        match operation:
            case Free(requests=requests):
                for number in requests:
                    self._forget(number, keep=0)
            case FreeSegment(request=number, start=start):
                self._forget(number, keep=start // self.config.page_size)
            case Clear():
                for number in list(self.live):
                    self._forget(number, keep=0)
                self.pages.unheld |= self.pages.queued
                self.pages.queued.clear()
            case FreeGroupBegin():
                self.pages.group_open = True
            case FreeGroupEnd():
                self.pages.close_group()
        at = 0
        for growth in verdict.growth:
            held = self.live.setdefault(growth.request, Held(growth.request, bound=True))
            self.highest = max(self.highest, growth.request)
            count = growth.end - growth.start
            self.pages.grow(held, growth.start, growth.end, out[at : at + count])
            held.committed = held.allocated = growth.end
            at += count
            if not held.pages:
                del self.live[growth.request]

    def slots_of(self, number: int, start: int = 0) -> list[int]:
        """The slots that a number holds, by position, from `start` on."""
        held, size = self.get(number), self.config.page_size
        return [held.pages[j // size] * size + j % size for j in range(start, held.allocated)]

    def last_loc(self, number: int) -> int:
        """The slot of the last position, -1 if there is none."""
        held, size = self.get(number), self.config.page_size
        last = held.allocated - 1
        return held.pages[-1] * size + last % size if held.allocated else -1

    def _forget(self, number: int, keep: int) -> None:
        held = self.live.get(number)
        if held is None:
            return
        self.pages.give_back(held.pages[keep:])
        del held.pages[keep:]
        held.committed = held.allocated = min(held.allocated, keep * self.config.page_size)
        if not held.pages:
            del self.live[number]

    def _room_for(self, growth: tuple[Growth, ...]) -> Verdict:
        pages = sum(self.pages.needed(g.start, g.end) for g in growth)
        if pages > self.pages.free:
            return Short("full", pages, self.pages.free)
        return Legal(growth, pages, returns=sum(g.end - g.start for g in growth))

    def _free(self, slots: Sequence[int]) -> Verdict:
        """A set of slots has to name every handed-out slot of each page it touches, once."""
        size = self.config.page_size
        pages = [slot // size for slot in slots]
        if 0 in pages:
            return Bad(ForeignSlot, "slots", "KV-2")
        if any(not 0 < page <= self.config.num_pages for page in pages):
            return Bad(ForeignSlot, "slots")
        if any(page not in self.pages.owner for page in pages):
            return Bad(DoubleFree, "slots", "KV-8")
        handed_out = {slot for number in self.live for slot in self.slots_of(number)}
        if not handed_out.issuperset(slots):
            return Bad(ForeignSlot, "slots")
        touched = {slot for slot in handed_out if slot // size in pages}
        return Legal() if sorted(slots) == sorted(touched) else Bad(BadArgument, "slots")

    def _raw_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Verdict:
        if len(seq_lens) != len(prefix_lens):
            return Bad(BadArgument, "seq_lens")
        if len(last_loc) != len(prefix_lens):
            return Bad(BadArgument, "last_loc")
        if any(seq < prefix for prefix, seq in zip(prefix_lens, seq_lens, strict=True)):
            return Bad(BadArgument, "seq_lens")
        return Bad(BadArgument, "last_loc")
