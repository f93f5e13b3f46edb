"""The gallery: hunt, soak and machines find each planted fault, and pass the allocator that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from . import options
from .faults import GALLERY
from .faults.hunt import hunt
from .machines import MACHINES, machine_settings
from .minimize import minimize
from .reach import Reach
from .replay import run
from .soak import soak
from .subjects.kvcore import kvcore
from .test_self_command_line import kv
from .verdicts import Broken


def hunts() -> list[tuple[str, int]]:
    """Each fault with one of three seeds; with --kv-profile ci or nightly, with all of them."""
    names = [fault.id for fault in GALLERY.values() if fault.device == "cpu"]
    if options.current.profile != "quick":
        return [(name, seed) for name in names for seed in SEEDS]
    return [(name, SEEDS[i % len(SEEDS)]) for i, name in enumerate(names)]


SEEDS = (0, 11, 12)


@pytest.mark.parametrize(("name", "seed"), hunts())
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


@pytest.mark.parametrize(
    ("level", "name"), [("engine", "a_page_freed_twice"), ("slots", "a_partial_last_page_not_freed")]
)
def test_the_machines_find_and_shrink_a_fault(level: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "current", options.Options(subject=f"kvcore.stateful.faults:{name}"))
    machine: Any = type("Canary", (MACHINES[level],), {"reach": Reach(), "failure": None})
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(machine, settings=machine_settings("quick", database=None, derandomize=True))
    assert caught.value.clause in GALLERY[name].clauses
    # Hypothesis shrinks draws, delta debugging what they stand for: a person gets to see the latter.
    assert len(machine.failure.operations) <= 10
    assert len(minimize(machine.failure, GALLERY[name].factory).operations) <= 3


def test_the_faults_of_the_kernels_are_found_in_the_interpreter(tmp_path: Path) -> None:
    done = kv("faults", "--device", "interpret", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 of 9 faults found" in done.stdout
