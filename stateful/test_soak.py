"""The seeded soak under pytest, against the subject that the options name.

pytest --pyargs kvcore.stateful --kv-profile ci --kv-seed 7
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from . import options
from .check import Task, levels_of, replay_of, survey, tasks_of
from .known_failures import Known, read_known_failures, stale
from .profiles import profile_for
from .report import write_and_tell
from .subjects import load_subject

CHOSEN = options.current
KNOWN = read_known_failures(CHOSEN.known_failures) if CHOSEN.known_failures else ()
TASKS = [
    task
    for task in tasks_of(
        profile_for(CHOSEN.profile, CHOSEN.device), ("engine", "slots"), CHOSEN.subject, CHOSEN.device, CHOSEN.seed
    )
    if task.driver == "soak"
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.target}-{task.seed}")
def test_every_clause_holds_after_every_operation(task: Task) -> None:
    if task.target not in levels_of(load_subject(task.subject), task.device):
        pytest.skip(f"not asked: {task.subject} does not offer the {task.target} level")
    left_out = tuple((entry.operation, entry.when) for entry in KNOWN if entry.never)
    surveyed = survey(replace(task, known=KNOWN, left_out=left_out))
    if surveyed.failures:
        where = {"subject": task.subject, "device": task.device, "seed": task.seed}
        told = [write_and_tell(failure, **where)[1] for failure in surveyed.failures]  # type: ignore[arg-type]
        pytest.fail("\n\n".join(told), pytrace=False)
    assert surveyed.reach.steps == task.steps or surveyed.times


@pytest.mark.parametrize("entry", [entry for entry in KNOWN if entry.replay], ids=str)
def test_a_known_failure_fails_still(entry: Known) -> None:
    broke = replay_of(entry, load_subject(CHOSEN.subject), CHOSEN.device)
    assert not stale([entry], [], {entry: broke})
