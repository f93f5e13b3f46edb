"""The checks and the ledger: each corrupted state and wrong refusal is named by its clause, reserves by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..auditing import audit
from ..snapshots import Snapshot
from .configuration import Configuration
from .operations import BadCall, Commit, Decode, Extend, Operation, Release, SpecReserve
from .runner import Runner
from .subjects.kvcore import KvcoreEngine, kvcore
from .verdicts import Broken

SMALL = Configuration(page_size=4, num_pages=8, max_requests=3, context_len=20, checked=False)


# The checks, one corrupted state each.


def corrupt(change: Any) -> list[str]:
    runner = Runner(SMALL, kvcore)
    runner.step(Extend((1, 2), (6, 3)))
    state = runner.subject.snapshot()
    assert not audit(state)
    change(state)
    return [violation.clause for violation in audit(state)]


def _set(array: np.ndarray[Any, Any], index: Any, value: int) -> None:
    array[index] = value


@pytest.mark.parametrize(
    ("clause", "change"),
    [
        ("KV-1", lambda s: _set(s.pools["full"].free, 0, 1)),
        ("KV-1", lambda s: _set(s.pools["full"].free, 0, s.pools["full"].free[1])),
        ("KV-1", lambda s: _set(s.pools["full"].free, 0, 99)),
        ("KV-2", lambda s: _set(s.pools["full"].free, 0, 0)),
        ("KV-2", lambda s: s.bound.update({0: 5})),
        ("KV-1", lambda s: s.bound.update({3: 9})),
        ("KV-3", lambda s: _set(s.slots, (1, 1), 9)),
        ("KV-3", lambda s: _set(s.slots, (1, 5), 0)),
        ("KV-4", lambda s: _set(s.records, (1, 1), 7)),
        ("KV-4", lambda s: _set(s.records, (2, 1), 99)),
        ("KV-4", lambda s: _set(s.records, (0, 1), 3)),
        ("KV-4", lambda s: _set(s.records, (2, 3), 1)),
        ("KV-4", lambda s: _set(s.records, (1, 1), -1)),
    ],
)
def test_the_audit_names_the_clause_of_a_corrupted_state(clause: str, change: Any) -> None:
    assert clause in corrupt(change)


def damaged(clause_of: Any, after: list[Operation], then: Operation) -> str:
    """The clause that the runner names when a subject damages its own state in the course of a sound operation."""

    class Damaged(KvcoreEngine):
        armed = False

        def snapshot(self) -> Snapshot:
            if self.armed:
                clause_of(self)
                self.armed = False
            return super().snapshot()

    runner = Runner(SMALL, Damaged)
    for operation in after:
        runner.step(operation)
    runner.subject.armed = True
    with pytest.raises(Broken) as caught:
        runner.step(then)
    return caught.value.clause


def table(subject: KvcoreEngine) -> Any:
    return subject.manager.req_to_token_pool.req_to_token


@pytest.mark.parametrize(
    ("clause", "damage"),
    [
        ("KV-13", lambda s: _set(table(s), (2, 19), 4)),
        ("KV-13", lambda s: _set(table(s), (0, 0), 4)),
        ("KV-3", lambda s: _set(table(s), (1, 1), 6)),
        ("KV-4", lambda s: _set(s.manager.req_to_token_pool.records._table, (1, 1), 3)),
        ("KV-4", lambda s: _set(s.manager.req_to_token_pool.records._table, (3, 1), 4)),
        ("KV-5", lambda s: s.manager.allocator.free_list.advance(1)),
        ("KV-1", lambda s: _set(s.manager.allocator.free_list.ids, -1, 1)),
    ],
)
def test_the_runner_names_the_clause_of_a_damaged_state(clause: str, damage: Any) -> None:
    assert damaged(damage, [Extend((1,), (6,))], Extend((2,), (3,))) == clause


def test_a_page_that_comes_back_while_it_is_live_is_release_once() -> None:
    def free_a_live_page(subject: KvcoreEngine) -> None:
        free_list = subject.manager.allocator.free_list
        free_list.head -= 1
        free_list.ids[free_list.head] = 1

    assert damaged(free_a_live_page, [Extend((1, 2), (6, 3))], Release((2,))) == "KV-8"


def test_a_subject_that_crashes_is_named_by_what_was_expected() -> None:
    class Crashing(KvcoreEngine):
        def decode(self, *call: Any) -> Any:
            raise AttributeError("from the depths")

    for operations, then, clause in (
        ([Extend((1,), (6,))], Decode((1,)), "KV-5"),
        ([Extend((1, 2), (16, 16))], Decode((1, 2)), "KV-6"),
        ([], BadCall("decode_what_holds_no_row", Decode((1,))), "KV-15"),
    ):
        runner = Runner(SMALL, Crashing)
        for operation in operations:
            runner.step(operation)
        with pytest.raises(Broken) as caught:
            runner.step(then)
        assert caught.value.clause == clause


def test_refusals_are_held_to_their_kind() -> None:
    from ..errors import BadArgument, KVCacheOutOfMemory

    def raising(error: Exception) -> Any:
        class Raising(KvcoreEngine):
            def decode(self, *call: Any) -> Any:
                raise error

        return Raising

    full, legal = [Extend((1, 2), (16, 16))], [Extend((1,), (6,))]
    for operations, error, clause in (
        (legal, KVCacheOutOfMemory("full", 1, 0), "KV-6"),
        (legal, BadArgument("KV-15", "batch", "no"), "KV-15"),
        (full, KVCacheOutOfMemory("full", 3, 0), "KV-6"),
        (full, KVCacheOutOfMemory("rows", 2, 0), "KV-6"),
        (full, KVCacheOutOfMemory("full", 2, 0, 1), "KV-6"),
        ([], BadArgument("KV-15", "batch", "the wrong argument"), "KV-15"),
        ([], KVCacheOutOfMemory("full", 1, 0), "KV-15"),
    ):
        runner = Runner(SMALL, raising(error))
        for operation in operations:
            runner.step(operation)
        with pytest.raises(Broken) as caught:
            runner.step(Decode(tuple(sorted(runner.ledger.live)) or (7,)))
        assert caught.value.clause == clause


def test_what_overwrites_another_requests_slot_is_seen_in_the_content() -> None:
    runner = Runner(SMALL, kvcore)
    runner.step(Extend((1, 2), (6, 3)))
    stamps = runner.checker.stamps
    stamps.mark[4], stamps.owner[4] = stamps.mark[12], stamps.owner[12]
    with pytest.raises(Broken, match="holds what request 2 wrote") as caught:
        runner.step(Decode((2,)))
    assert caught.value.clause == "KV-1"


# The ledger is held to hand-computed cases.


def test_the_ledgers_reserve_is_the_documented_one() -> None:
    """allocation.md 1.4 and the sizes that the public reports name."""
    from ..sizing import Speculation, reserve_per_step, row_headroom

    for spec, page_size, reserve, headroom in (
        (Speculation("eagle", 5, 1, 6), 1, 12, 12),
        (Speculation("eagle", 7, 1, 8), 1, 16, 16),
        (Speculation("eagle", 5, 4, 8), 1, 40, 40),
        (Speculation("eagle", 3, 8, 16), 1, 48, 48),
        (Speculation("eagle", 5, 8, 64), 1, 128, 128),
        (Speculation("eagle", 3, 1, 4), 1, 8, 8),
        (Speculation("dflash", 1, 1, 17), 1, 34, 34),
        (Speculation("eagle", 5, 4, 8), 4, 64, 67),
    ):
        assert reserve_per_step(spec, page_size) == reserve
        assert row_headroom(spec, page_size) == headroom
        config = Configuration(page_size, 8, 1, 64, speculation=spec)
        assert Runner(config, kvcore).ledger.reserve == reserve


def test_no_reserve_outgrows_a_row_at_any_page_size() -> None:
    from ..sizing import Speculation

    for page_size in (1, 2, 4, 16, 128):
        for spec in (Speculation("eagle", 5, 4, 8), Speculation("dflash", 1, 1, 17), Speculation("eagle", 3, 1, 4)):
            config = Configuration(page_size, 4096 // page_size, 2, 50, speculation=spec)
            runner = Runner(config, kvcore)
            runner.step(Extend((1,), (50,)))
            runner.step(SpecReserve((1,), runner.ledger.reserve))
            runner.step(Commit((1,), (0,)))
            runner.step(Release((1,)))
