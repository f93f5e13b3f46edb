"""The seeded soak under pytest, against the subject that the options name.

pytest --pyargs kvcore.stateful --kv-profile ci --kv-seed 7
"""

from __future__ import annotations

import pytest

from . import options
from .check import Task, levels_of, perform, tasks_of
from .profiles import profile_for
from .replay import Failure
from .report import write_and_tell
from .subjects import load_subject

CHOSEN = options.current
TASKS = [
    task
    for task in tasks_of(
        profile_for(CHOSEN.profile, CHOSEN.device), ("engine", "slots"), CHOSEN.subject, CHOSEN.device, CHOSEN.seed
    )
    if task.driver == "soak"
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.target}-{task.seed}")
def test_every_clause_holds_after_every_operation(task: Task) -> None:
    factory = load_subject(task.subject)
    if task.target not in levels_of(factory, task.device):
        pytest.skip(f"not asked: {task.subject} does not offer the {task.target} level")
    reach, failure = perform(task)
    if isinstance(failure, Failure):
        _, told = write_and_tell(failure, subject=task.subject, device=task.device, seed=task.seed)
        pytest.fail(told, pytrace=False)
    assert reach.steps == task.steps
