"""Hunting a fault of the gallery the way `kvcore check` would, with no strategy that depends on the fault.

found = hunt(GALLERY["a_page_freed_twice"], seed=0)
found.clause, found.operations, found.seconds
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...kernels.dispatch import OPERATIONS
from ..check import KernelFailure, Task, perform
from ..minimize import minimize
from ..profiles import profile_for
from ..reach import Reach
from ..replay import Failure
from ..report import failure_report
from . import GALLERY, Fault


@dataclass(frozen=True)
class Found:
    """How a fault was found, or that it was not (clause ""): operations and seconds count from the first operation on.

    seconds are of CPU, so that what else the machine does is not in them. failure is minimised; a kernel that fails
    alone has none, its call is in `report`.
    """

    clause: str
    driver: str
    operations: int
    seconds: float
    failure: Failure | None
    report: str


PIECE = {"cpu": 250, "interpret": 25}
"""Operations of a level between two of the other, so that none waits long for its turn."""


def hunt(fault: Fault, *, seed: int) -> Found:
    """As much as the quick profile's soak in the fault's lane does, on one core, levels and kernels taking turns."""
    profile, reach, started = profile_for("quick", fault.device), Reach(), time.process_time()
    subject, piece_steps = f"kvcore.stateful.faults:{fault.id}", PIECE[fault.device]
    for piece in range(profile.soak_steps // piece_steps):
        turn = [("soak", level, piece_steps) for level in ("engine", "slots")]
        if fault.device != "cpu":
            turn += [("kernel", op, profile.kernel_cases // 2) for op in OPERATIONS[piece % 2 :: 2]]
        for driver, target, steps in turn:
            task = Task(driver, target, seed * 1_000_003 + piece, steps, subject, fault.device, "quick")
            exercised, failure = perform(task)
            reach.add(exercised)
            seconds = time.process_time() - started
            if isinstance(failure, KernelFailure):
                return Found(failure.clause, task.title, reach.steps, seconds, None, failure.text)
            if failure:
                return _told(fault, minimize(failure, fault.factory), task, reach.steps, seconds, seed)
    return Found("", "", reach.steps, time.process_time() - started, None, "")


def _told(fault: Fault, small: Failure, task: Task, steps: int, seconds: float, seed: int) -> Found:
    path = Path(f"kvcore-{small.broken.clause}-{seed}.replay")
    report = failure_report(small, fault.factory, path, subject=task.subject, device=fault.device, seed=seed)
    return Found(small.broken.clause, task.title, steps, seconds, small, report)


def hunt_all(faults: Sequence[Fault], *, seed: int) -> Iterator[tuple[Fault, Found]]:
    """Each fault with what came of it, on all cores; those of the kernels in processes that are the interpreter's."""
    spawn = multiprocessing.get_context("spawn")
    for device in ("cpu", "interpret"):
        chosen = [fault for fault in faults if fault.device == device]
        if not chosen:
            continue
        workers = min(os.cpu_count() or 1, len(chosen))
        with ProcessPoolExecutor(workers, spawn, _enter_lane, (device,)) as pool:
            hunts: list[Future[Any]] = [pool.submit(_hunt, fault.id, seed) for fault in chosen]
            for fault, found in zip(chosen, hunts, strict=True):
                yield fault, found.result()


def _enter_lane(device: str) -> None:
    """A process of the lane, on one core: torch's own threads would count as seconds, too."""
    if device == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"  # Triton is not imported yet
    import torch

    torch.set_num_threads(1)


def _hunt(name: str, seed: int) -> Found:
    return hunt(GALLERY[name], seed=seed)
