"""The ledger of the slot level: what a slot allocator has handed out, and what it may be asked.

    verdict = ledger.expected(AllocExtend(requests=(1,), seq_lens=(9,)))

A request here is a number under which slots are held: their slots by position, and where there is a second pool the
page there that belongs to each of its pages. What a bad call names in raw slots is judged by value only where the
allocator checks values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import BadArgument, DoubleFree, ForeignSlot
from ..snapshots import Snapshot
from .configuration import Configuration
from .operations import (
    SLOT_OPERATIONS,
    Alloc,
    AllocDecode,
    AllocDeviceBuffer,
    AllocDraft,
    AllocExtend,
    AllocExtendTail,
    AllocLogicalOnly,
    BadCall,
    Clear,
    Free,
    FreeGroupBegin,
    FreeGroupEnd,
    FreeSegment,
    FreeWindow,
    Operation,
    RawCall,
)
from .pages import PageLedger
from .slot_pools import SecondPool
from .verdicts import Bad, Growth, Held, Legal, Short, Verdict


class SlotLedger:
    """Numbers that hold slots; `live` are those that hold any, oldest first. `offered`: the operations of the subject.
    `second`: the pool beside the first one, if there is one."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.pages = PageLedger(config.num_pages, config.page_size)
        self.second = SecondPool.of(config)
        self.live: dict[int, Held] = {}
        self.free_rows, self.near_the_limit = 1, sys.maxsize  # there are no rows to run out of
        self.highest = 0  # the highest number that any request has had
        self.offered = frozenset(operation.name for operation in (*SLOT_OPERATIONS, BadCall))
        self.cleared_in_group = False  # whether that has closed the group is the allocator's own affair

    @property
    def pools(self) -> dict[str, PageLedger]:
        """By name, in the order of the subject's `available()`."""
        if self.second is None:
            return {"full": self.pages}
        return dict(zip(self.second.names, (self.pages, self.second.pages), strict=True))

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
                return self._extend(requests, seq_lens, resident=True)
            case AllocDraft(requests=requests, seq_lens=seq_lens):
                if self._is_hisparse or self.pages.group_open:
                    return Bad(BadArgument, "requests")
                verdict = self._extend(requests, seq_lens, resident=True)
                return verdict._replace(growth=(), touched=requests) if isinstance(verdict, Legal) else verdict
            case AllocLogicalOnly(requests=requests, seq_lens=seq_lens):
                return self._extend(requests, seq_lens, resident=False)
            case AllocExtendTail(request=number, seq_len=seq, tail=tail):
                if self.second is None or number in self.live or seq < 0:
                    return Bad(BadArgument, "seq_lens")
                if not 0 <= tail <= seq or (tail and (seq - tail) % self.config.page_size):
                    return Bad(BadArgument, "tail")
                behind = seq - tail if tail else sys.maxsize
                return self._room_for((Growth(number, 0, seq, seq),), window_from=behind)
            case AllocDecode(requests=requests):
                members = [self.get(number) for number in requests]
                if not all(held.buffer if self._is_hisparse else self.goes_on(held) for held in members):
                    return Bad(BadArgument, "last_loc")
                grown = tuple(Growth(h.number, h.allocated, h.allocated + 1, h.allocated + 1) for h in members)
                return self._room_for(grown, window_from=sys.maxsize if self._is_hisparse else 0)
            case AllocDeviceBuffer(request=number, tokens=tokens):
                return self._device_buffer(number, tokens)
            case FreeWindow(request=number, end=end):
                held = self.get(number)
                fits = self.second is not None and 0 <= end <= held.allocated and end % self.config.page_size == 0
                return Legal(touched=(number,)) if fits else Bad(BadArgument, "slots")
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

    def apply(self, operation: Operation, verdict: Legal, out: NDArray[np.int64], state: Snapshot) -> None:
        """Enter a call that succeeded, returned `out`, request-major, and left this state."""
        second = self.second
        match operation:
            case Free(requests=requests):
                for number in requests:
                    self._forget(number, keep=0)
            case FreeSegment(request=number, start=start):
                self._forget(number, keep=start // self.config.page_size)
            case Clear():
                self.cleared_in_group = self.pages.group_open
                for number in list(self.live):
                    self._forget(number, keep=0)
                for pool in self.pools.values():
                    pool.unheld |= pool.queued
                    pool.queued.clear()
            case FreeGroupBegin():
                for pool in self.pools.values():
                    pool.group_open = True
            case FreeGroupEnd():
                self.cleared_in_group = False
                for pool in self.pools.values():
                    pool.close_group()
            case FreeWindow(request=number, end=end) if second is not None:
                second.give_up(self.live.get(number), end // self.config.page_size)
            case AllocDeviceBuffer(request=number) if second is not None:
                second.buffer(self.live[number], out)
                return
            case AllocDraft(requests=requests, seq_lens=seq_lens):
                self._draft(requests, seq_lens, out)
        at = 0
        for growth in verdict.growth:
            held = self.live.setdefault(growth.request, Held(growth.request, bound=True))
            self.highest = max(self.highest, growth.request)
            count = growth.end - growth.start
            self.pages.grow(held, growth.start, growth.end, out[at : at + count])
            if second is not None:
                second.grow(held, growth.start, growth.end, verdict.window_from or 0, state)
            held.committed = held.allocated = growth.end
            at += count
            if not held.pages:
                del self.live[growth.request]

    def slots_of(self, number: int, start: int = 0, end: int | None = None) -> list[int]:
        """The slots that a number holds, by position, of [start, end)."""
        held, size = self.get(number), self.config.page_size
        stop = held.allocated if end is None else min(end, held.allocated)
        return [held.pages[j // size] * size + j % size for j in range(start, stop)]

    def goes_on(self, held: Held) -> bool:
        """Whether what continues a request's last page continues it in every pool."""
        mid_page = held.allocated % self.config.page_size != 0
        return self.second is None or self._is_hisparse or not mid_page or held.peers[-1] > 0

    def has_given_up(self, operation: Operation) -> bool:
        """Whether an operation frees pages that have none in the window pool any more."""
        match operation:
            case Free(requests=requests):
                held, first = [self.get(number) for number in requests], 0
            case FreeSegment(request=number, start=start):
                held, first = [self.get(number)], max(start, 0) // self.config.page_size
            case _:
                return False
        return self.config.window is not None and any(0 in one.peers[first:] for one in held)

    def buffer_slots(self, number: int) -> list[int]:
        """The device slots of a number's buffer."""
        size = self.config.page_size
        return [page * size + offset for page in self.get(number).buffer for offset in range(size)]

    def last_loc(self, number: int) -> int:
        """The slot of the last position, -1 if there is none."""
        held, size = self.get(number), self.config.page_size
        last = held.allocated - 1
        return held.pages[-1] * size + last % size if held.allocated else -1

    @property
    def _is_hisparse(self) -> bool:
        return self.config.hisparse is not None

    def _extend(self, requests: Sequence[int], seq_lens: Sequence[int], *, resident: bool) -> Verdict:
        if len(seq_lens) != len(requests) or any(seq < 0 for seq in seq_lens):
            return Bad(BadArgument, "seq_lens")
        members = [self.get(number) for number in requests]
        if any(seq < held.allocated for held, seq in zip(members, seq_lens, strict=True)):
            return Bad(BadArgument, "seq_lens")
        growth = tuple(Growth(h.number, h.allocated, n, n) for h, n in zip(members, seq_lens, strict=True))
        if not self._is_hisparse:
            return self._room_for(growth) if all(map(self.goes_on, members)) else Bad(BadArgument, "last_loc")
        # A page is resident as a whole: what continues one has to continue it on the device as well, or on neither.
        fits = [not h.buffer and all(h.peers) if resident else not any(h.peers) for h in members]
        if not all(fits):
            return Bad(BadArgument, "last_loc")
        return self._room_for(growth, window_from=0 if resident else sys.maxsize)

    def _draft(self, requests: Sequence[int], seq_lens: Sequence[int], out: NDArray[np.int64]) -> None:
        """The slots of a draft: as good as those of an extend, and nobody's afterwards."""
        at, drafted = 0, []
        for number, seq in zip(requests, seq_lens, strict=True):
            held = self.get(number)
            longer = replace(held, pages=list(held.pages))
            count = seq - held.allocated
            self.pages.grow(longer, held.allocated, seq, out[at : at + count])
            drafted += longer.pages[len(held.pages) :]
            at += count
        self.pages.give_back(drafted)

    def _device_buffer(self, number: int, tokens: int) -> Verdict:
        held, size = self.get(number), self.config.page_size
        if self.second is None or not held.pages or held.buffer:
            return Bad(BadArgument, "slots")
        if tokens < 0 or tokens % size:
            return Bad(BadArgument, "need_size")
        need = max(tokens // size - sum(page > 0 for page in held.peers), 0)
        if need > self.second.pages.free:
            return Short(self.second.names[1], need, self.second.pages.free)
        return Legal(touched=(number,), returns=tokens, window_pages=need)

    def _forget(self, number: int, keep: int) -> None:
        held = self.live.get(number)
        if held is None:
            return
        if self.second is not None:
            self.second.forget(held, keep)
        self.pages.give_back(held.pages[keep:])
        del held.pages[keep:]
        held.committed = held.allocated = min(held.allocated, keep * self.config.page_size)
        if not held.pages:
            del self.live[number]

    def _room_for(self, growth: tuple[Growth, ...], window_from: int = 0) -> Verdict:
        """window_from: the position from which on new pages have one in the second pool, too."""
        pages = sum(self.pages.needed(g.start, g.end) for g in growth)
        second, beside = self.second, 0
        if second is not None:
            beside = sum(self.pages.needed(max(g.start, window_from), max(g.end, window_from)) for g in growth)
        first = "full" if second is None else second.names[0]
        if pages > self.pages.free:
            return Short(first, pages, self.pages.free)
        if second is not None and beside > second.pages.free:
            return Short(second.names[1], beside, second.pages.free)
        returns = sum(g.end - g.start for g in growth)
        return Legal(growth, pages, returns=returns, window_pages=beside, window_from=window_from)

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
