"""The suite's own parts: each of its drivers can fail, and a failure is minimised, written, replayed, and told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis.stateful import run_state_machine_as_test

from ..auditing import audit
from ..snapshots import Snapshot
from . import options
from .check import check, tasks_of
from .choices import DRAWS, ENGINE_PICK, ENGINE_POSSIBLE, SIZES, SLOT_PICK, SLOT_POSSIBLE
from .configuration import Configuration
from .configurations import CHOICES, configuration
from .faults import GALLERY
from .faults.hunt import hunt
from .machines import MACHINES, machine_settings
from .minimize import minimize
from .operations import BadCall, Commit, Decode, Extend, MalformedOperation, Operation, Release, SpecReserve, parse
from .page_map import page_map
from .profiles import PROFILES
from .reach import Reach
from .replay import Failure, MalformedReplay, Replay, run, to_replay
from .report import failure_report, state_of
from .runner import Runner
from .soak import propose, soak
from .subjects import UnknownSubject, load_subject
from .subjects.kvcore import KvcoreEngine, kvcore
from .verdicts import Broken

SMALL = Configuration(page_size=4, num_pages=8, max_requests=3, context_len=20, checked=False)


# The gallery.


@pytest.mark.parametrize("seed", [0, 11, 12])
@pytest.mark.parametrize("name", [fault.id for fault in GALLERY.values() if fault.device == "cpu"])
def test_every_fault_is_found_and_named_by_a_clause_that_fits(name: str, seed: int) -> None:
    fault = GALLERY[name]
    found = hunt(fault, seed=seed)
    assert found.failure is not None
    assert found.clause in fault.clauses
    assert len(found.failure.operations) <= 10
    again = run(found.failure.config, found.failure.operations, fault.factory)
    assert again is not None
    assert again.broken.clause == found.failure.broken.clause


@pytest.mark.parametrize("name", GALLERY)
def test_a_fault_tells_its_story_and_at_most_two_clauses(name: str) -> None:
    fault = GALLERY[name]
    assert 1 <= len(fault.clauses) <= 2
    assert fault.story.count(".") >= 2
    assert getattr(__import__("kvcore.stateful.faults", fromlist=[name]), name) is fault.factory


@pytest.mark.parametrize("level", ["engine", "slots"])
def test_the_unbroken_allocator_passes(level: str) -> None:
    assert soak(level, kvcore, steps=3_000, seed=99, reach=Reach()) is None
    assert soak(level, kvcore, steps=3_000, seed=98, reach=Reach(), checked=True) is None


@pytest.mark.parametrize(("level", "name"), [("engine", "a_page_freed_twice"), ("slots", "a_set_freed_in_pieces")])
def test_the_machines_find_and_shrink_a_fault(level: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "current", options.Options(subject=f"kvcore.stateful.faults:{name}"))
    machine: Any = type("Canary", (MACHINES[level],), {"reach": Reach(), "failure": None})
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(machine, settings=machine_settings("quick", database=None, derandomize=True))
    assert caught.value.clause in GALLERY[name].clauses
    assert len(machine.failure.operations) <= 4


# Minimisation, replay files, reports.


def found(name: str = "a_shortage_that_leaks", seed: int = 1) -> Failure:
    failure = soak("engine", GALLERY[name].factory, steps=5_000, seed=seed, reach=Reach())
    assert failure is not None
    return failure


def test_a_minimised_sequence_is_1_minimal() -> None:
    factory = GALLERY["a_shortage_that_leaks"].factory
    small = minimize(found(), factory)
    for i in range(len(small.operations)):
        rest = small.operations[:i] + small.operations[i + 1 :]
        without = run(small.config, rest, factory)
        assert without is None or without.broken.clause != small.broken.clause
    for field in ("num_pages", "max_requests", "context_len"):
        size = getattr(small.config, field)
        if size > 1:
            less = run(replace(small.config, **{field: size - 1}), small.operations, factory)
            assert less is None or less.broken.clause != small.broken.clause


def test_a_seed_reproduces_a_run_exactly() -> None:
    assert found().operations == found().operations
    assert found(seed=1).operations != found(seed=2).operations


def test_a_replay_file_reads_back_as_what_was_written(tmp_path: Path) -> None:
    replay = to_replay(found(), subject="kvcore.stateful.faults:x", device="cpu", seed=5)
    path = tmp_path / "f.replay"
    path.write_text(replay.text())
    assert Replay.read(path) == replay


@pytest.mark.parametrize("level", ["engine", "slots"])
def test_every_operation_reads_back_from_its_line(level: str) -> None:
    from random import Random

    random, runner = Random(3), Runner(configuration(level, 3, 4, 25, checked=True), kvcore)
    for _ in range(600):
        operation = propose(runner.ledger, level, random)
        assert parse(str(operation)) == operation
        runner.step(operation)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no line begins with 'config'"),
        ("config {", "line 1"),
        ('config {"page_size": 3}', "line 1"),
        ('config {"page_size": 4, "num_pages": 4, "max_requests": 1, "context_len": 4, "colour": 1}', "colour"),
        ("extend requests=[1]", "line 1"),
        ("jump requests=[1]", "unknown operation 'jump'"),
        ("decode requests=1x", "no JSON value"),
        ("decode height=1", "'height=1' is no field of decode"),
        ("seed x", "line 1"),
        ("bad_call nothing", "line 1"),
    ],
)
def test_a_malformed_replay_is_refused_with_its_line(text: str, told: str) -> None:
    with pytest.raises(MalformedReplay, match=told.replace("[", r"\[")):
        Replay.parse(text)


def test_a_malformed_operation_is_named() -> None:
    with pytest.raises(MalformedOperation):
        parse("extend requests=[1] seq_lens")


def test_the_report_shows_operations_clause_page_map_and_one_line_to_paste(tmp_path: Path) -> None:
    name = "a_page_freed_twice"
    small = minimize(found(name), GALLERY[name].factory)
    text = failure_report(small, GALLERY[name].factory, tmp_path / "x.replay", subject=name, device="cpu", seed=1)
    assert small.broken.clause in text.splitlines()[0]
    assert all(str(operation) in text for operation in small.operations)
    assert "before" in text
    assert "after" in text
    assert "!" in text
    assert sum(line.startswith("REPRO: ") for line in text.splitlines()) == 1


def test_the_page_map_shows_owners_free_pages_doubles_and_losses() -> None:
    runner = Runner(SMALL, kvcore)
    runner.step(Extend((1, 2), (5, 3)))
    before = state_of(runner)
    runner.subject.manager.allocator.free_list.ids[3:5] = 1
    lines = page_map(before, state_of(runner)).splitlines()
    assert lines[0].split()[1:] == [str(n) for n in range(1, 9)]
    assert lines[1].split()[1:] == list("aab.....")
    assert lines[2].split()[1:] == list("!ab??...")


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
    runner.checker.stamps.written[4] = runner.checker.stamps.written[12]
    with pytest.raises(Broken, match="holds what request 2 wrote") as caught:
        runner.step(Decode((2,)))
    assert caught.value.clause == "KV-1"


# Draws and reach.


@pytest.mark.parametrize("level", ["engine", "slots"])
def test_every_draw_is_a_call_the_ledger_knows(level: str) -> None:
    """No draw, whatever the state, resolves to a bad call unless it is meant to be one."""
    from random import Random

    possible, pick = (ENGINE_POSSIBLE, ENGINE_PICK) if level == "engine" else (SLOT_POSSIBLE, SLOT_PICK)
    random = Random(5)
    for shape in range(0, CHOICES, 5):
        runner = Runner(configuration(level, shape, shape + 1, shape), kvcore)
        for _ in range(60):
            for name, chosen in pick.items():
                if possible[name](runner.ledger):
                    draws = [random.randrange(DRAWS) for _ in range(3)]
                    verdict = runner.ledger.expected(chosen(runner.ledger, *draws))
                    assert type(verdict).__name__ in ("Legal", "Short"), (name, draws)
            runner.step(propose(runner.ledger, level, random))


def test_batch_sizes_1_to_17_are_all_drawn() -> None:
    assert set(SIZES) == set(range(1, 18))


def test_what_was_promised_and_not_reached_is_said() -> None:
    quick = PROFILES["quick"]
    missing = quick.missing(Reach(), ("engine", "slots"))
    assert any("operation extend took effect 0 times" in sentence for sentence in missing)
    assert any("state 'resumed'" in sentence for sentence in missing)
    assert any("bad_call" in sentence for sentence in missing)
    reach = Reach(steps=10, states=Counter({"three or more live": 4}))
    assert any("40%" in sentence for sentence in quick.missing(reach, ("engine",)))


def test_the_tasks_do_not_depend_on_the_workers() -> None:
    quick = PROFILES["quick"]
    tasks = list(tasks_of(quick, ("engine", "slots"), "kvcore", "cpu", 0))
    assert len({(task.driver, task.target, task.seed) for task in tasks}) == len(tasks)
    assert sum(task.steps for task in tasks if task.driver == "soak") == 2 * quick.soak_steps


def test_a_clause_that_is_asked_and_never_exercised_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from . import profiles

    few = replace(PROFILES["quick"], soak_steps=20, shards=1, examples=1, example_steps=5, pieces=1)
    monkeypatch.setitem(profiles.PROFILES, "quick", few)
    result = check("kvcore", workers=1)
    assert result.verdict == "not reached"
    assert any("was reached" in sentence for sentence in result.missing)


def test_an_unknown_subject_says_what_was_tried() -> None:
    for name in ("nobody", "no.such.module:factory", "kvcore.stateful.faults:no_such_fault", "a:b:c", ":x", "kvcore:"):
        with pytest.raises(UnknownSubject, match=name):
            load_subject(name)


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


# The command line, in processes of its own.


def kv(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvcore.stateful", *words], cwd=cwd, text=True, capture_output=True, timeout=240
    )


def test_the_faults_of_the_kernels_are_found_in_the_interpreter(tmp_path: Path) -> None:
    done = kv("faults", "--device", "interpret", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 of 8 faults found" in done.stdout


def test_a_broken_subject_ends_with_1_a_replay_file_and_json(tmp_path: Path) -> None:
    subject = "kvcore.stateful.faults:a_page_freed_twice"
    done = kv("check", "--subject", subject, "-n", "1", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    (path,) = tmp_path.glob("kvcore-*.replay")
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["verdict"] == "broken"
    assert data["failure"]["clause"] in ("KV-8", "KV-1")
    assert data["failure"]["replay"] == path.name
    assert data["clauses"][data["failure"]["clause"]]["violations"] == 1
    assert data["clauses"]["KV-9"] == {"asked": False, "checks": 0, "violations": 0, "why": "has no prefix cache yet"}
    assert done.stdout.count("REPRO: ") == 1
    again = kv("replay", path.name, cwd=tmp_path)
    assert again.returncode == 1
    assert again.stdout.splitlines()[0] == next(line for line in done.stdout.splitlines() if "is broken" in line)
    assert kv("replay", path.name, "--subject", "kvcore", cwd=tmp_path).returncode == 0
    assert kv("replay", path.name, "--minimize", cwd=tmp_path).returncode == 1
    assert (tmp_path / f"{path.name}.min").exists()
    contract = kv("contract", cwd=tmp_path)
    assert contract.returncode == 0
    assert f"last run: {subject}" in contract.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "--subject", "nobody"], "nobody"),
        (["check", "--subject", "kvcore.stateful.faults:none"], "none"),
        (["check", "--prof", "quick"], "unrecognized arguments"),
        (["check", "--profile", "slow"], "invalid choice"),
        (["check", "-n", "0"], "at least 1"),
        (["replay", "missing.replay"], "missing.replay"),
        (["replay", "broken.replay"], "line 1"),
        (["workload", "missing.jsonl"], "missing.jsonl"),
        (["faults", "--only", "nothing"], "nothing"),
        ([], "COMMAND"),
        (["fly"], "invalid choice"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_clear_line(words: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "broken.replay").write_text("config {\n")
    done = kv(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
