"""What a failure leaves behind: a minimal sequence, a replay file that reads back, a report with a page map."""

from __future__ import annotations

from pathlib import Path

import pytest

from .configurations import configuration
from .faults import GALLERY
from .minimize import minimize
from .operation_lines import MalformedOperation, parse
from .operations import Extend
from .page_map import page_map
from .reach import Reach
from .replay import Failure, MalformedReplay, Replay, to_replay
from .report import failure_report, state_of
from .runner import Runner
from .soak import propose, soak
from .subjects.kvcore import kvcore
from .test_self_checkers import SMALL


def found(name: str = "a_shortage_that_leaks", seed: int = 1) -> Failure:
    failure = soak("engine", GALLERY[name].factory, steps=5_000, seed=seed, reach=Reach())
    assert failure is not None
    return failure


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
