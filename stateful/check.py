"""`kvcore check`: the soak, then the machines, on both levels of a subject; in a kernel lane also each kernel alone.

    result = check("my.package:factory", profile="quick", workers=2)
    result.verdict, result.failures

The work is cut into tasks by the profile alone, each with a seed of its own, so the number of workers changes nothing
but the time. Failures are sorted into findings, by clause, operation and situation; the run goes on after each.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..kernels.dispatch import OPERATIONS
from . import options
from .child import can_die, run_safely
from .findings import Findings, Key
from .known_failures import Known, stale
from .operations import BadCall
from .profiles import Profile, profile_for
from .reach import Reach
from .replay import Failure, Replay, on_device
from .soak import soak
from .subjects import load, load_subject, name_of_factory, offered_by
from .subjects.protocol import Capabilities, Factory
from .workers import outcomes


@dataclass(frozen=True)
class Task:
    """A piece of work: one driver on one level, or on one kernel, from one seed.

    driver: soak, machine or kernel. target: the level, or the operation. fn: the function to put in the kernel's place.
    known, found: what ends nothing, from the file of known failures and from this run. left_out: pairs of operation and
    situation that are not launched. journal: where it tells what it is about to do. first: one
    finding is enough.
    """

    driver: str
    target: str
    seed: int
    steps: int
    subject: str
    device: str
    profile: str
    fn: str | None = None
    known: tuple[Known, ...] = ()
    found: tuple[Key, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    journal: str | None = None
    first: bool = False

    @property
    def title(self) -> str:
        return f"{self.driver} {self.target}"

    def is_old(self, key: Key) -> bool:
        """Whether a finding is known, or was made before."""
        return key in self.found or any(entry.covers(key) for entry in self.known)


@dataclass(frozen=True)
class KernelFailure:
    """A kernel that does not agree with its reference: the minimised call, as text."""

    op: str
    text: str
    clause: str


@dataclass
class CheckResult:
    """What a check has found: counts, the findings, what was promised and not reached, known failures that are none.

    failures: the first of each finding, not yet minimised, in the order in which they were found. times: how often each
    finding was met, the known ones, too.
    """

    levels: tuple[str, ...]
    capabilities: dict[str, Capabilities]
    reach: Reach = field(default_factory=Reach)
    failures: list[Failure] = field(default_factory=list)
    times: Counter[Key] = field(default_factory=Counter)
    known: tuple[Known, ...] = ()
    kernel_failure: KernelFailure | None = None
    stale: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def failure(self) -> Failure | None:
        """The first one."""
        return self.failures[0] if self.failures else None

    @property
    def verdict(self) -> str:
        """holds, broken or not reached."""
        if self.failures or self.kernel_failure:
            return "broken"
        return "not reached" if self.missing or self.stale else "holds"


def check(
    subject: str | Factory = "kvcore",
    *,
    device: str = "cpu",
    profile: str = "quick",
    seed: int = 0,
    workers: int | None = None,
    kernels: dict[str, str] | None = None,
    known: tuple[Known, ...] = (),
    first: bool = False,
    progress: Callable[[Task], None] = lambda task: None,
) -> CheckResult:
    """Run every task of the profile; `progress` hears of each that ends. Raises UnknownSubject before anything runs.

    kernels: operation -> pkg.mod:fn, to be checked in the place of kvcore's own. Where it is given, nothing else runs.
    subject: a name, or a factory that can be imported under its own. known: failures that are expected. first: stop at
    the first finding.
    """
    if not isinstance(subject, str):
        subject = name_of_factory(subject)  # workers import it
    factory = load_subject(subject)
    chosen = profile_for(profile, device)
    capabilities = {} if kernels else levels_of(factory, device)
    result = CheckResult(tuple(capabilities), capabilities, known=known)
    replayed = {entry: replay_of(entry, factory, device) for entry in known if entry.replay}
    left_out = tuple((entry.operation, entry.when) for entry in known if entry.never)
    tasks = [
        replace(task, known=known, left_out=left_out, first=first)
        for task in tasks_of(chosen, result.levels, subject, device, seed, kernels)
    ]
    machines = [task for task in tasks if task.driver == "machine"]
    dying = {level for level in result.levels if can_die(factory, level, device)}
    with TemporaryDirectory() as folder:
        for phase in ([task for task in tasks if task.driver != "machine"], machines):
            # What the soak has found the machines need not find again.
            told = [
                replace(
                    task,
                    found=tuple(key for key in result.times if not any(entry.covers(key) for entry in known)),
                    journal=str(Path(folder) / f"{i}-{task.driver}") if task.target in dying else None,
                )
                for i, task in enumerate(phase)
            ]
            for task, surveyed in outcomes(told, min(workers or _workers_for(device), max(len(told), 1)), survey):
                result.reach.add(surveyed.reach)
                progress(task)
                result.times.update(surveyed.times)
                have = {failure.broken.key for failure in result.failures}
                result.failures += [one for one in surveyed.failures if one.broken.key not in have]
                result.kernel_failure = result.kernel_failure or surveyed.kernel
                if surveyed.kernel or (first and result.failures):
                    return result
    if kernels:
        return result
    # What goes wrong in a call that was right comes first.
    result.failures.sort(key=lambda one: bool(one.operations) and isinstance(one.operations[-1], BadCall))
    result.capabilities = {level: _as_offered(said, result.reach) for level, said in capabilities.items()}
    result.stale = stale(known, list(result.times), replayed)
    result.missing = _missing(result, chosen, subject, device)
    return result


def _as_offered(said: Capabilities, reach: Reach) -> Capabilities:
    """Without what nothing that the subject offers could exercise."""
    if "KV-11" not in said.asked or "free_group_begin" in reach.offered or not reach.offered:
        return said
    asked = tuple(clause for clause in said.asked if clause != "KV-11")
    return replace(said, asked=asked, why_not={**said.why_not, "KV-11": "it has no free groups"})


def _missing(result: CheckResult, chosen: Profile, subject: str, device: str) -> list[str]:
    """What was promised and not reached, in sentences."""
    failing = {operation for _, operation, _ in result.times}
    failing |= {name for name in result.reach.offered for entry in result.known if entry.keeps_back(name)}
    missing = chosen.missing(result.reach, result.capabilities, failing)
    missing += [f"operation {name}: {told}" for name, told in sorted(result.reach.unfit.items())]
    for level, offered in result.capabilities.items():
        for clause in offered.asked if result.reach.steps else ():
            if not result.reach.checks[clause]:
                missing.append(f"clause {clause} is asked of the {level} level and nothing exercised it")
    if device != "cpu" and checks_kernels(subject):
        missing += [f"kernel {op} was not launched" for op in OPERATIONS if not result.reach.kernels[op]]
    return missing


def replay_of(entry: Known, factory: Factory, device: str) -> Key | None:
    """What the replay of a known failure breaks now, None for nothing."""
    assert entry.replay is not None
    recorded = Replay.read(entry.replay)
    failure = run_safely(on_device(recorded.config, device), recorded.operations, factory)
    return failure.broken.key if failure else None


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


@dataclass
class Surveyed:
    """What came of a task: the first failure of each new finding, how often every finding was met."""

    reach: Reach
    failures: list[Failure] = field(default_factory=list)
    times: Counter[Key] = field(default_factory=Counter)
    kernel: KernelFailure | None = None


def survey(task: Task) -> Surveyed:
    """One task in this process, to its end, whatever fails on the way."""
    if task.driver == "kernel":
        reach, failure = perform(task)
        return Surveyed(reach, kernel=failure if isinstance(failure, KernelFailure) else None)
    findings = Findings(task.is_old, task.left_out, Path(task.journal) if task.journal else None, task.first)
    reach, failures = Reach(), []
    while True:
        piece, failure = perform(task, findings)
        reach.add(piece)
        if not isinstance(failure, Failure) or task.driver == "soak":
            break
        # A machine ends with what it has found, and begins again knowing it.
        failures.append(failure)
        findings.times[failure.broken.key] += 1
        task = replace(task, found=(*task.found, failure.broken.key))
        findings.is_old = task.is_old
        if len(failures) == ROUNDS or task.first:
            break
    return Surveyed(reach, [*findings.new.values(), *failures], findings.times)


ROUNDS = 4
"""Findings after which a machine task is over: each of them it has to shrink."""

Result = tuple[Reach, Failure | KernelFailure | None]


def perform(task: Task, findings: Findings | None = None) -> Result:
    """One task in this process, up to its first failure; with `findings` the soak enters its failures there and goes
    on, and the machines pass over old ones."""
    from ..kernels.jit import launches

    before = launches.copy()
    if task.driver == "kernel":
        reach, failure = _kernel(task)
    else:
        reach, failure = (_soak if task.driver == "soak" else _machine)(task, findings)
    reach.kernels.update({op: launches[op] - before[op] for op in OPERATIONS if launches[op] > before[op]})
    return reach, failure


def _soak(task: Task, findings: Findings | None) -> Result:
    reach, factory = Reach(), load_subject(task.subject)
    # Every other piece of the slot level in checked mode, in which it is told calls that only values show to be wrong.
    checked = task.target == "slots" and task.seed % 2 == 1
    return reach, soak(
        task.target,
        factory,
        steps=task.steps,
        seed=task.seed,
        reach=reach,
        checked=checked,
        device=task.device,
        findings=findings,
    )


def _machine(task: Task, findings: Findings | None) -> Result:
    import hypothesis
    from hypothesis.stateful import run_state_machine_as_test

    from .machines import MACHINES, machine_settings
    from .verdicts import Broken

    options.current = options.Options(task.subject, task.device, task.profile, task.seed)
    base = MACHINES[task.target]
    # A class of its own: reach and failure are this task's.
    machine: Any = type(base.__name__, (base,), {"reach": Reach(), "failure": None, "findings": findings})
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
