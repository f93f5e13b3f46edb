"""What the suite itself costs: checked operations a second, and what a machine's step costs beside an empty one.

    for figure in suite_figures("cpu"):
        print(figure.what, figure.value, figure.unit)

Everything is checked after every operation, stamps are on, the core's checked mode is off; one core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import hypothesis
import torch
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from ..sizing import Speculation
from .configuration import Configuration
from .machines import PathMachine, draw, machine_settings
from .reach import Reach
from .soak import run_episode
from .subjects import load_subject

SPECULATION = Speculation("eagle", steps=3, topk=1, draft_tokens=4)
POOLS = {
    "soak, 64 pages, batches up to 4": (64, 4, 64, 5_000),
    "soak, 512 pages x 64 rows": (512, 64, 128, 3_000),
}
"""pages, rows, context length, and the operations a second that are aimed at on the CPU."""

GPU_BAR = 500
MACHINE_BAR = 250
EXAMPLES = 60


@dataclass(frozen=True)
class Figure:
    """One figure and the bar it is held to (None: none)."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    at_most: bool = False


def suite_figures(device: str) -> Iterator[Figure]:
    """The soak on two pools, and, on the CPU, the cost of a machine's step."""
    torch.set_num_threads(1)
    for what, (pages, rows, context_len, bar) in POOLS.items():
        config = Configuration(4, pages, rows, context_len, device, speculation=SPECULATION, checked=False)
        held_to = bar if device == "cpu" else GPU_BAR
        yield Figure(what, _soak_rate(config, 6_000 if device == "cpu" else 1_000), "operations/s", held_to)
    if device == "cpu":
        yield Figure("machine, a step beside an empty one", _machine_step(), "us", MACHINE_BAR, at_most=True)


def _soak_rate(config: Configuration, steps: int) -> float:
    """Operations a second, the best of three: what else runs on the machine only makes it slower."""
    best = 0.0
    for seed in range(3):
        started = time.perf_counter()
        failure = run_episode(config, load_subject("kvcore"), Random(seed), steps, Reach())
        assert failure is None, failure.broken
        best = max(best, steps / (time.perf_counter() - started))
    return best


def _machine_step() -> float:
    """Microseconds that a step of PathMachine takes more than a step of a machine with its rules and no subject."""
    machine: Any = type("Timed", (PathMachine,), {"reach": Reach(), "failure": None})
    full = _run(machine)
    full_steps = machine.reach.steps
    empty = _run(_Empty)
    microseconds: float = (full / full_steps - empty / max(_Empty.steps, 1)) * 1e6
    return microseconds


def _run(machine: Any) -> float:
    settings = machine_settings("quick", max_examples=EXAMPLES, database=None, derandomize=False)
    started = time.perf_counter()
    run_state_machine_as_test(hypothesis.seed(0)(machine), settings=settings)
    return time.perf_counter() - started


class _Empty(RuleBasedStateMachine):
    """PathMachine's rules and draws; they do nothing."""

    steps = 0


def _empty_rule(name: str) -> Any:
    def perform(self: Any, who: int, many: int, much: int) -> None:
        type(self).steps += 1

    perform.__name__ = perform.__qualname__ = name
    return precondition(lambda self: True)(rule(who=draw, many=draw, much=draw)(perform))


for _name in ("extend", "decode", "spec_reserve", "commit", "release_overallocated", "release", "retract", "bad_call"):
    setattr(_Empty, _name, _empty_rule(_name))
