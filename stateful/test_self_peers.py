"""The known failures of engines that ship with kvcore: they are well formed, documented, and still fail.

    SGLANG_ROOT=peers/sglang-0.5.23 PYTHONPATH=path/to/the/boot/modules pytest kvcore/stateful/test_self_peers.py

An engine is booted from SGLANG_ROOT or VLLM_ROOT, an unpacked wheel whose folder is named as ours, by `kvpeers`. Each
file is run in a process of its own, with the subject `kvpeers:ENGINE_FAMILY`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .known_failures import read_known_failures
from .replay import Replay

PEERS = Path(__file__).parent / "peers"
FINDINGS = Path(__file__).absolute().parents[2] / "docs" / "findings.md"
FILES = sorted(PEERS.glob("*/*.toml"))
SCRIPTS = sorted(PEERS.glob("*/*.py"))
NAMES = {"sglang": "SGLang", "vllm": "vLLM"}

REPLAY = """
import kvpeers
kvpeers.{boot}
from kvcore.stateful.check import replay_of
from kvcore.stateful.known_failures import read_known_failures, stale
from kvcore.stateful.subjects import load_subject
known = read_known_failures({file!r})
factory = load_subject("kvpeers:{subject}")
for told in stale(known, [], {{entry: replay_of(entry, factory, {device!r}) for entry in known}}):
    print(told)
"""
SCRIPT = """
import runpy
import kvpeers
kvpeers.{boot}
runpy.run_path({file!r}, run_name="__main__")
"""


def name_of(path: Path) -> str:
    return path.relative_to(PEERS).as_posix()


def in_engine(folder: str, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The code in a process in which the engine of this folder can be imported; skips where it is not there."""
    engine = folder.partition("-")[0]
    root = Path(os.environ.get(f"{engine.upper()}_ROOT", ""))
    if root.name != folder or not root.is_dir() or importlib.util.find_spec("kvpeers") is None:
        pytest.skip(f"{NAMES[engine]} is not installed")
    boot = {"sglang": "sglang_token", "vllm": "vllm_blockpool"}[engine]
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code.replace("{boot}", boot)],
        env=os.environ | variables,
        text=True,
        capture_output=True,
        timeout=300,
    )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_entry_has_a_replay_and_stands_in_the_findings(path: Path) -> None:
    told = FINDINGS.read_text(encoding="utf-8")
    for entry in read_known_failures(path):
        assert entry.replay is not None
        replay = Replay.read(entry.replay)
        assert replay.clause == entry.clause
        assert replay.subject.endswith(f":{path.stem.partition('-')[0]}")
        assert 0 < len(replay.operations) <= 7
        assert f"`{entry.replay.stem}`" in told, f"{entry.replay.stem} is not in docs/findings.md"
        if "findings.md#" in entry.issue:
            assert f'<a id="{entry.issue.partition("#")[2]}"></a>' in told
        else:
            assert entry.issue in told


def test_every_replay_belongs_to_an_entry_and_every_script_to_a_replay() -> None:
    named = {entry.replay for path in FILES for entry in read_known_failures(path)}
    assert named == set(PEERS.glob("*/*.replay"))
    for script in SCRIPTS:
        assert script.with_suffix(".replay") in named
        compile(script.read_text(encoding="utf-8"), str(script), "exec")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_replay_still_fails_as_declared(path: Path) -> None:
    family, _, lane = path.stem.partition("-")
    engine, device = path.parent.name.partition("-")[0], lane or "cpu"
    code = REPLAY.format(boot="{boot}", file=str(path), subject=f"{engine}_{family}", device=device)
    done = in_engine(path.parent.name, code, TRITON_INTERPRET="1" if lane else "0")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("folder", sorted({path.parent.name for path in SCRIPTS}))
def test_every_script_shows_the_fault_in_the_engine_alone(folder: str) -> None:
    for script in (script for script in SCRIPTS if script.parent.name == folder):
        interpreted = "TRITON_INTERPRET=1" in script.read_text(encoding="utf-8")
        done = in_engine(folder, SCRIPT.format(boot="{boot}", file=str(script)), TRITON_INTERPRET=str(int(interpreted)))
        assert (done.returncode, bool(done.stdout)) == (1, True), f"{script.name}: {done.stdout}{done.stderr}"
