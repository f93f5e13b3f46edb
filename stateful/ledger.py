"""The ledger of the engine level: the independent model of what is legal, what must be refused, and who owns what.

    verdict = ledger.expected(operation)
    ledger.apply(operation, verdict, read_row)

It repeats no line of the core: plain Python integers, one request at a time. It accepts whatever pages the subject
chose and checks that they were free. It does not cover: which page was chosen (any policy may pass), and the bits of
state that no clause speaks about (the order of the free list, stale row entries).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import BadArgument, DoubleFree, RowOverflow, StaleRow
from .configuration import Configuration
from .operations import (
    BadCall,
    Commit,
    Decode,
    Extend,
    Operation,
    Release,
    ReleaseOverallocated,
    Retract,
    SpecReserve,
)
from .pages import PageLedger
from .verdicts import Bad, Growth, Held, Legal, Short, Verdict

Kept = TypeVar("Kept")
ReadRow = Callable[[int, int, int], NDArray[np.int64]]


class Recent(Generic[Kept]):
    """What is remembered of the last batches, by their requests. Ledger and subject forget by the same rule."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], Kept] = {}

    def remember(self, requests: Sequence[int], value: Kept) -> None:
        self.kept[tuple(requests)] = value
        if len(self.kept) > 64:
            del self.kept[next(iter(self.kept))]

    def get(self, requests: Sequence[int]) -> Kept | None:
        return self.kept.get(tuple(requests))


class Ledger:
    """Requests by number; `live` are those with a row, oldest binding first, `retracted` those that may resume."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.pages = PageLedger(config.num_pages, config.page_size)
        self.live: dict[int, Held] = {}
        self.retracted: dict[int, Held] = {}
        self.highest = 0  # the highest number that any request has had
        self.last_gone = 0  # the request released last
        self.binds = 0
        self.batches: Recent[tuple[int, ...]] = Recent()  # requests -> which binding each of them had
        self.reserve = _largest_reserve(config)
        self.near_the_limit = config.context_len - max(self.reserve, 1)  # a row committed past it is nearly full
        self.row_width = config.context_len + (self.reserve + config.page_size - 1 if self.reserve else 0)

    @property
    def free_rows(self) -> int:
        return self.config.max_requests - len(self.live)

    def get(self, number: int) -> Held:
        """What is known of a request; nothing yet is also known."""
        return self.live.get(number) or self.retracted.get(number) or Held(number)

    def expected(self, operation: Operation) -> Verdict:
        """Legal, Short or Bad, in the order in which a call is validated: arguments, states, rows, pages."""
        match operation:
            case BadCall(call=call):
                return self.expected(call)
            case Extend():
                return self._extend(operation)
            case Decode(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._decode(requests)
            case SpecReserve(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._spec_reserve(operation)
            case Commit(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._commit(operation)
            case ReleaseOverallocated(request=number):
                return Legal(trimmed=(number,)) if self.get(number).bound else Bad(StaleRow, "reqs")
            case Release(requests=requests) | Retract(requests=requests):
                bad = self._bad_requests(requests)
                unbound = not all(self.get(number).bound for number in requests)
                return bad or (Bad(DoubleFree, "reqs", "KV-8") if unbound else Legal())
        raise TypeError(f"the engine level has no operation {operation.name}")

    def apply(self, operation: Operation, verdict: Legal, read_row: ReadRow) -> None:
        """Enter a call that succeeded. `read_row(request, start, end)` are the slots found in the subject's row."""
        match operation:
            case BadCall(call=call):
                return self.apply(call, verdict, read_row)
            case Release(requests=requests) | Retract(requests=requests):
                for number in requests:
                    self._unbind(number, retracted=isinstance(operation, Retract))
            case ReleaseOverallocated(request=number):
                held = self.live[number]
                self.pages.give_back(held, keep=-(-held.committed // self.config.page_size))
                held.allocated = held.committed
                held.drafted = False
        for growth in verdict.growth:
            held = self._bind(growth.request)
            self.pages.grow(held, growth.start, growth.end, read_row(growth.request, growth.start, growth.end))
            held.committed, held.allocated = growth.committed, growth.end
            held.drafted = isinstance(operation, (SpecReserve, Commit))
        if isinstance(operation, (Extend, Decode, SpecReserve, Commit)):
            self.batches.remember(operation.requests, self.bindings(operation.requests))

    def bindings(self, requests: Sequence[int]) -> tuple[int, ...]:
        """Which binding each of them has now, -1 without a row: what a batch remembers, and is stale by."""
        return tuple(self.live[number].binding if number in self.live else -1 for number in requests)

    def _bind(self, number: int) -> Held:
        held = self.live.get(number)
        if held is None:
            held = self.retracted.pop(number) if number in self.retracted else Held(number)
            self.live[number] = held
            self.binds += 1
            held.bound, held.retracted, held.binding = True, False, self.binds
            self.highest = max(self.highest, number)
        return held

    def _unbind(self, number: int, *, retracted: bool) -> None:
        held = self.live.pop(number)
        self.pages.give_back(held, keep=0)
        held.committed = held.allocated = 0
        held.bound, held.retracted, held.drafted = False, retracted, False
        self.last_gone = number
        if retracted:
            self.retracted[number] = held

    def _bad_requests(self, requests: Sequence[int]) -> Bad | None:
        if not requests or len(set(requests)) != len(requests):
            return Bad(BadArgument, "reqs")
        return None

    def _bad_batch(self, requests: tuple[int, ...], kept: bool) -> Bad | None:
        if kept and (bindings := self.batches.get(requests)):
            return None if self.bindings(requests) == bindings else Bad(StaleRow, "batch")
        if bad := self._bad_requests(requests):
            return bad
        return None if all(self.get(number).bound for number in requests) else Bad(StaleRow, "reqs")

    def _extend(self, op: Extend) -> Verdict:
        members = [self.get(number) for number in op.requests]
        if bad := self._bad_requests(op.requests):
            return bad
        if len(op.seq_lens) != len(members) or any(seq < 0 for seq in op.seq_lens):
            return Bad(BadArgument, "seq_lens")
        if any(held.committed != held.allocated for held in members):
            return Bad(BadArgument, "reqs")
        for held, seq in zip(members, op.seq_lens, strict=True):
            if seq < held.allocated or (seq == 0 and not held.bound):
                return Bad(BadArgument, "seq_lens")
        if any(seq > tokens for seq, tokens in zip(op.seq_lens, op.tokens, strict=False)):
            return Bad(BadArgument, "seq_lens")
        if any(seq > self.config.context_len for seq in op.seq_lens):
            return Bad(RowOverflow, "seq_lens", "KV-4")
        growth = tuple(Growth(h.number, h.allocated, seq, seq) for h, seq in zip(members, op.seq_lens, strict=True))
        new_rows = sum(not held.bound for held in members)
        if new_rows > self.free_rows:
            return Short("rows", new_rows, self.free_rows)
        return self._room_for(growth, returns=sum(g.end - g.start for g in growth))

    def _decode(self, requests: Sequence[int]) -> Verdict:
        members = [self.live[number] for number in requests]
        if any(held.committed != held.allocated for held in members):
            return Bad(BadArgument, "batch")
        if any(held.allocated + 1 > self.config.context_len for held in members):
            return Bad(RowOverflow, "batch", "KV-4")
        growth = tuple(Growth(h.number, h.allocated, h.allocated + 1, h.allocated + 1) for h in members)
        return self._room_for(growth, returns=len(growth))

    def _spec_reserve(self, op: SpecReserve) -> Verdict:
        if not self.reserve or not 1 <= op.reserve <= self.reserve:
            return Bad(BadArgument, "reserve")
        size = self.config.page_size
        growth = []
        for held in (self.live[number] for number in op.requests):
            pages = -(-(held.committed + op.reserve) // size)
            growth.append(Growth(held.number, held.allocated, max(held.allocated, pages * size), held.committed))
        return self._room_for(tuple(growth), returns=None)

    def _commit(self, op: Commit) -> Verdict:
        members = [self.live[number] for number in op.requests]
        if len(op.accepted) != len(members) or any(n < 0 for n in op.accepted):
            return Bad(BadArgument, "accepted")
        settled = [held.committed + n for held, n in zip(members, op.accepted, strict=True)]
        if any(to > held.allocated for held, to in zip(members, settled, strict=True)):
            return Bad(BadArgument, "accepted")
        if any(to > self.config.context_len for to in settled):
            return Bad(RowOverflow, "accepted", "KV-4")
        return Legal(
            tuple(Growth(h.number, h.allocated, h.allocated, to) for h, to in zip(members, settled, strict=True))
        )

    def _room_for(self, growth: tuple[Growth, ...], *, returns: int | None) -> Verdict:
        pages = sum(self.pages.needed(g.start, g.end) for g in growth)
        if pages > self.pages.free:
            return Short("full", pages, self.pages.free)
        return Legal(growth, pages, returns)


def _largest_reserve(config: Configuration) -> int:
    """R, from the sizing rule as allocation.md words it: twice the slots that one step drafts."""
    spec = config.speculation
    if spec is None:
        return 0
    if spec.algorithm == "dflash":
        return 2 * spec.draft_tokens
    branch = spec.steps
    if config.page_size > 1 and spec.topk > 1:
        # Each branch may begin on the last offset of a page and ends on a page edge.
        branch = (config.page_size - 1 + spec.steps + config.page_size - 1) // config.page_size * config.page_size
    return 2 * max(branch * spec.topk, spec.draft_tokens)
