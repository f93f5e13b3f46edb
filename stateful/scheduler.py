"""A small continuous-batching scheduler: what an engine would ask its KV cache for, one operation at a time.

    scheduler = Scheduler(trace, runner, chunk=8192, seed=0)
    scheduler.serve()
    scheduler.served.retractions

Admission is first come first served by what fits in every pool (`admission`); prompts are computed in chunks that share
a budget with the running decodes; what a draft is accepted of is drawn from the seed; and when room is short, the
request with the least to lose is retracted and resumes later. With a prefix cache a prompt begins behind what is cached
of it; each chunk of one that goes on is published, and so is what finishes. It only proposes: the runner says what has
to succeed, and checks that it did.
Arrival times are not waited for: the pool is under test, and a queue that never empties keeps it full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from .. import sizing
from .admission import Request, Room, cached_of
from .ledger import Ledger
from .operations import (
    Checkpoint,
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
from .runner import Runner
from .texts import Prompt
from .trace import BLOCK, Trace, TraceRequest
from .verdicts import Outcome, Refused
from .window_prefixes import WindowPrefixes


@dataclass
class Served:
    """What was done. prompt_tokens, output_tokens: of the requests released, each token with a slot whose stamp was
    read back; what a resume computes again counts in recomputed_tokens alone. hit_tokens: found in the prefix cache
    when a request began; rehit_tokens: when it resumed. evicted_pages: taken out of the cache for others. Of a window
    pool, window_given_up: pages that requests left behind their windows; window_evicted: taken from cached pages that
    stay. short_of: how often each pool was too short for an operation. With HiSparse, backups: retractions that left
    one; backup_resumes: those that went on from it; dropped_backups: given up for others."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    recomputed_tokens: int = 0
    hit_tokens: int = 0
    rehit_tokens: int = 0
    evicted_pages: int = 0
    window_given_up: int = 0
    window_evicted: int = 0
    retractions: int = 0
    short_of: dict[str, int] = field(default_factory=dict)
    peak_pages: int = 0
    peak_window_pages: int = 0
    backups: int = 0
    backup_resumes: int = 0
    dropped_backups: int = 0
    peak_device_pages: int = 0
    peak_host_pages: int = 0


class Scheduler:
    """Proposes operations until every request of the trace is released; `done` are those it has proposed."""

    def __init__(self, trace: Trace, runner: Runner, *, chunk: int, seed: int) -> None:
        self.runner, self.chunk, self.random = runner, chunk, Random(seed)
        self.ledger: Ledger = runner.ledger
        self.waiting = deque(
            Request(number, request.prompt_len, request.output_len, prompt_of(request))
            for number, request in enumerate(trace.requests, start=1)
        )
        self.prefilling: list[Request] = []  # the first come first, those without a row last
        self.decoding: list[Request] = []
        self.drafted, self.reserve = 0, 1  # tokens that a step drafts, and that it needs slots for
        config = runner.config
        if config.speculation is not None:
            self.drafted = sizing.tokens_per_step(config.speculation, config.page_size)
            self.reserve = sizing.reserve_per_step(config.speculation, config.page_size)
        self.batch: tuple[int, ...] = ()  # the members of the last decode step, while its batch object is good
        self.room_was_made = True
        self.done: list[Operation] = []
        self.served = Served()

    def serve(self, progress: Callable[[int], None] = lambda finished: None) -> None:
        """Step by step: admit, prefill, decode, release what is finished."""
        while self.waiting or self.prefilling or self.decoding:
            if self.room_was_made:
                self._admit()
            self._prefill()
            if self.drafted:
                self._decode_last_tokens()
                self._decode_speculatively()
            else:
                self._settle_decoded(self._perform(self._unfinished, lambda ones: Decode(*self._batch(ones))))
            progress(self._release_finished())

    def _admit(self) -> None:
        """Who comes first, as long as it fits beside those that run; if nobody runs, it does: alone everyone fits."""
        self.room_was_made = False
        room = Room(self.ledger, self.reserve, self.chunk)
        for one in (*self.prefilling, *self.decoding):
            room.promise(one)
        most = self.runner.config.max_requests
        while self.waiting and len(self.prefilling) + len(self.decoding) < most:
            if not self._fits(room, self.waiting[0]) and (self.prefilling or self.decoding):
                return
            self.prefilling.append(self.waiting.popleft())

    def _fits(self, room: Room, one: Request) -> bool:
        """Whether the first that waits does."""
        return room.promise(one)

    def _prefill(self) -> None:
        """The next chunk, and its publication where the prompt goes on: others need not wait for its end."""
        if not self.prefilling:
            return
        ones = self._perform(lambda: self.prefilling, self._extend)
        for one in ones:
            held = self.ledger.get(one.number)
            if held.protected and not one.computed:
                if one.lost:
                    self.served.rehit_tokens += held.protected
                else:
                    self.served.hit_tokens += held.protected
        self._settle(ones)
        self._computed([one for one in ones if one.computed == one.known])
        if ones and self.ledger.cache.on:
            for one in [one for one in self.prefilling if one.computed]:
                self._step(Checkpoint(one.number))

    def _computed(self, ones: list[Request]) -> None:
        """Those whose tokens all have KV now decode."""
        self.decoding += ones
        self.prefilling = [one for one in self.prefilling if one.computed < one.known]

    def _extend(self, ones: list[Request]) -> Extend:
        """The prompts' next tokens, `chunk` together, the first come first."""
        budget, seq_lens, prompts = self.chunk, {}, []
        for one in ones:
            if budget > 0:
                begin = one.computed or len(cached_of(self.ledger, one)) * self.runner.config.page_size
                least = 2 if begin > one.computed else 1  # with one token only behind it, its last page is not hit
                seq_lens[one.number] = min(one.known, begin + max(budget, least))
                budget -= seq_lens[one.number] - begin
                prompts.append(() if one.computed or one.lost else one.prompt)
        return Extend(tuple(seq_lens), tuple(seq_lens.values()), prompts=tuple(prompts) if any(prompts) else ())

    def _decode_last_tokens(self) -> None:
        """A request with one token left has no use for a draft: its tail is given back and it decodes plainly."""

        def last() -> list[Request]:
            return [one for one in self.decoding if one.generated + 1 == one.output_len]

        if not last():
            return
        for one in last():
            held = self.ledger.live[one.number]
            if held.committed < held.allocated:
                self._step(ReleaseOverallocated(one.number))
        self._settle_decoded(self._perform(last, lambda ones: Decode(_numbers(ones))))

    def _decode_speculatively(self) -> None:
        """Commit what was accepted: one token at least, as every step yields one, and the draft and the bonus token at
        most; an output that ends earlier stops inside the draft. First, room for the draft, unless all have it."""

        def reserve(ones: list[Request]) -> SpecReserve:
            requests, kept = self._batch(ones)
            return SpecReserve(requests, self.reserve, kept)

        ones, live = self._unfinished(), self.ledger.live
        if any(live[one.number].allocated < one.known + self.reserve for one in ones):
            ones = self._perform(self._unfinished, reserve)
        if ones:
            requests, kept = self._batch(ones)
            accepted = [min(1 + int(self.random.random() * (self.drafted + 1)), one.left) for one in ones]
            self._step(Commit(requests, tuple(accepted), kept))
            self._settle_decoded(ones)

    def _unfinished(self) -> list[Request]:
        return [one for one in self.decoding if one.generated < one.output_len]

    def _batch(self, ones: list[Request]) -> tuple[tuple[int, ...], bool]:
        """Their numbers, and whether the batch object of the last decode step still serves."""
        requests = _numbers(ones)
        kept = requests == self.batch
        if not kept:
            self.batch = requests
        return self.batch, kept

    def _perform(
        self, members: Callable[[], list[Request]], operation: Callable[[list[Request]], Operation]
    ) -> list[Request]:
        """The operation on its members; each time that it is refused for lack of room, one request is retracted and
        those that are left try again. Returns with whom it succeeded."""
        while ones := members():
            outcome = self._step(operation(ones))
            if not isinstance(outcome, Refused):
                return ones
            self._make_room(outcome.error.pool)
        return []

    def _settle(self, ones: list[Request]) -> None:
        """Enter the lengths that an operation has left."""
        for one in ones:
            held = self.ledger.get(one.number)
            begin, one.computed = one.computed or held.protected, held.committed
            self.served.recomputed_tokens += max(min(one.computed, one.lost) - begin, 0)
            one.generated = max(one.generated, one.computed - one.prompt_len)

    def _settle_decoded(self, ones: list[Request]) -> None:
        self._settle(ones)
        self._decoded(ones)

    def _decoded(self, ones: list[Request]) -> None:
        """What comes behind a decode step: nothing, in one pool."""

    def _make_room(self, pool: str) -> None:
        """In SGLang's order: the shortest output first, of equals the longest prompt; it goes to the head of the queue.
        Those that were only promised room go back too; all but the first, if that leaves nobody else: alone it fits."""
        self._take_promises_back()
        victim = min((*self.prefilling, *self.decoding), key=lambda one: (one.generated, -one.prompt_len))
        if not victim.computed:
            return
        self._step(self._retraction(victim, pool))
        (self.prefilling if victim in self.prefilling else self.decoding).remove(victim)
        self.waiting.appendleft(victim)
        self.served.retractions += 1
        victim.lost = max(victim.lost, victim.computed)
        victim.computed = 0
        self.batch = ()  # its row may be bound anew before these members meet again
        self.room_was_made = True

    def _take_promises_back(self) -> bool:
        """Whether there were any."""
        before = len(self.prefilling)
        while self.prefilling and not self.prefilling[-1].computed and len(self.prefilling) + len(self.decoding) > 1:
            self.waiting.appendleft(self.prefilling.pop())
            self.room_was_made = True
        return len(self.prefilling) < before

    def _retraction(self, victim: Request, pool: str) -> Retract:
        return Retract((victim.number,))

    def _release_finished(self) -> int:
        """How many there were."""
        finished = [one for one in self.decoding if one.generated == one.output_len]
        if finished:
            lengths = [self.ledger.live[one.number].committed for one in finished]
            self._step(Release(_numbers(finished), self.ledger.cache.on))
            self.decoding = self._unfinished()
            self.room_was_made = True
            self.served.requests += len(finished)
            for one, length in zip(finished, lengths, strict=True):
                self.served.prompt_tokens += min(length, one.prompt_len)
                self.served.output_tokens += max(length - one.prompt_len, 0)
        return len(finished)

    def _step(self, operation: Operation) -> Outcome:
        self.done.append(operation)
        outcome = self.runner.step(operation)
        if isinstance(outcome, Refused) and outcome.how != "shortage":
            raise AssertionError(f"the scheduler proposed what cannot be right: {operation}") from outcome.error
        served, ledger = self.served, self.ledger
        served.evicted_pages = ledger.cache.evicted
        served.peak_pages = max(served.peak_pages, ledger.config.num_pages - ledger.pages.free)
        if isinstance(outcome, Refused):
            served.short_of[outcome.error.pool] = served.short_of.get(outcome.error.pool, 0) + 1
        elif ledger.pools.window is not None:
            self._count_window(operation, ledger.pools.window)
        return outcome

    def _count_window(self, operation: Operation, window: PageLedger) -> None:
        served, ledger = self.served, self.ledger
        served.peak_window_pages = max(served.peak_window_pages, window.num_pages - window.free)
        if isinstance(operation, (Extend, Decode, SpecReserve)):
            served.window_given_up += ledger.gave // ledger.config.page_size
        if isinstance(ledger.cache, WindowPrefixes):
            served.window_evicted = ledger.cache.window_evicted


def _numbers(ones: list[Request]) -> tuple[int, ...]:
    return tuple([one.number for one in ones])


def prompt_of(request: TraceRequest) -> Prompt:
    """Who wrote the prompt: a writer of its own for each hash id, so that equal ids are equal tokens. Nothing where the
    trace has none: then the request says its own."""
    return tuple(
        [
            (min(end * BLOCK, request.prompt_len), -(block + 1))
            for end, block in enumerate(request.hash_ids or (), start=1)
        ]
    )
