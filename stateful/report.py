"""A failure as text: the operations, the clause in one sentence, the page map around it, one line to paste.

print(failure_report(failure, path, subject="kvcore", device="cpu", seed=0))
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import CONTRACT
from ..records import FIELDS
from ..snapshots import Snapshot
from .child import can_die
from .configuration import Configuration
from .minimize import minimize
from .page_map import page_map
from .replay import Failure, to_replay
from .runner import Runner
from .subjects import load_subject
from .verdicts import Broken, Held

SHOWN = 40
"""Operations that a report prints: a sequence that could not be made smaller has its end shown."""


def write_and_tell(failure: Failure, *, subject: str, device: str, seed: int) -> tuple[Path, str]:
    """Minimise, write the replay file into the current folder, and tell. Raises OSError.

    The file is kvcore-CLAUSE-SEED.replay; one of that name that holds something else is kept, and this one numbered.
    """
    factory = load_subject(subject)
    small = minimize(failure, factory)
    text = to_replay(small, subject=subject, device=device, seed=seed).text()
    name, number = f"kvcore-{small.broken.clause}-{seed}", 1
    path = Path(f"{name}.replay")
    while path.exists() and path.read_text(encoding="utf-8") != text:
        number += 1
        path = Path(f"{name}-{number}.replay")
    path.write_text(text, encoding="utf-8")
    return path, failure_report(small, factory, path, subject=subject, device=device, seed=seed)


def failure_report(
    failure: Failure, factory: Callable[[Configuration], Any], path: Path, *, subject: str, device: str, seed: int
) -> str:
    """Runs the sequence once more to see the state around its last operation."""
    clause, earlier = CONTRACT[failure.broken.clause], len(failure.operations) - SHOWN
    lines = [
        f"{clause.id} ({clause.name}) is broken: {failure.broken.message}",
        f"  {clause.sentence}",
        "",
        f"on     {failure.config.to_json()}",
        *([f"       {earlier:,} operations before these are in the file"] if earlier > 0 else []),
        *(f"{i:>5}  {operation}" for i, operation in enumerate(failure.operations, start=1) if i > earlier),
        "       ^ here" if failure.operations else "       before the first operation",
        "",
        _map(failure, factory),
        "",
        f"REPRO: kvcore replay {path} --subject {subject} --device {device}   # seed {seed}, {versions()}",
    ]
    return "\n".join(lines)


def versions() -> str:
    """The versions that a result depends on."""
    found = [f"python {platform.python_version()}"]
    for name in ("kvcore", "torch", "triton", "numpy"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _map(failure: Failure, factory: Callable[[Configuration], Any]) -> str:
    """The page map before and after the last operation."""
    if can_die(factory, failure.config.level, failure.config.device):
        return "(no page map: the subject can end the process)"
    try:
        runner = Runner(failure.config, factory)
        for operation in failure.operations[:-1]:
            runner.step(operation)
        before = state_of(runner)
        try:
            for operation in failure.operations[-1:]:
                runner.step(operation)
            runner.finish()
        except Broken:
            pass
        return page_map(before, state_of(runner))
    except Broken as broken:
        return f"(no page map: {broken})"


def state_of(runner: Runner) -> Snapshot:
    """What the subject shows, in lockstep its device; for a slot allocator, which has no rows, what the ledger knows is
    held is put in."""
    device: Any = getattr(runner.subject, "device", None)
    state: Snapshot = device.snapshot() if hasattr(device, "snapshot") else runner.checker.look()
    if runner.config.level == "engine":
        return state
    held: list[Held] = list(runner.ledger.live.values())
    size, width = runner.config.page_size, max((h.allocated for h in held), default=1)
    slots = np.zeros((len(held) + 1, width), dtype=np.int32)
    records = np.zeros((len(FIELDS), len(held) + 1), dtype=np.int64)
    for row, one in enumerate(held, start=1):
        position = np.arange(one.allocated)
        slots[row, : one.allocated] = np.array(one.pages)[position // size] * size + position % size
        records[1:3, row] = one.allocated
    bound = {row: one.number for row, one in enumerate(held, start=1)}
    return Snapshot(state.page_size, state.context_len, state.pools, bound, (), records, slots)
