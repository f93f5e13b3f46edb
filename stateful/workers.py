"""The tasks of a check on all workers, one of which may die of what it does.

for task, surveyed in outcomes(tasks, workers=2, survey):
    ...

Results come in the order of the tasks. Where a task keeps a journal, a process that dies is a finding: the task is run
again without what killed it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .child import died
from .findings import last_words
from .reach import Reach
from .replay import Failure

if TYPE_CHECKING:
    from .check import Surveyed, Task

DEATHS = 8
"""Times that a task may kill its process, each time without what did so before; then it is given up."""


def outcomes(
    tasks: Sequence[Task], workers: int, survey: Callable[[Task], Surveyed]
) -> Iterator[tuple[Task, Surveyed]]:
    """Each task with what came of it. What was not started when the caller stops is left out."""
    if workers == 1 and not any(task.journal for task in tasks):
        yield from ((task, survey(task)) for task in tasks)
        return
    waiting = list(tasks)
    while waiting:
        with _pool(workers, waiting[0]) as pool:
            futures: list[Future[Any]] = [pool.submit(survey, task) for task in waiting]
            try:
                for future in futures:
                    result = future.result()
                    yield waiting.pop(0), result
            except BrokenProcessPool:
                pass
            finally:
                for future in futures:
                    future.cancel()
        if waiting:  # this one has died, or was killed with the one that has: alone it shows
            task = waiting.pop(0)
            yield task, _alone(task, survey)
            if task.journal is None:
                return


def _alone(task: Task, survey: Callable[[Task], Surveyed]) -> Surveyed:
    """A task in processes of its own, as many as it kills."""
    deaths: list[Failure] = []
    result: Any = None
    while result is None and len(deaths) < DEATHS:
        with _pool(1, task) as pool:
            try:
                result = pool.submit(survey, task).result()
            except BrokenProcessPool:
                failure = _of(task)
                if failure is None:
                    return _unexplained(task)
                deaths.append(failure)
                task = replace(task, left_out=(*task.left_out, failure.broken.key[1:]))
    surveyed = result or _unexplained(task)
    for failure in deaths:
        surveyed.times[failure.broken.key] += 1
        if not task.is_old(failure.broken.key):
            surveyed.failures.append(failure)
    told: Surveyed = surveyed
    return told


def _of(task: Task) -> Failure | None:
    """The failure that the journal of a dead process tells of."""
    if task.journal is None or (told := last_words(Path(task.journal))) is None:
        return None
    config, operations, situation = told
    return died(config, operations, situation, None)


def _unexplained(task: Task) -> Surveyed:
    from .check import KernelFailure, Surveyed

    told = f"the process of '{task.title}', or of one beside it, died: a kernel left its memory"
    return Surveyed(Reach(), kernel=KernelFailure(task.target, told, "KV-13"))


def _pool(workers: int, task: Task) -> ProcessPoolExecutor:
    # spawn: a forked child could not use a GPU that its parent has touched.
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (task.device,))


def _begin(device: str) -> None:
    """Workers share the cores, so torch's own threads would only get in each other's way; and they share the GPUs."""
    import torch

    torch.set_num_threads(1)
    if device == "cuda":
        (number,) = multiprocessing.current_process()._identity[-1:]
        torch.cuda.set_device((number - 1) % torch.cuda.device_count())
