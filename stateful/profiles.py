"""How much a run does, and what it promises to reach: quick, ci, nightly.

    PROFILES["quick"].soak_steps["engine"]

Every profile is a fixed number of operations, so that a seed reproduces a run whatever the machine.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from .operations import ENGINE_OPERATIONS, SLOT_OPERATIONS
from .reach import Reach
from .subjects.protocol import Capabilities


@dataclass(frozen=True)
class Profile:
    """Operations of the soak and examples of the machines, by level; the floors scale with them.

    shards: independent pieces of the soak; together with the machines they are what workers share.
    examples, example_steps: Hypothesis's max_examples and stateful_step_count of one machine piece.
    kernel_cases: drawn calls of each kernel alone, in the kernel lanes.
    pieces: machine pieces a level.
    """

    name: str
    soak_steps: int
    shards: int
    examples: int
    example_steps: int
    pieces: int
    floor: int
    kernel_cases: int

    def missing(
        self, reach: Reach, levels: dict[str, Capabilities], failing: Collection[str] = frozenset()
    ) -> list[str]:
        """What was promised and not reached, in sentences. levels: with what the subject says of itself on each.

        failing: operations with findings. They are left out after a while, and what they lead to is not reached as
        often: then only the other operations are promised.
        """
        found = []
        for level in levels:
            operations = [c.name for c in (ENGINE_OPERATIONS if level == "engine" else SLOT_OPERATIONS)]
            for name in operations:
                if name not in reach.offered or name in failing:
                    continue
                floor = max(self.floor // 10, 1) if name == "clear" else self.floor
                changed = reach.operations[name]["changed"] if name in reach.operations else 0
                if changed < floor:
                    found.append(f"operation {name} took effect {changed} times, promised are {floor}")
        if failing:
            return found
        refused = reach.operations["bad_call"]["refused"] if "bad_call" in reach.operations else 0
        if refused < self.floor and "bad_call" in reach.offered:
            found.append(f"bad_call was refused {refused} times, promised are {self.floor}")
        states = [*(slot_states(levels["slots"], reach) if "slots" in levels else ())]
        states += ENGINE_STATES if "engine" in levels else ()
        for name in states:
            if reach.states[name] < max(self.floor // 10, 1):
                promised = max(self.floor // 10, 1)
                found.append(f"state '{name}' was reached {reach.states[name]} times, promised are {promised}")
        busy = reach.states["three or more live"]
        if busy * 2 < reach.steps:
            found.append(f"three or more requests were live in {busy:,} of {reach.steps:,} steps, promised is half")
        return found


def slot_states(offered: Capabilities, reach: Reach) -> list[str]:
    """States that are promised of a slot allocator with these pools and operations."""
    states = ["pool full"]
    if "paged" in offered.pools or "window" in offered.pools:
        states.append("short of full")
    if "window" in offered.pools:
        states += ["short of window", "second pool of slots full"]
    if "hisparse" in offered.pools:
        states += ["short of logical", "short of device", "second pool of slots full"]
    if "alloc_extend" in reach.offered:
        states += [*(["partial tail"] if offered.page_sizes != (1,) else []), *(f"batch of {n}" for n in range(1, 18))]
    return states


ENGINE_STATES = (
    "rows full",
    "short of rows",
    "row nearly full",
    "over-allocated tail",
    "zero-length member",
    "mid-page chunk",
    "stop inside the draft",
    "resumed",
    "shared page",
    "locked leaf",
    "hole open",
    "duplicate insert",
    "batch evicts its own hit",
    "second pool full",
    "short of window",
    "cursor inside prefix",
    "group open over shortage",
    "lease over finish",
    "device pool full",
    "host pool full",
    "short of device",
    "short of host",
    "buffer smaller than resident",
    "none accepted",
    "some accepted",
    "all accepted",
)

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "quick", soak_steps=48_000, shards=12, examples=40, example_steps=50, pieces=2, floor=200, kernel_cases=40
        ),
        Profile(
            "ci", soak_steps=300_000, shards=60, examples=150, example_steps=60, pieces=6, floor=2_000, kernel_cases=150
        ),
        Profile(
            "nightly",
            soak_steps=1_800_000,
            shards=240,
            examples=400,
            example_steps=80,
            pieces=20,
            floor=10_000,
            kernel_cases=500,
        ),
    )
}
"""soak_steps is that of one level. On two cores quick takes 20 to 30 s, ci about 5 minutes, nightly 15 to 30."""

SHARE = {"cpu": 1, "cuda": 4, "interpret": 10}
"""A lane's share of the CPU's operations, one in so many: a step costs about 1 ms on a GPU, 10 ms interpreted."""


def profile_for(name: str, device: str) -> Profile:
    """The profile in the lane of `device`: steps and floors in the lane's share."""
    share = SHARE[device.partition(":")[0]]
    profile = PROFILES[name]
    if share == 1:
        return profile
    return replace(
        profile,
        soak_steps=profile.soak_steps // share,
        examples=max(profile.examples // share, 2),
        floor=profile.floor // share,
    )
