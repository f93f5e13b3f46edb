"""Canaries: every driver is handed an allocator that is broken, and has to say so. A harness that reports nothing is
noticed here.

Each is called as a person calls it, in a process of its own. The cpu lane of `kvcore check` and `replay` has its canary
in test_self_command_line, the hunt in the interpreter in test_self_gallery.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .test_self_command_line import kv

BROKEN = """
from kvcore.stateful.faults import record_forgotten_in_extend
from kvcore.stateful.subjects.kvcore_slots import KvcoreSlots

class OneSlotLess(KvcoreSlots):
    def alloc_extend(self, *call):
        return super().alloc_extend(*call)[:-1]

def both(config):
    return OneSlotLess(config) if config.level == "slots" else record_forgotten_in_extend(config)
"""
"""A subject that is broken on both levels, from its first extend on: so early that Hypothesis has little to shrink."""


def py_test(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """pytest in a folder that is nobody's checkout, from where modules can be imported."""
    start = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", *words]
    paths = os.pathsep.join(filter(None, (str(cwd), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    env = {**kept, "PYTHONPATH": paths}
    return subprocess.run(start, cwd=cwd, env=env, text=True, capture_output=True, timeout=240)


def told(printed: str) -> set[str]:
    """The clauses that a run says are broken."""
    return set(re.findall(r"^(KV-\d+) \(.*\) is broken: ", printed, re.MULTILINE))


def test_soak_and_machines_under_pytest_report_a_fault_of_either_level(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    soak, machines = (
        "kvcore.stateful.test_soak::test_every_clause_holds_after_every_operation",
        "kvcore.stateful.test_machines",
    )
    asked = (f"{soak}[engine-0]", f"{soak}[slots-0]", f"{machines}::TestPaths", f"{machines}::TestAllocator")
    done = py_test(*asked, "--kv-subject", "broken:both", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 failed" in done.stdout.splitlines()[-1]
    assert told(done.stdout) == {"KV-4", "KV-5"}
    assert done.stdout.count("REPRO: kvcore replay ") >= 4  # one a finding; a soak goes on after the first


@pytest.mark.parametrize(
    ("name", "clause", "driver"),
    [
        ("a_release_that_waits_for_the_device", "KV-14", "soak"),
        ("kernel_takes_no_page_at_page_size_1", "KV-12", "kernel"),
    ],
)
def test_a_check_in_a_kernel_lane_reports_what_only_that_lane_shows(
    name: str, clause: str, driver: str, tmp_path: Path
) -> None:
    """The lockstep, and each kernel alone. In the lane cuda it is the same call with another --device."""
    subject = f"kvcore.stateful.faults:{name}"
    done = kv(
        "check", "--device", "interpret", "--subject", subject, "-n", "1", "-x", "--json", "out.json", cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert told(done.stdout) == {clause}
    failure = json.loads((tmp_path / "out.json").read_text())["failure"]
    assert failure["clause"] == clause
    if driver == "kernel":
        assert failure["replay"] is None
        return
    assert kv("replay", failure["replay"], cwd=tmp_path).returncode == 1
    assert kv("replay", failure["replay"], "--device", "cpu", cwd=tmp_path).returncode == 0


BREAK_A_KERNEL = """
from kvcore.kernels import alloc_decode

reference = alloc_decode.alloc_decode_reference

def one_off(*call):
    out = reference(*call)
    out[-1:] += 1
    return out

alloc_decode.alloc_decode_reference = one_off
"""


def test_the_properties_of_the_kernels_report_a_broken_one(tmp_path: Path) -> None:
    (tmp_path / "break_a_kernel.py").write_text(BREAK_A_KERNEL)
    properties = ("kvcore.properties.test_kernels", "-k", "walk and alloc_decode", "-p", "kvcore.stateful.plugin")
    done = py_test(*properties, "-p", "break_a_kernel", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed" in done.stdout.splitlines()[-1]


def test_a_workload_reports_a_fault(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [1, 2, 3]}
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({**line, "timestamp": 100 * i}) + "\n" for i in range(4)))
    subject = "kvcore.stateful.faults:record_forgotten_in_decode"
    call = ("workload", "t.jsonl", "--spec", "none")
    done = kv(*call, "--subject", subject, "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert told(done.stdout) == {"KV-4"}
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "broken"
