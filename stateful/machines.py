"""The Hypothesis machines: the same operations and the same runner, found by search and shrunk.

    class MyMachine(AllocatorMachine):
        subject = "my_package.my_module:factory"

    class TestMyAllocator(MyMachine.TestCase):
        settings = machine_settings("ci")

What is checked is the runner's business: `PathMachine` drives the engine level, `AllocatorMachine` the slot level.
The subject is read when a machine starts, so one source serves every allocator and every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from unittest import SkipTest

from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from . import options
from .bad_calls import pick_bad_call
from .choices import ENGINE_PICK, ENGINE_POSSIBLE
from .configurations import CHOICES, configuration
from .draws import DRAWS
from .findings import Findings
from .known_failures import read_known_failures
from .operations import Operation
from .profiles import profile_for
from .reach import Reach
from .replay import Failure
from .runner import Runner
from .slot_choices import SLOT_PICK, SLOT_POSSIBLE
from .subjects import load_subject, offered_by
from .subjects.protocol import Factory
from .verdicts import Broken

draw = st.integers(0, DRAWS - 1)
choice = st.integers(0, CHOICES - 1)


def machine_settings(profile: str, *, device: str = "cpu", **changes: Any) -> settings:
    """Settings of a machine in this profile.

    One bug at a time and no explain phase: with Hypothesis's defaults shrinking took minutes instead of seconds.
    No deadline and no health checks: a first step on a GPU compiles kernels, and a machine draws much by design.
    """
    chosen = profile_for(profile, device)
    given: dict[str, Any] = {
        "max_examples": chosen.examples,
        "stateful_step_count": chosen.example_steps,
        "deadline": None,
        "report_multiple_bugs": False,
        "phases": (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
        "suppress_health_check": list(HealthCheck),
        "print_blob": False,
    }
    return settings(**{**given, **changes})


class Machine(RuleBasedStateMachine):
    """What both machines share: a runner that starts with the drawn configuration, and the one place that raises."""

    level: ClassVar[str]
    subject: ClassVar[Any] = None
    """The allocator, by its name or its factory, where a class in one's own tree says so; else the options say it."""
    pick: ClassVar[dict[str, Callable[[Any, int, int, int], Operation]]]
    reach: ClassVar[Reach] = Reach()
    findings: ClassVar[Findings | None] = None
    """What is known already: it ends no example, and what it leaves out is not launched."""
    failure: ClassVar[Failure | None] = None
    """The last failure seen; Hypothesis ends with the smallest."""

    def __init__(self) -> None:
        super().__init__()
        self.runner: Runner | None = None
        self.done: list[Operation] = []

    @initialize(pages=choice, rows=choice, shape=choice)
    def start(self, pages: int, rows: int, shape: int) -> None:
        """Every sequence has a configuration of its own. Checked mode is on for one shape in two."""
        checked = shape >= CHOICES // 2
        device = options.current.device
        offered = offered_by(self._factory(), self.level, device)
        if offered is None:
            name = self.subject or options.current.subject
            raise SkipTest(f"not asked: {name} does not offer the {self.level} level")
        if type(self).findings is None and (file := options.current.known_failures):
            type(self).findings = Findings.knowing(read_known_failures(file))
        config = configuration(self.level, pages, rows, shape, checked=checked, device=device, offered=offered)
        self._guard(config, lambda: self._make(config))

    def teardown(self) -> None:
        if self.runner is not None:
            runner = self.runner
            self._guard(runner.config, runner.finish)

    def can(self, name: str) -> bool:
        """Whether there is a subject and it offers the operation."""
        return self.runner is not None and name in self.runner.ledger.offered

    def step(self, name: str, who: int, many: int, much: int) -> None:
        """Resolve three draws against the ledger and perform the operation."""
        assert self.runner is not None
        ledger = self.runner.ledger
        chosen = pick_bad_call if name == "bad_call" else self.pick[name]
        operation = chosen(ledger, who, many, much)
        runner = self.runner
        if self.findings is not None and self.findings.leaves_out(runner, operation):
            return
        event(name)  # counted by --hypothesis-show-statistics
        self.done.append(operation)
        self._guard(runner.config, lambda: runner.step(operation))

    def _factory(self) -> Factory:
        chosen = type(self).subject or options.current.subject
        factory: Factory = load_subject(chosen) if isinstance(chosen, str) else chosen
        return factory

    def _make(self, config: Any) -> None:
        self.done = []
        self.runner = Runner(config, self._factory(), self.reach)
        if self.findings is not None:
            self.findings.begins(config)

    def _is_old(self, broken: Broken) -> bool:
        """Whether it is no finding: not asked of this subject, or known."""
        if not broken.asked:
            return True
        if self.findings is None or not self.findings.is_old(broken.key):
            return False
        self.findings.times[broken.key] += 1
        return True

    def _guard(self, config: Any, act: Callable[[], Any]) -> None:
        """The one place where a failure surfaces."""
        broken = None
        try:
            act()
        except Broken as error:
            broken = error
        if broken is not None and self._is_old(broken):
            self._make(config)  # a fresh subject goes on
        elif broken is not None:
            self.runner = None
            type(self).failure = broken.failure = Failure(config, tuple(self.done), broken)
            raise broken


def _rule(name: str, possible: dict[str, Callable[[Any], Any]]) -> Any:
    """The rule of one operation, legal to draw exactly when it is possible."""

    def perform(self: Machine, who: int, many: int, much: int) -> None:
        self.step(name, who, many, much)

    perform.__name__ = perform.__qualname__ = name
    when = possible[name]
    guarded = precondition(lambda self: self.can(name) and bool(when(self.runner.ledger)))
    return guarded(rule(who=draw, many=draw, much=draw)(perform))


class PathMachine(Machine):
    """Every interleaving of the paths and of what moves the prefix cache, and bad calls."""

    level = "engine"
    pick = ENGINE_PICK
    extend = _rule("extend", ENGINE_POSSIBLE)
    decode = _rule("decode", ENGINE_POSSIBLE)
    spec_reserve = _rule("spec_reserve", ENGINE_POSSIBLE)
    commit = _rule("commit", ENGINE_POSSIBLE)
    release_overallocated = _rule("release_overallocated", ENGINE_POSSIBLE)
    release = _rule("release", ENGINE_POSSIBLE)
    retract = _rule("retract", ENGINE_POSSIBLE)
    prealloc = _rule("prealloc", ENGINE_POSSIBLE)
    fill_hole = _rule("fill_hole", ENGINE_POSSIBLE)
    checkpoint = _rule("checkpoint", ENGINE_POSSIBLE)
    evict = _rule("evict", ENGINE_POSSIBLE)
    window_evict = _rule("window_evict", ENGINE_POSSIBLE)
    lease = _rule("lease", ENGINE_POSSIBLE)
    retire = _rule("retire", ENGINE_POSSIBLE)
    late_result = _rule("late_result", ENGINE_POSSIBLE)
    free_group_begin = _rule("free_group_begin", ENGINE_POSSIBLE)
    free_group_end = _rule("free_group_end", ENGINE_POSSIBLE)
    prealloc_hisparse = _rule("prealloc_hisparse", ENGINE_POSSIBLE)
    swap_out = _rule("swap_out", ENGINE_POSSIBLE)
    device_buffer = _rule("device_buffer", ENGINE_POSSIBLE)
    bind_newest = _rule("bind_newest", ENGINE_POSSIBLE)
    drop_backup = _rule("drop_backup", ENGINE_POSSIBLE)
    bad_call = _rule("bad_call", ENGINE_POSSIBLE)


class AllocatorMachine(Machine):
    """Every interleaving of the slot allocator's calls."""

    level = "slots"
    pick = SLOT_PICK
    alloc = _rule("alloc", SLOT_POSSIBLE)
    alloc_extend = _rule("alloc_extend", SLOT_POSSIBLE)
    alloc_decode = _rule("alloc_decode", SLOT_POSSIBLE)
    alloc_draft = _rule("alloc_draft", SLOT_POSSIBLE)
    alloc_extend_tail = _rule("alloc_extend_tail", SLOT_POSSIBLE)
    free_window = _rule("free_window", SLOT_POSSIBLE)
    alloc_logical_only = _rule("alloc_logical_only", SLOT_POSSIBLE)
    alloc_device_buffer = _rule("alloc_device_buffer", SLOT_POSSIBLE)
    free = _rule("free", SLOT_POSSIBLE)
    free_segment = _rule("free_segment", SLOT_POSSIBLE)
    clear = _rule("clear", SLOT_POSSIBLE)
    free_group_begin = _rule("free_group_begin", SLOT_POSSIBLE)
    free_group_end = _rule("free_group_end", SLOT_POSSIBLE)
    bad_call = _rule("bad_call", SLOT_POSSIBLE)


MACHINES: dict[str, type[Machine]] = {"engine": PathMachine, "slots": AllocatorMachine}
