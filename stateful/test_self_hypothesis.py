"""Hypothesis at home: a failure saved in one lane is tried first in another, and a fuzzer finds the machines.

pytest --pyargs kvcore.stateful --kv-database /mnt/shared/kvcore --kv-device cuda
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from . import options, test_machines
from .faults import GALLERY
from .machines import PathMachine, machine_settings
from .test_self_canaries import py_test
from .verdicts import Broken

NAME = "record_forgotten_in_extend"
CASES = [value for value in vars(test_machines).values() if isinstance(value, type) and hasattr(value, "runTest")]


def reuse_only(database: Path) -> None:
    """What the database has for the paths, on the cpu lane, and nothing that is drawn anew."""
    saved = DirectoryBasedExampleDatabase(database)
    run_state_machine_as_test(PathMachine, settings=machine_settings("quick", database=saved, phases=(Phase.reuse,)))


def test_what_fails_in_one_lane_is_tried_first_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, shared = f"kvcore.stateful.faults:{NAME}", tmp_path / "shared"
    monkeypatch.setattr(options, "current", options.Options(subject=subject))
    with pytest.raises(SkipTest, match="no test cases"):
        reuse_only(tmp_path / "empty")  # nothing is there, so nothing is tried
    asked = ("kvcore.stateful.test_machines::TestPaths", "--kv-subject", subject, "--kv-database", str(shared))
    # The profile quick draws four examples in this lane, in which the fault need not come up.
    done = py_test(*asked, "--kv-device", "interpret", "--kv-profile", "ci", "--hypothesis-seed", "0", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    with pytest.raises(Broken) as caught:
        reuse_only(shared)
    assert caught.value.clause in GALLERY[NAME].clauses


def test_the_machines_are_what_a_fuzzer_collects() -> None:
    """HypoFuzz takes state machines that are classes of their module, without parameters and fixtures, whose database
    is the run's own and that draw at random."""
    assert len(CASES) == 2
    for case in CASES:
        machine: Any = case.runTest._hypothesis_state_machine_class
        assert issubclass(machine, RuleBasedStateMachine)
        assert getattr(inspect.getmodule(case), case.__name__) is case
        assert not getattr(case, "pytestmark", [])
        assert list(inspect.signature(case.runTest).parameters) == ["self"]
        chosen: settings = case.settings
        assert chosen.database == settings().database
        assert not chosen.derandomize or settings().derandomize
        assert Phase.generate in chosen.phases


def test_the_statistics_show_in_how_many_sequences_each_operation_was_tried(tmp_path: Path) -> None:
    done = py_test("kvcore.stateful.test_machines", "--hypothesis-show-statistics", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {name: float(share) for share, name in re.findall(r"^ +\* ([\d.]+)%, (\w+)$", done.stdout, re.MULTILINE)}
    assert {"extend", "decode", "release", "prealloc", "alloc_extend", "alloc_decode", "free"} <= shown.keys()
    assert all(0 < share <= 100 for share in shown.values())


A_FUZZER = """
import pytest
from kvcore.stateful import options

TESTS = ["--collect-only", "-q", "-p", "no:cacheprovider", "--pyargs", "kvcore.stateful.test_machines"]

class Within:
    def pytest_collection_finish(self):
        assert not pytest.main([*TESTS, "--kv-subject", "kvcore"])
        print("outer", options.current.subject)

assert not pytest.main([*TESTS, "--kv-subject", "kvcore.stateful.faults:a_page_freed_twice"], plugins=[Within()])
print("after", options.current.subject)
"""


def test_what_was_asked_for_holds_when_a_fuzzer_calls_the_tests_after_the_run_that_collected_them(
    tmp_path: Path,
) -> None:
    done = subprocess.run([sys.executable, "-c", A_FUZZER], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith(("outer ", "after "))]
    fault = "kvcore.stateful.faults:a_page_freed_twice"
    assert told == [f"outer {fault}", f"after {fault}"]
