"""The workload finds a broken allocator: each fault shows once, well into it, and one clause only may name it."""

from __future__ import annotations

from typing import Any

import pytest

from ..errors import KVCacheOutOfMemory
from .configuration import Configuration
from .hisparse_scheduler import scheduler_for
from .replay import run
from .runner import Runner
from .subjects.kvcore import KvcoreEngine
from .touched import TouchedChecker
from .trace import Trace, generate_trace
from .verdicts import Broken
from .workload import WorkloadSettings, configuration_for, run_workload


class Fault(KvcoreEngine):
    """kvcore's allocator, sound up to the 40th call of the method that a fault overrides."""

    def __init__(self, config: Configuration) -> None:
        super().__init__(config)
        self.calls = 0
        self.table = self.manager.req_to_token_pool.req_to_token.numpy()
        self.free_list = self.manager.allocator.free_list

    def now(self) -> bool:
        self.calls += 1
        return self.calls == 40


class LeavesARowUnwritten(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        number, before = requests[-1], self.lengths(requests[-1])[2]
        slots = super().extend(requests, seq_lens, tokens, salts)
        if self.now():
            self.table[self.row_of(number), before : seq_lens[-1]] = 0
        return slots


class ReservesWithoutARowWrite(Fault):
    def spec_reserve(self, requests: Any, reserve: int, kept: bool) -> None:
        before = [self.lengths(number)[2] for number in requests]
        super().spec_reserve(requests, reserve, kept)
        if self.calls > 39 or self.now():
            for number, end in zip(requests, before, strict=True):
                self.table[self.row_of(number), end : self.lengths(number)[2]] = 0


class HandsOutAHeldPage(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        rows = self.manager.req_to_token_pool.reqs
        if rows and self.free_list.count:
            self.free_list.ids[self.free_list.head] = int(self.table[max(rows), 0]) // self.manager.page_size
        return super().extend(requests, seq_lens, tokens, salts)


class ReturnsOtherSlots(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        slots = super().extend(requests, seq_lens, tokens, salts)
        return slots[::-1].copy() if self.now() else slots


class TakesAPageTooMany(Fault):
    def extend(self, requests: Any, seq_lens: Any, tokens: Any, salts: Any) -> Any:
        slots = super().extend(requests, seq_lens, tokens, salts)
        if self.now():
            self.free_list.advance(1)
        return slots


class ForgetsTheRecord(Fault):
    def commit(self, requests: Any, accepted: Any, kept: bool) -> None:
        super().commit(requests, [0, *accepted[1:]] if self.now() else accepted, kept)


class FreesAPageTwice(Fault):
    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        super().release(requests, checkpoint, tokens)
        if self.now():
            self.free_list.push(self.free_list.live[:1].clone())


class LosesAPage(Fault):
    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        super().release(requests, checkpoint, tokens)
        if self.now():
            self.free_list.advance(1)


class ListsAPageTwiceAndLosesAnother(Fault):
    """The sum is right. The page goes to the bottom of the stack, where no allocation comes by."""

    def release(self, requests: Any, checkpoint: bool, tokens: Any) -> None:
        super().release(requests, checkpoint, tokens)
        if self.now():
            self.free_list.ids[-1] = self.free_list.ids[-2]


class KeepsARetractedRow(Fault):
    def retract(self, requests: Any, backup: bool) -> None:
        req, row = self._req(requests[0]), self.row_of(requests[0])
        super().retract(requests, backup)
        pool = self.manager.req_to_token_pool
        req._pool, req._row, pool.reqs[row] = pool, row, req
        pool.free_rows.remove(row)


class WritesIntoAnothersRow(Fault):
    def commit(self, requests: Any, accepted: Any, kept: bool) -> None:
        super().commit(requests, accepted, kept)
        if self.now():
            self.table[self.row_of(requests[0]), 1] += 1


class WritesPastARow(Fault):
    def commit(self, requests: Any, accepted: Any, kept: bool) -> None:
        super().commit(requests, accepted, kept)
        if self.now():
            self.table[self.row_of(requests[0]), -1] = 7


class ChangesTheRecordOfAFreeRow(Fault):
    def commit(self, requests: Any, accepted: Any, kept: bool) -> None:
        super().commit(requests, accepted, kept)
        free_rows = self.manager.req_to_token_pool.free_rows
        if (self.calls > 39 or self.now()) and free_rows:  # again and again: a bind would set it right
            self.manager.req_to_token_pool.records._table[2, free_rows[0]] = 1


class WritesTheRowsOfARefusedCall(Fault):
    def spec_reserve(self, requests: Any, reserve: int, kept: bool) -> None:
        try:
            super().spec_reserve(requests, reserve, kept)
        except KVCacheOutOfMemory:
            self.table[self.row_of(requests[0]), self.lengths(requests[0])[2]] = 0
            raise


class RefusesWhereThereIsRoom(Fault):
    def spec_reserve(self, requests: Any, reserve: int, kept: bool) -> None:
        if self.now():
            raise KVCacheOutOfMemory("full", 1, 0)
        super().spec_reserve(requests, reserve, kept)


class EndsInAnIndexError(Fault):
    def commit(self, requests: Any, accepted: Any, kept: bool) -> None:
        if self.now():
            raise IndexError("from the depths")
        super().commit(requests, accepted, kept)


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        (LeavesARowUnwritten, "KV-3"),
        (ReservesWithoutARowWrite, "KV-2"),
        (HandsOutAHeldPage, "KV-1"),
        (ReturnsOtherSlots, "KV-3"),
        (TakesAPageTooMany, "KV-5"),
        (ForgetsTheRecord, "KV-4"),
        (FreesAPageTwice, "KV-8"),
        (LosesAPage, "KV-8"),
        (ListsAPageTwiceAndLosesAnother, "KV-1"),
        (KeepsARetractedRow, "KV-4"),
        (WritesIntoAnothersRow, "KV-3"),
        (WritesPastARow, "KV-13"),
        (ChangesTheRecordOfAFreeRow, "KV-4"),
        (WritesTheRowsOfARefusedCall, "KV-7"),
        (RefusesWhereThereIsRoom, "KV-6"),
        (EndsInAnIndexError, "KV-5"),
    ],
)
def test_a_broken_allocator_is_found(fault: type[Fault], clause: str) -> None:
    trace = generate_trace(80, seed=3)
    settings = WorkloadSettings(page_size=16, max_running=6, chunk=256)
    config = configuration_for(trace, settings)
    with pytest.raises(Broken) as found:
        serve_to_the_end(trace, Runner(config, fault, checker=TouchedChecker))
    assert found.value.clause == clause, found.value
    # The failure that is handed on breaks where a check of everything after each operation says that it does.
    result = run_workload(trace, fault, settings)
    assert result.verdict == "broken"
    assert result.failure is not None
    again = run(result.failure.config, result.failure.operations, fault)
    assert again is not None
    assert len(again.operations) == len(result.failure.operations) < 2000
    assert str(again.broken) == str(result.failure.broken)


def serve_to_the_end(trace: Trace, runner: Runner) -> None:
    scheduler_for(trace, runner, chunk=256, seed=0).serve()
    runner.finish()
