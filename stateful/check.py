"""`kvcore check`: the soak, then the machines, on both levels of a subject, a fixed number of steps.

    result = check("my.package:factory", profile="quick", workers=2)
    result.verdict, result.failure

The work is cut into tasks by the profile alone, each with a seed of its own, so the number of workers changes nothing
but the time. The failure reported is that of the first task, in their order, that failed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from . import options
from .configurations import configuration
from .profiles import PROFILES, Profile
from .reach import Reach
from .replay import Failure
from .soak import soak
from .subjects import load_subject
from .subjects.protocol import Capabilities, Factory


@dataclass(frozen=True)
class Task:
    """A piece of work: one driver on one level, from one seed."""

    driver: str  # soak or machine
    level: str
    seed: int
    steps: int
    subject: str
    device: str
    profile: str

    @property
    def title(self) -> str:
        return f"{self.driver} {self.level}"


@dataclass
class CheckResult:
    """What a check has found: counts, the first failure, what was promised and not reached."""

    levels: tuple[str, ...]
    capabilities: dict[str, Capabilities]
    reach: Reach = field(default_factory=Reach)
    failure: Failure | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """holds, broken or not reached."""
        return "broken" if self.failure else "not reached" if self.missing else "holds"


def check(
    subject: str = "kvcore",
    *,
    device: str = "cpu",
    profile: str = "quick",
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[Task], None] = lambda task: None,
) -> CheckResult:
    """Run every task of the profile; `progress` hears of each that ends. Raises UnknownSubject before anything runs."""
    factory = load_subject(subject)
    chosen = PROFILES[profile]
    capabilities = levels_of(factory, device)
    result = CheckResult(tuple(capabilities), capabilities)
    tasks = list(tasks_of(chosen, result.levels, subject, device, seed))
    workers = min(workers or os.cpu_count() or 1, len(tasks))
    for task, (reach, failure) in _outcomes(tasks, workers):
        result.reach.add(reach)
        progress(task)
        if failure:
            result.failure = failure
            return result
    result.missing = chosen.missing(result.reach, result.levels)
    for level, offered in capabilities.items():
        for clause in offered.asked:
            if not result.reach.checks[clause]:
                result.missing.append(f"clause {clause} is asked of the {level} level and nothing exercised it")
    return result


def levels_of(factory: Factory, device: str) -> dict[str, Capabilities]:
    """The levels that a factory offers, by making one subject for each."""
    found = {}
    for level in ("engine", "slots"):
        subject = factory(configuration(level, 0, 0, 1, device=device))
        if subject.capabilities.level == level:
            found[level] = subject.capabilities
    return found


def tasks_of(profile: Profile, levels: tuple[str, ...], subject: str, device: str, seed: int) -> Iterator[Task]:
    """The soak first: it finds most faults within a second."""
    for piece in range(profile.shards):
        for level in levels:
            steps = profile.soak_steps // profile.shards
            yield Task("soak", level, seed * 1_000_003 + piece, steps, subject, device, profile.name)
    for piece in range(profile.pieces):
        for level in levels:
            steps = profile.examples * profile.example_steps
            yield Task("machine", level, seed * 1_000_003 + piece, steps, subject, device, profile.name)


def _outcomes(tasks: list[Task], workers: int) -> Iterator[tuple[Task, tuple[Reach, Failure | None]]]:
    """Results in the order of the tasks; what was not started when a failure turns up is left out."""
    if workers == 1:
        yield from ((task, perform(task)) for task in tasks)
        return
    # spawn: a forked child could not use a GPU that its parent has touched.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _one_thread) as pool:
        futures: list[Future[Any]] = [pool.submit(perform, task) for task in tasks]
        try:
            for task, future in zip(tasks, futures, strict=True):
                yield task, future.result()
        finally:
            for future in futures:
                future.cancel()


def _one_thread() -> None:
    """Workers share the cores; torch's own threads would only get in each other's way."""
    import torch

    torch.set_num_threads(1)


def perform(task: Task) -> tuple[Reach, Failure | None]:
    """One task in this process."""
    if task.driver == "soak":
        reach = Reach()
        factory = load_subject(task.subject)
        return reach, soak(task.level, factory, steps=task.steps, seed=task.seed, reach=reach, device=task.device)
    return _machine(task)


def _machine(task: Task) -> tuple[Reach, Failure | None]:
    import hypothesis
    from hypothesis.stateful import run_state_machine_as_test

    from .machines import MACHINES, machine_settings
    from .verdicts import Broken

    options.current = options.Options(task.subject, task.device, task.profile, task.seed)
    base = MACHINES[task.level]
    # A class of its own: reach and failure are this task's.
    machine: Any = type(base.__name__, (base,), {"reach": Reach(), "failure": None})
    try:
        run_state_machine_as_test(
            hypothesis.seed(task.seed)(machine), settings=machine_settings(task.profile, database=None)
        )
    except (Broken, hypothesis.errors.Flaky):
        return machine.reach, machine.failure
    return machine.reach, None
