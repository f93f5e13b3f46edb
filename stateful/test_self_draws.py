"""What is drawn and how far it reaches: sound draws, promises that were not reached, tasks for the workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from .check import check, tasks_of
from .choices import ENGINE_PICK, ENGINE_POSSIBLE
from .configurations import CHOICES, EVERYTHING, configuration
from .draws import DRAWS, SIZES
from .operations import ENGINE_OPERATIONS, SLOT_OPERATIONS, BadCall
from .profiles import PROFILES
from .reach import Reach
from .runner import Runner
from .slot_choices import SLOT_PICK, SLOT_POSSIBLE
from .soak import propose, soak
from .subjects.kvcore import kvcore
from .subjects.protocol import Capabilities

LEVELS = {"engine": Capabilities("engine"), "slots": EVERYTHING}
OFFERED = {operation.name for operation in (*ENGINE_OPERATIONS, *SLOT_OPERATIONS, BadCall)}


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
    missing = quick.missing(Reach(offered=OFFERED), LEVELS)
    assert any("operation extend took effect 0 times" in sentence for sentence in missing)
    assert any("state 'resumed'" in sentence for sentence in missing)
    assert any("bad_call" in sentence for sentence in missing)
    reach = Reach(steps=10, states=Counter({"three or more live": 4}))
    missing = quick.missing(reach, {"engine": LEVELS["engine"]})
    assert any("live in 4 of 10 steps, promised is half" in sentence for sentence in missing)


def test_the_soak_keeps_so_many_requests_alive_that_the_machines_may_have_few() -> None:
    """Half of all steps are promised three live requests. The machines, a fifth of nightly's steps, have them in a
    third, so the soak has to be well above: a run of 4.5 million steps once missed the half by a hair."""
    soaked = Reach()
    for level in LEVELS:
        assert soak(level, kvcore, steps=25_000, seed=0, reach=soaked) is None
    assert soaked.states["three or more live"] > 0.57 * soaked.steps


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
