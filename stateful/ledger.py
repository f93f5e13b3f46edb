"""The ledger of the engine level: the independent model of what is legal, what must be refused, and who owns what.

    verdict = ledger.expected(operation)
    ledger.apply(operation, verdict, read_row)

It repeats no line of the core: plain Python integers, one request at a time. It accepts whatever pages the subject
chose and checks that they were free. It does not cover: which page was chosen (any policy may pass), and the bits of
state that no clause speaks about (the order of the free list, stale row entries).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import BadArgument, DoubleFree, RowOverflow, StaleRow
from .configuration import Configuration
from .operations import (
    BadCall,
    Checkpoint,
    Commit,
    Decode,
    Evict,
    Extend,
    FillHole,
    Operation,
    Prealloc,
    Release,
    ReleaseOverallocated,
    Retract,
    SpecReserve,
)
from .pages import PageLedger
from .prefixes import CachedPage, Prefixes
from .texts import Prompt, Text, Texts
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
    """Requests by number; `live` are those with a row, oldest binding first, `retracted` those that may resume, `told`
    the last texts and how far they went: what a new request may say again."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.pages = PageLedger(config.num_pages, config.page_size)
        self.cache = Prefixes(config)
        self.texts = Texts()
        self.live: dict[int, Held] = {}
        self.retracted: dict[int, Held] = {}
        self.told: deque[tuple[Text, int]] = deque(maxlen=12)
        self.highest = 0  # the highest number that any request has had
        self.last_gone = 0  # the request released last
        self.binds = 0
        self.batches: Recent[tuple[int, ...]] = Recent()  # requests -> which binding each of them had
        self.reserve = _largest_reserve(config)
        self.near_the_limit = config.context_len - max(self.reserve, 1)  # a row committed past it is nearly full
        self.row_width = config.context_len + (self.reserve + config.page_size - 1 if self.reserve else 0)
        # What the last operation has done besides lengthening: (request, start, end) whose row entries are the cache's
        # pages now, pages that are the cache's from now on, and how many it had already.
        self.shared_now: list[tuple[int, int, int]] = []
        self.published: list[int] = []
        self.duplicates = 0

    @property
    def free_rows(self) -> int:
        return self.config.max_requests - len(self.live)

    def get(self, number: int) -> Held:
        """What is known of a request; nothing yet is also known."""
        return self.live.get(number) or self.retracted.get(number) or Held(number)

    def text_of(self, number: int, prompt: Prompt = (), salt: int = 0) -> Text:
        """What a request says: the text it has, or for a new one its prompt and then its own."""
        held = self.live.get(number) or self.retracted.get(number)
        return held.text if held else self.texts.make(number, prompt, salt)

    def texts_of(self, operation: Extend) -> list[Text]:
        """The texts of an extend's requests, in their order."""
        prompts, salts = operation.prompts, operation.salts
        return [
            self.text_of(number, prompts[i] if i < len(prompts) else (), salts[i] if i < len(salts) else 0)
            for i, number in enumerate(operation.requests)
        ]

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
                return Legal(touched=(number,)) if self.get(number).bound else Bad(StaleRow, "reqs")
            case Release(requests=requests) | Retract(requests=requests):
                bad = self._bad_requests(requests)
                unbound = not all(self.get(number).bound for number in requests)
                return bad or (Bad(DoubleFree, "reqs", "KV-8") if unbound else Legal())
            case Prealloc():
                return self._prealloc(operation)
            case FillHole(request=number):
                held = self.get(number)
                if not held.bound:
                    return Bad(StaleRow, "reqs")
                low, high = held.hole
                growth = (Growth(number, low, high, held.committed),)
                return self._room_for(growth, returns=high - low) if high else Bad(BadArgument, "req")
            case Checkpoint(request=number):
                held = self.get(number)
                if not held.bound:
                    return Bad(StaleRow, "reqs")
                return Bad(BadArgument, "req") if held.hole[1] else Legal(touched=(number,))
            case Evict(tokens=tokens):
                return Legal() if tokens >= 0 else Bad(BadArgument, "num_tokens")
        raise TypeError(f"the engine level has no operation {operation.name}")

    def apply(self, operation: Operation, verdict: Legal, read_row: ReadRow) -> None:
        """Enter a call that succeeded. `read_row(request, start, end)` are the slots found in the subject's row."""
        self.shared_now.clear()
        self.published.clear()
        self.duplicates = 0
        self.cache.changed.clear()
        match operation:
            case BadCall(call=call):
                return self.apply(call, verdict, read_row)
            case Release(requests=requests) | Retract(requests=requests):
                for number in requests:
                    checkpoint = isinstance(operation, Release) and operation.checkpoint
                    self._unbind(number, checkpoint, retracted=isinstance(operation, Retract))
            case ReleaseOverallocated(request=number):
                held = self.live[number]
                self._free(held, keep=-(-held.committed // self.config.page_size))
                held.allocated = held.committed
                held.drafted = False
            case Checkpoint(request=number):
                self._publish(self.live[number])
            case Evict(tokens=tokens):
                self._evict(min(-(-tokens // self.config.page_size), self.cache.unlocked))
            case FillHole(request=number):
                self.live[number].hole = (0, 0)
        new = iter(verdict.hits)
        for growth in verdict.growth:
            if growth.request not in self.live:
                self._bind(growth, *next(new))
        if verdict.pages > self.pages.free:
            self._evict(verdict.pages - self.pages.free)
        for growth in verdict.growth:
            held = self.live[growth.request]
            self.pages.grow(held, growth.start, growth.end, read_row(growth.request, growth.start, growth.end))
            held.committed, held.allocated = growth.committed, max(held.allocated, growth.end)
            held.drafted = isinstance(operation, (SpecReserve, Commit))
        if isinstance(operation, (Extend, Decode, SpecReserve, Commit)):
            self.batches.remember(operation.requests, self.bindings(operation.requests))

    def bindings(self, requests: Sequence[int]) -> tuple[int, ...]:
        """Which binding each of them has now, -1 without a row: what a batch remembers, and is stale by."""
        return tuple(self.live[number].binding if number in self.live else -1 for number in requests)

    def _bind(self, growth: Growth, text: Text, path: list[CachedPage]) -> None:
        """A row for a new request, or for a retracted one, with what the cache holds of it; behind that a hole, if the
        call begins to lengthen it further on."""
        number = growth.request
        held = self.retracted.pop(number) if number in self.retracted else Held(number, text=text)
        self.live[number] = held
        self.binds += 1
        held.bound, held.retracted, held.binding = True, False, self.binds
        self.highest = max(self.highest, number)
        self.cache.claim(held, path)
        if path:
            self.shared_now.append((number, 0, held.protected))
        if growth.start > held.protected:
            held.hole = (held.protected, growth.start)
            held.pages += [0] * ((growth.start - held.protected) // self.config.page_size)

    def _unbind(self, number: int, checkpoint: bool, *, retracted: bool) -> None:
        held = self.live.pop(number)
        self.told.append((held.text, held.committed))
        if checkpoint and not held.hole[1]:
            self._publish(held)
        self._free(held, keep=max(held.protected, held.hole[1]) // self.config.page_size)
        self.cache.release(held)
        held.pages.clear()
        held.committed = held.allocated = 0
        held.hole = (0, 0)
        held.bound, held.retracted, held.drafted = False, retracted, False
        self.last_gone = number
        if retracted:
            self.retracted[number] = held

    def _free(self, held: Held, keep: int) -> None:
        self.pages.give_back(held.pages[keep:])
        del held.pages[keep:]

    def _publish(self, held: Held) -> None:
        begin = held.protected
        duplicates, new = self.cache.publish(held, held.committed)
        self.pages.give_back(duplicates)
        self.pages.publish(new)
        self.published += new
        self.duplicates += len(duplicates)
        if held.protected > begin:
            self.shared_now.append((held.number, begin, held.protected))

    def _evict(self, pages: int) -> None:
        self.pages.give_back(self.cache.evict(pages))

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
        if any(held.hole[1] or held.committed != held.allocated for held in members):
            return Bad(BadArgument, "reqs")
        for held, seq in zip(members, op.seq_lens, strict=True):
            if seq < held.allocated or (seq == 0 and not held.bound):
                return Bad(BadArgument, "seq_lens")
        if any(seq > tokens for seq, tokens in zip(op.seq_lens, op.tokens, strict=False)):
            return Bad(BadArgument, "seq_lens")
        if any(seq > self.config.context_len for seq in op.seq_lens):
            return Bad(RowOverflow, "seq_lens", "KV-4")
        growth, hits = [], []
        for held, seq, text in zip(members, op.seq_lens, self.texts_of(op), strict=True):
            start = held.allocated
            if not held.bound:
                path = self.cache.find(text, seq - 1)
                hits.append((text, path))
                start = len(path) * self.config.page_size
            growth.append(Growth(held.number, start, seq, seq))
        if len(hits) > self.free_rows:
            return Short("rows", len(hits), self.free_rows)
        return self._room_for(tuple(growth), returns=sum(g.end - g.start for g in growth), hits=tuple(hits))

    def _prealloc(self, op: Prealloc) -> Verdict:
        size, limit = self.config.page_size, self.config.context_len
        if self.get(op.request).bound:
            return Bad(StaleRow, "req")
        if op.fill_len < 1 or op.fill_len > (op.fill_len if op.tokens < 0 else op.tokens):
            return Bad(BadArgument, "fill_len")
        if op.fill_len > limit:
            return Bad(RowOverflow, "fill_len", "KV-4")
        text = self.text_of(op.request, op.prompt, op.salt)
        path = self.cache.find(text, op.fill_len - 1)
        hit = len(path) * size
        total = hit if op.total_prefix_len == -1 else op.total_prefix_len
        if not hit <= total <= op.fill_len or (total > hit and total % size):
            return Bad(BadArgument, "total_prefix_len")
        if not self.free_rows:
            return Short("rows", 1, 0)
        growth = Growth(op.request, total, op.fill_len, op.fill_len)
        return self._room_for((growth,), returns=op.fill_len - total, hits=((text, path),))

    def _decode(self, requests: Sequence[int]) -> Verdict:
        members = [self.live[number] for number in requests]
        if any(held.hole[1] or held.committed != held.allocated for held in members):
            return Bad(BadArgument, "batch")
        if any(held.allocated + 1 > self.config.context_len for held in members):
            return Bad(RowOverflow, "batch", "KV-4")
        growth = tuple(Growth(h.number, h.allocated, h.allocated + 1, h.allocated + 1) for h in members)
        return self._room_for(growth, returns=len(growth))

    def _spec_reserve(self, op: SpecReserve) -> Verdict:
        if any(self.live[number].hole[1] for number in op.requests):
            return Bad(BadArgument, "batch")
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

    def _room_for(
        self,
        growth: tuple[Growth, ...],
        *,
        returns: int | None,
        hits: tuple[tuple[Text, list[CachedPage]], ...] = (),
    ) -> Verdict:
        pages = sum(self.pages.needed(g.start, g.end) for g in growth)
        if pages > self.pages.free:
            reclaimable = self.cache.unlocked - self.cache.pinned(path for _, path in hits)
            if pages > self.pages.free + reclaimable:
                return Short("full", pages, self.pages.free, reclaimable)
        return Legal(growth, pages, returns, hits=hits)


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
