"""The command line, in processes of its own: exit status, files written, one clear line for a wrong call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .subjects import UnknownSubject, load_subject


def kv(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvcore.stateful", *words], cwd=cwd, text=True, capture_output=True, timeout=240
    )


def test_a_broken_subject_ends_with_1_a_replay_file_and_json(tmp_path: Path) -> None:
    subject = "kvcore.stateful.faults:a_page_freed_twice"
    done = kv("check", "-x", "--subject", subject, "-n", "1", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    (path,) = tmp_path.glob("kvcore-*.replay")
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["verdict"] == "broken"
    assert data["failure"]["clause"] in ("KV-8", "KV-1")
    assert data["failure"]["replay"] == path.name
    assert data["clauses"][data["failure"]["clause"]]["violations"] == 1
    why = "asked of lockstep subjects only"
    assert data["clauses"]["KV-12"] == {"asked": False, "checks": 0, "violations": 0, "why": why}
    assert done.stdout.count("REPRO: ") == 1
    again = kv("replay", path.name, cwd=tmp_path)
    assert again.returncode == 1
    assert again.stdout.splitlines()[0] == next(line for line in done.stdout.splitlines() if "is broken" in line)
    assert kv("replay", path.name, "--subject", "kvcore", cwd=tmp_path).returncode == 0
    assert kv("replay", path.name, "--minimize", cwd=tmp_path).returncode == 1
    assert (tmp_path / f"{path.name}.min").exists()
    contract = kv("contract", cwd=tmp_path)
    assert contract.returncode == 0
    assert f"last run: {subject}" in contract.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "--subject", "nobody"], "nobody"),
        (["check", "--subject", "kvcore.stateful.faults:none"], "none"),
        (["check", "--prof", "quick"], "unrecognized arguments"),
        (["check", "--profile", "slow"], "invalid choice"),
        (["check", "-n", "0"], "at least 1"),
        (["replay", "missing.replay"], "missing.replay"),
        (["replay", "broken.replay"], "line 1"),
        (["workload", "missing.jsonl"], "missing.jsonl"),
        (["faults", "--only", "nothing"], "nothing"),
        (["faults", "--only", "a_page_freed"], "near are a_page_freed_twice"),
        (["faults", "--only", "a_page_freed_twice", "--device", "interpret"], "shows in the lane cpu"),
        (["check", "--kernel", "alloc_decode"], "OP=pkg.mod:fn"),
        (["check", "--seed", "-1"], "at least 0"),
        ([], "COMMAND"),
        (["fly"], "invalid choice"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_clear_line(words: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "broken.replay").write_text("config {\n")
    done = kv(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_an_unknown_subject_says_what_was_tried() -> None:
    for name in ("nobody", "no.such.module:factory", "kvcore.stateful.faults:no_such_fault", "a:b:c", ":x", "kvcore:"):
        with pytest.raises(UnknownSubject, match=name):
            load_subject(name)
