"""`kvcore check`: the soak, then the machines, on both levels of a subject; in a kernel lane also each kernel alone.

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
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..kernels.dispatch import OPERATIONS
from . import options
from .profiles import Profile, profile_for
from .reach import Reach
from .replay import Failure
from .soak import soak
from .subjects import load, load_subject, offered_by
from .subjects.protocol import Capabilities, Factory


@dataclass(frozen=True)
class Task:
    """A piece of work: one driver on one level, or on one kernel, from one seed.

    driver: soak, machine or kernel. target: the level, or the operation. fn: the function to put in the kernel's place.
    """

    driver: str
    target: str
    seed: int
    steps: int
    subject: str
    device: str
    profile: str
    fn: str | None = None

    @property
    def title(self) -> str:
        return f"{self.driver} {self.target}"


@dataclass(frozen=True)
class KernelFailure:
    """A kernel that does not agree with its reference: the minimised call, as text."""

    op: str
    text: str
    clause: str


@dataclass
class CheckResult:
    """What a check has found: counts, the first failure, what was promised and not reached."""

    levels: tuple[str, ...]
    capabilities: dict[str, Capabilities]
    reach: Reach = field(default_factory=Reach)
    failure: Failure | None = None
    kernel_failure: KernelFailure | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """holds, broken or not reached."""
        return "broken" if self.failure or self.kernel_failure else "not reached" if self.missing else "holds"


def check(
    subject: str = "kvcore",
    *,
    device: str = "cpu",
    profile: str = "quick",
    seed: int = 0,
    workers: int | None = None,
    kernels: dict[str, str] | None = None,
    progress: Callable[[Task], None] = lambda task: None,
) -> CheckResult:
    """Run every task of the profile; `progress` hears of each that ends. Raises UnknownSubject before anything runs.

    kernels: operation -> pkg.mod:fn, to be checked in the place of kvcore's own. Where it is given, nothing else runs.
    """
    factory = load_subject(subject)
    chosen = profile_for(profile, device)
    capabilities = {} if kernels else levels_of(factory, device)
    result = CheckResult(tuple(capabilities), capabilities)
    tasks = list(tasks_of(chosen, result.levels, subject, device, seed, kernels))
    workers = min(workers or _workers_for(device), len(tasks))
    for task, (reach, failure) in _outcomes(tasks, workers):
        result.reach.add(reach)
        progress(task)
        if isinstance(failure, KernelFailure):
            result.kernel_failure = failure
        else:
            result.failure = failure
        if failure:
            return result
    if kernels:
        return result
    result.missing = chosen.missing(result.reach, result.levels)
    for level, offered in capabilities.items():
        for clause in offered.asked:
            if not result.reach.checks[clause]:
                result.missing.append(f"clause {clause} is asked of the {level} level and nothing exercised it")
    if device != "cpu" and checks_kernels(subject):
        result.missing += [f"kernel {op} was not launched" for op in OPERATIONS if not result.reach.kernels[op]]
    return result


def checks_kernels(subject: str) -> bool:
    """Whether the kernels of the lane are this subject's: kvcore's own, or those that a fault of the gallery breaks."""
    return subject == "kvcore" or hasattr(load_subject(subject), "kernels")


def _workers_for(device: str) -> int:
    if device != "cuda":
        return os.cpu_count() or 1
    import torch

    return min(os.cpu_count() or 1, 4 * torch.cuda.device_count())


def levels_of(factory: Factory, device: str) -> dict[str, Capabilities]:
    """The levels that a factory offers."""
    said = {level: offered_by(factory, level, device) for level in ("engine", "slots")}
    return {level: capabilities for level, capabilities in said.items() if capabilities is not None}


def tasks_of(
    profile: Profile,
    levels: tuple[str, ...],
    subject: str,
    device: str,
    seed: int,
    kernels: dict[str, str] | None = None,
) -> Iterator[Task]:
    """The kernels alone and then the soak: they find most faults within seconds. The machines last."""
    first = seed * 1_000_003

    def task(driver: str, target: str, piece: int, steps: int, fn: str | None = None) -> Task:
        return Task(driver, target, first + piece, steps, subject, device, profile.name, fn)

    if kernels:
        yield from (task("kernel", op, 0, profile.kernel_cases, fn) for op, fn in kernels.items())
        return
    if device != "cpu" and checks_kernels(subject):
        yield from (task("kernel", op, 0, profile.kernel_cases) for op in OPERATIONS)
    for piece in range(profile.shards):
        yield from (task("soak", level, piece, profile.soak_steps // profile.shards) for level in levels)
    for piece in range(profile.pieces):
        yield from (task("machine", level, piece, profile.examples * profile.example_steps) for level in levels)


Result = tuple[Reach, Failure | KernelFailure | None]


def _outcomes(tasks: list[Task], workers: int) -> Iterator[tuple[Task, Result]]:
    """Results in the order of the tasks; what was not started when a failure turns up is left out."""
    if workers == 1:
        yield from ((task, perform(task)) for task in tasks)
        return
    # spawn: a forked child could not use a GPU that its parent has touched.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _worker, (tasks[0].device,)) as pool:
        futures: list[Future[Any]] = [pool.submit(perform, task) for task in tasks]
        try:
            for task, future in zip(tasks, futures, strict=True):
                try:
                    yield task, future.result()
                except BrokenProcessPool:
                    told = f"the process of '{task.title}', or of one beside it, died: a kernel left its memory"
                    yield task, (Reach(), KernelFailure(task.target, told, "KV-13"))
                    return
        finally:
            for future in futures:
                future.cancel()


def _worker(device: str) -> None:
    """Workers share the cores, so torch's own threads would only get in each other's way; and they share the GPUs."""
    import torch

    torch.set_num_threads(1)
    if device == "cuda":
        (number,) = multiprocessing.current_process()._identity[-1:]
        torch.cuda.set_device((number - 1) % torch.cuda.device_count())


def perform(task: Task) -> Result:
    """One task in this process."""
    from ..kernels.jit import launches

    before = launches.copy()
    run = {"soak": _soak, "machine": _machine, "kernel": _kernel}[task.driver]
    reach, failure = run(task)
    reach.kernels.update({op: launches[op] - before[op] for op in OPERATIONS if launches[op] > before[op]})
    return reach, failure


def _soak(task: Task) -> Result:
    reach = Reach()
    factory = load_subject(task.subject)
    return reach, soak(task.target, factory, steps=task.steps, seed=task.seed, reach=reach, device=task.device)


def _machine(task: Task) -> Result:
    import hypothesis
    from hypothesis.stateful import run_state_machine_as_test

    from .machines import MACHINES, machine_settings
    from .verdicts import Broken

    options.current = options.Options(task.subject, task.device, task.profile, task.seed)
    base = MACHINES[task.target]
    # A class of its own: reach and failure are this task's.
    machine: Any = type(base.__name__, (base,), {"reach": Reach(), "failure": None})
    chosen = machine_settings(task.profile, device=task.device, database=None)
    try:
        run_state_machine_as_test(hypothesis.seed(task.seed)(machine), settings=chosen)
    except (Broken, hypothesis.errors.Flaky):
        return machine.reach, machine.failure
    return machine.reach, None


def _kernel(task: Task) -> Result:
    """One kernel against its reference, in the context that the subject gives it (a fault of the gallery: broken)."""
    from ..properties.check_kernel import find_mismatch

    reach = Reach()
    context: Callable[[], AbstractContextManager[Any]] = getattr(load_subject(task.subject), "kernels", nullcontext)
    # Interpreted, a prompt of 126,000 tokens takes as long as a hundred small calls.
    large = task.fn is not None or (task.device, task.profile) != ("interpret", "quick")
    with context():
        fn = _in_lane(task) if task.fn is None else load(task.fn)
        found = find_mismatch(task.target, fn, task.device, examples=task.steps, seed=task.seed, large=large)
    reach.checks.update({"KV-12": task.steps, "KV-13": task.steps})
    if found is None:
        return reach, None
    return reach, KernelFailure(task.target, str(found), "KV-13" if "outside of" in found.wrong else "KV-12")


def _in_lane(task: Task) -> Callable[..., Any]:
    """The lane's own function, with tiles so small that a call takes several of them."""
    from ..properties.lanes import small_tile_function

    return small_tile_function(task.target, task.device)
