"""The seeded soak: a plain PRNG drives the runner, many times faster than a search that also has to shrink.

    failure = soak("engine", factory, steps=20_000, seed=0, reach=reach)

A run is a series of episodes, each with a configuration of its own. The seed decides everything: the same seed gives
the same operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from .bad_calls import pick_bad_call
from .choices import ENGINE_PICK, ENGINE_POSSIBLE
from .configuration import Configuration
from .configurations import CHOICES, configuration
from .draws import DRAWS
from .findings import Findings
from .operations import Operation
from .reach import Reach
from .replay import Failure
from .runner import Runner, WrongLevel
from .slot_choices import SLOT_PICK, SLOT_POSSIBLE
from .subjects import offered_by
from .verdicts import Broken

EPISODE = 250
"""Operations an episode: long enough to fill the pool and wear its order out several times over, short enough that
many configurations get their turn (a fresh one costs about as much as ten operations)."""

SHORTEST = 50
"""A short run is cut into four episodes of at least so many operations, or it would see one configuration."""

WEIGHTS = {
    "extend": 40,
    "decode": 28,
    "spec_reserve": 15,
    "commit": 16,
    "release_overallocated": 8,
    "release": 5,
    "retract": 14,
    "prealloc": 8,
    "fill_hole": 30,
    "checkpoint": 8,
    "evict": 6,
    "window_evict": 14,
    "lease": 3,
    "retire": 4,
    "late_result": 5,
    "free_group_begin": 1,
    "free_group_end": 6,
    "prealloc_hisparse": 16,
    "swap_out": 14,
    "device_buffer": 20,
    "bind_newest": 16,
    "drop_backup": 60,
    "bad_call": 5,
    "alloc": 10,
    "alloc_extend": 30,
    "alloc_decode": 30,
    "alloc_draft": 12,
    "alloc_extend_tail": 12,
    "free_window": 14,
    "alloc_logical_only": 12,
    "alloc_device_buffer": 16,
    "free": 5,
    "free_segment": 7,
    "clear": 1,
}
"""Growth outweighs release, so that pools run full and shortages are met; a shortage costs one refused step."""


def propose(ledger: Any, level: str, random: Random) -> Operation:
    """The next operation: a kind that is possible now, by weight, with three draws."""
    names, possible, pick = _of_level(level, ledger.offered)
    # A full pool refuses nearly everything; in two of five steps room is made at once.
    room = "free_group_end" if ledger.pages.group_open else "release" if level == "engine" else "free"
    if ledger.pages.free == 0 and ledger.live and room in ledger.offered and random.random() < 0.4:
        name = room
    else:
        name = names[int(random.random() * len(names))]
    while not possible[name](ledger):
        name = names[int(random.random() * len(names))]
    bits = random.getrandbits(18)
    who, many, much = bits & 63, bits >> 6 & 63, bits >> 12
    if name == "bad_call":
        return pick_bad_call(ledger, who, many, much)
    operation: Operation = pick[name](ledger, who, many, much)
    return operation


def soak(
    level: str,
    factory: Callable[[Configuration], Any],
    *,
    steps: int,
    seed: int,
    reach: Reach,
    checked: bool = False,
    device: str = "cpu",
    findings: Findings | None = None,
) -> Failure | None:
    """Run `steps` operations; the first failure, or None. Checked mode of the core is off unless asked for: the suite,
    not the core's own guard, has to find the fault. With `findings` all failures go there, and every
    step is run unless they say that it is enough."""
    random, offered = Random(seed), offered_by(factory, level, device)
    if offered is None:
        raise WrongLevel(f"the subject does not offer the {level} level")
    left = steps
    while left > 0:
        episode = min(EPISODE, max(steps // 4, SHORTEST), left)
        pages, rows, shape = (random.randrange(CHOICES) for _ in range(3))
        config = configuration(level, pages, rows, shape, checked=checked, device=device, offered=offered)
        if failure := run_episode(config, factory, random, episode, reach, findings):
            return failure
        left -= episode
    return None


def run_episode(
    config: Configuration,
    factory: Callable[[Configuration], Any],
    random: Random,
    steps: int,
    reach: Reach,
    findings: Findings | None = None,
) -> Failure | None:
    """One configuration, `steps` operations. The first failure ends it; with `findings` it is entered there, and a
    fresh subject goes on unless that is enough."""
    runner: Runner | None = None
    done: list[Operation] = []
    for left in range(steps, -1, -1):
        try:
            if runner is None:
                done = []
                runner = Runner(config, factory, reach)
                if findings is not None:
                    findings.begins(config)
            if left == 0:
                runner.finish()
                return None
            operation = propose(runner.ledger, config.level, random)
            if findings is not None and findings.leaves_out(runner, operation):
                continue
            done.append(operation)
            runner.step(operation)
        except Broken as broken:
            failure = Failure(config, tuple(done), broken)
            if broken.asked and (findings is None or findings.add(failure)):
                return failure
            if runner is None:
                return None  # none can be made on this configuration
            runner = None
    return None


@cache
def _of_level(level: str, offered: frozenset[str]) -> tuple[list[str], Any, Any]:
    """The names of what is offered, each as often as it weighs; when it is possible, and how it is picked."""
    possible, pick = (ENGINE_POSSIBLE, ENGINE_PICK) if level == "engine" else (SLOT_POSSIBLE, SLOT_PICK)
    named = [name for name in possible if name in offered]
    return [name for name in named for _ in range(WEIGHTS[name])], possible, pick


assert DRAWS == 64, "propose splits 18 random bits into three draws"
