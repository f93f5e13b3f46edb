"""One operation at a time, on a subject and on the ledger, with every clause checked after it.

    runner = Runner(config, factory)
    for operation in operations:
        runner.step(operation)          # raises Broken
    runner.finish()

The ledger says beforehand what has to happen. Whoever drives the runner (Hypothesis, the soak, a replay, a workload)
adds nothing to what is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkers import FullChecker
from .configuration import Configuration
from .ledger import Ledger
from .operations import (
    BadCall,
    BindNewest,
    Checkpoint,
    Commit,
    Decode,
    DeviceBuffer,
    DropBackup,
    Evict,
    Extend,
    FillHole,
    FreeGroupBegin,
    FreeGroupEnd,
    LateResult,
    Lease,
    Operation,
    Prealloc,
    PreallocHisparse,
    Release,
    ReleaseOverallocated,
    Retire,
    Retract,
    SpecReserve,
    SwapOut,
    WindowEvict,
)
from .reach import Reach
from .refusals import name_of, outcome_of, refused_in_its_own_way, situation_of
from .slot_calls import call_slots
from .slot_checker import SlotChecker
from .slot_ledger import SlotLedger
from .subjects import UnusableSubject, capabilities_of, in_words
from .subjects.offers import offer_of, require_what_is_needed
from .touched import TouchedChecker
from .verdicts import Bad, Broken, Crashed, Done, Legal, Outcome, Refused, Short, Verdict

_GIVES = {"release_overallocated": "KV-8", "evict": "KV-9", "window_evict": "KV-10"}
"""Operations that return what they gave up, and the clause that a wrong number breaks."""


class WrongLevel(ValueError):
    """The subject is of the other level: this one is not asked."""


def _made(factory: Callable[[Configuration], Any], config: Configuration) -> Any:
    """The subject. That a configuration that it says it can be made with does not make one is a failure."""
    try:
        return factory(config)
    except UnusableSubject:
        raise
    except Exception as error:
        broken = Broken("KV-5", f"making the subject ended in {in_words(error)}")
        broken.operation, broken.situation = "making the subject", f"page size {config.page_size}"
        raise broken from error


class Runner:
    """A subject made from `factory(config)`, its ledger and its checker. `reach` counts what was exercised."""

    def __init__(
        self,
        config: Configuration,
        factory: Callable[[Configuration], Any],
        reach: Reach | None = None,
        checker: type[Any] | None = None,
    ) -> None:
        self.config = config
        self.subject = _made(factory, config)
        if capabilities_of(self.subject).level != config.level:
            raise WrongLevel(f"the subject does not offer the {config.level} level")
        self.reach = Reach() if reach is None else reach
        self._foreseen: tuple[Operation | None, Verdict] = None, Legal()  # what `situation` was asked of last
        slots = config.level == "slots"
        self.ledger: Any = SlotLedger(config) if slots else Ledger(config)
        usual: type[Any] = SlotChecker if slots else TouchedChecker if config.is_large else FullChecker
        # What a lockstep subject checks in every call by itself.
        self.always = [c for c in ("KV-12", "KV-14") if c in self.subject.capabilities.asked]
        offer = offer_of(self.subject)
        require_what_is_needed(self.subject, offer)
        self.ledger.offered = offer.operations
        self.reach.offered |= offer.operations
        self.reach.lacking.update(offer.missing)
        self.reach.unfit.update(offer.wrong)
        self.checker: Any = (checker or usual)(self.subject, self.ledger, self.reach.checks)
        self._perform = self._call_slots if slots else self._call_engine

    def situation(self, operation: Operation) -> str:
        """What would be expected of the operation now, in words."""
        verdict = self.ledger.expected(operation)
        self._foreseen = operation, verdict
        return situation_of(operation, verdict, self.ledger)

    def step(self, operation: Operation) -> Outcome:
        """Perform one operation; Broken if the subject does anything but what the ledger expects."""
        foreseen, verdict = self._foreseen
        if foreseen is not operation:
            verdict = self.ledger.expected(operation)
        self._foreseen = None, verdict
        situation = situation_of(operation, verdict, self.ledger)
        try:
            return self._step(operation, verdict)
        except Broken as broken:
            self.reach.checks[broken.clause] += 1
            broken.operation, broken.situation = name_of(operation), situation
            broken.refusal = f"{verdict}" if isinstance(verdict, Bad) else ""
            broken.asked = broken.clause in self.subject.capabilities.asked
            raise

    def _step(self, operation: Operation, verdict: Verdict) -> Outcome:
        if isinstance(verdict, Legal) and verdict.hits and self.ledger.cache.on:
            self._peek(operation, verdict)
        self.checker.before(operation, verdict)
        self.reach.about_to(operation, verdict, self.ledger)
        call = operation.call if isinstance(operation, BadCall) else operation
        outcome = outcome_of(lambda: self._perform(call), call, self.subject.capabilities)
        if isinstance(verdict, Legal) and isinstance(outcome, Done):
            self._enter(operation, verdict, outcome)
        elif self.subject.capabilities.refuses == "typed":
            self._refused(operation, verdict, outcome)
        else:
            refused_in_its_own_way(operation, verdict, outcome, lambda: self.checker.unchanged(operation))
            self.reach.checks["KV-15" if isinstance(verdict, Bad) else "KV-6"] += 1
        for clause in self.always:
            self.reach.checks[clause] += 1
        self.reach.count(operation, verdict, self.ledger)
        return outcome

    def _peek(self, operation: Operation, verdict: Legal) -> None:
        """What a new request would hit, asked before it does; that asking has no effect shows in the state after it."""
        size = self.config.page_size
        new = [growth for growth in verdict.growth if not self.ledger.get(growth.request).bound]
        for growth, (text, path) in zip(new[:1], verdict.hits, strict=False):
            found = self.subject.peek(growth.request, text.tokens(growth.end), text.salt)
            if found != len(path) * size:
                raise Broken("KV-9", f"{operation.name} would hit {found} tokens, should be {len(path) * size}")

    def finish(self) -> None:
        """The last recount."""
        try:
            self.checker.at_end()
        except Broken as broken:
            broken.operation = "the last recount"
            broken.asked = broken.clause in self.subject.capabilities.asked
            raise

    def _enter(self, operation: Operation, verdict: Legal, outcome: Done) -> None:
        """The call had to succeed and did."""
        checks, out = self.reach.checks, outcome.value
        checks["KV-6"] += 1
        if verdict.returns is not None and len(out) != verdict.returns:
            raise Broken("KV-5", f"{operation.name} returned {len(out)} slots, {verdict.returns} were asked for")
        self.checker.observe()
        if self.config.level == "slots":
            self.ledger.apply(operation, verdict, out, self.checker.state)
        else:
            if verdict.returns is not None:
                rows = np.concatenate([self.checker.read_row(g.request, g.start, g.end) for g in verdict.growth])
                if not np.array_equal(out, rows):
                    raise Broken("KV-3", f"{operation.name} returned {out.tolist()}, the rows hold {rows.tolist()}")
            self.ledger.apply(operation, verdict, self.checker)
            if clause := _GIVES.get(operation.name):
                # That so many came back in truth is the checker's business: it compares what is free with the ledger.
                if out != self.ledger.gave:
                    raise Broken(clause, f"{operation.name} says it gave {out} slots back, it is {self.ledger.gave}")
            elif self.ledger.returned is not None:
                if out.tolist() != self.ledger.returned:
                    raise Broken("KV-5", f"{operation.name} returned {out.tolist()}, should be {self.ledger.returned}")
            elif isinstance(operation, LateResult):
                settled = {growth.request for growth in verdict.growth}
                right = [number in settled for number in self.ledger.pools.leases[operation.lease].requests]
                if out != right:
                    raise Broken("KV-16", f"{operation.name} settled {out}, should be {right}")
        self.checker.after(operation, verdict)

    def _refused(self, operation: Operation, verdict: Verdict, outcome: Outcome) -> None:
        """The call was refused, or should have been."""
        name = operation.name
        match verdict, outcome:
            case _, Crashed(error):
                clause = {Legal: "KV-5", Short: "KV-6", Bad: "KV-15"}[type(verdict)]
                raise Broken(clause, f"{name} ended in {type(error).__name__}: {error}") from error
            case Legal(), Refused("shortage", error):
                raise Broken(
                    "KV-6",
                    f"{name} was refused ({error}); there is room: {self.ledger.pages.free} pages for {verdict.pages}",
                )
            case Legal(), Refused(_, error):
                raise Broken(error.clause, f"{name} is a legal call and was refused: {error}")
            case Short(), Done():
                raise Broken(
                    "KV-6",
                    f"{name} succeeded: it needs {verdict.need} of pool '{verdict.pool}', {verdict.free} are free",
                )
            case Short(), Refused("bad_call", error):
                raise Broken(
                    error.clause, f"{name} is short of '{verdict.pool}' and was refused as a bad call: {error}"
                )
            case Short(pool, need, free, reclaimable), Refused(_, error):
                self.checker.unchanged(operation)
                told = (error.pool, error.need, error.free, error.reclaimable)
                right = (pool, need, free, reclaimable)
                if told != right:
                    raise Broken("KV-6", f"{name}: pool, need, free, reclaimable are {told}, should be {right}")
                self.reach.checks["KV-6"] += 1
            case Bad(), Done():
                raise Broken("KV-15", f"{name} cannot be right and was accepted")
            case Bad(), Refused("shortage", error):
                raise Broken("KV-15", f"{name} cannot be right and was refused as a shortage: {error}")
            case Bad(kind, argument, clause), Refused(_, error):
                said, should = (type(error), error.argument, error.clause), (kind, argument, clause)
                if said != should:
                    raise Broken("KV-15", f"{name} was refused with {said}, should be {should}: {error}")
                self.checker.unchanged(operation)
                self.reach.checks["KV-15"] += 1

    def _call_engine(self, operation: Operation) -> Any:
        subject, ledger = self.subject, self.ledger
        match operation:
            case Extend(requests, seq_lens, tokens):
                texts = ledger.texts_of(operation)
                known = [text.tokens(length) for text, length in zip(texts, tokens or seq_lens, strict=False)]
                return subject.extend(requests, seq_lens, known, [text.salt for text in texts])
            case Decode(requests, kept):
                return subject.decode(requests, kept)
            case SpecReserve(requests, reserve, kept):
                return subject.spec_reserve(requests, reserve, kept)
            case Commit(requests, accepted, kept):
                return subject.commit(requests, accepted, kept)
            case ReleaseOverallocated(request):
                return subject.release_overallocated(request)
            case Release(requests, checkpoint, more):
                return subject.release(requests, checkpoint, [self._tokens_of(number, more) for number in requests])
            case Retract(requests, backup):
                return subject.retract(requests, backup)
            case Prealloc(request, fill_len, total_prefix_len, tokens):
                text = ledger.text_of(request, operation.prompt, operation.salt)
                known, tail = text.tokens(fill_len if tokens < 0 else tokens), operation.swa_tail_len
                return subject.prealloc(request, fill_len, total_prefix_len, tail, known, text.salt)
            case FillHole(request):
                return subject.fill_hole(request)
            case Checkpoint(request, more):
                return subject.checkpoint(request, self._tokens_of(request, more))
            case Evict(tokens):
                return subject.evict(tokens)
            case WindowEvict(requests, kept):
                return subject.window_evict(requests, kept)
            case Lease(number, requests, kept):
                return subject.lease(number, requests, kept)
            case Retire(number):
                return subject.retire(number)
            case LateResult(number, accepted):
                return subject.late_result(number, accepted)
            case FreeGroupBegin():
                return subject.free_group_begin()
            case FreeGroupEnd():
                return subject.free_group_end()
            case PreallocHisparse(request, fill_len, swa_tail_len, tokens):
                known = ledger.text_of(request).tokens(fill_len if tokens < 0 else tokens)
                return subject.prealloc_hisparse(request, fill_len, swa_tail_len, known)
            case SwapOut(request):
                return subject.swap_out(request)
            case DeviceBuffer(request):
                return subject.device_buffer(request)
            case BindNewest(requests, kept):
                return subject.bind_newest(requests, kept)
            case DropBackup(request):
                return subject.drop_backup(request)
        raise TypeError(f"the engine level has no operation {operation.name}")

    def _tokens_of(self, number: int, more: int) -> NDArray[np.int32]:
        """The tokens that a request has: so many more than committed."""
        held = self.ledger.get(number)
        tokens: NDArray[np.int32] = held.text.tokens(max(held.committed + more, 0))
        return tokens

    def _call_slots(self, operation: Operation) -> Any:
        return call_slots(self.subject, self.ledger, operation)
