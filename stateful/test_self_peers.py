"""The known failures of engines that ship with kvcore: they are well formed, documented, and still fail.

    SGLANG_ROOT=peers/sglang-0.5.23 PYTHONPATH=path/to/the/boot/modules pytest kvcore/stateful/test_self_peers.py

An engine is booted from SGLANG_ROOT or VLLM_ROOT, an unpacked wheel whose folder is named as ours, by `kvpeers`. Each
file is run in a process of its own, with the subject `kvpeers:ENGINE_FAMILY`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .known_failures import read_known_failures
from .replay import Replay

PEERS = Path(__file__).parent / "peers"
FINDINGS = Path(__file__).absolute().parents[2] / "docs" / "findings.md"
FILES = sorted(PEERS.glob("*/*.toml"))
SHARED = sorted(PEERS.glob("*/alone.py"))
SCRIPTS = sorted(set(PEERS.glob("*/*.py")) - set(SHARED))
TOLD = re.compile(r'^### <a id="(\w+)">|^- `(\w+)`( \(script\))?, ([\d., ]+):', re.MULTILINE)
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
import sys
import kvpeers
kvpeers.{boot}
sys.path.insert(0, {folder!r})
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
    return subprocess.run(  # -B: what stands in the folders is packed, so no byte code is left in them
        [sys.executable, "-B", "-W", "ignore", "-c", code.replace("{boot}", boot)],
        env=os.environ | variables,
        text=True,
        capture_output=True,
        timeout=300,
    )


def in_findings() -> dict[str, tuple[str, bool, set[str]]]:
    """What docs/findings.md says of every replay: its section, whether it has scripts, and the releases."""
    found, section = {}, ""
    for begun, replay, script, releases in TOLD.findall(FINDINGS.read_text(encoding="utf-8")):
        section = begun or section
        if replay:
            found[replay] = section, bool(script), set(releases.split(", "))
    return found


def releases_of(name: str) -> set[str]:
    """The releases in whose folders there is a file of this name."""
    return {path.parent.name.partition("-")[2] for path in PEERS.glob(f"*/{name}")}


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


def test_the_findings_tell_which_replays_there_are_and_which_have_scripts() -> None:
    there = {path.stem: releases_of(path.name) for path in PEERS.glob("*/*.replay")}
    assert {replay: releases for replay, (_, _, releases) in in_findings().items()} == there
    with_script = {replay: releases for replay, (_, script, releases) in in_findings().items() if script}
    assert with_script == {path.stem: releases_of(path.name) for path in SCRIPTS}


def test_every_finding_of_a_release_has_a_script_for_each_allocator_that_shows_it() -> None:
    def shown(path: Path) -> tuple[str, str, str]:
        return path.parent.name, path.stem.partition("_")[0], in_findings()[path.stem][0]

    assert {shown(path) for path in PEERS.glob("*/*.replay")} == {shown(path) for path in SCRIPTS}


@pytest.mark.parametrize("path", [*SCRIPTS, *SHARED], ids=name_of)
def test_a_script_is_short_and_needs_the_engine_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert "kvcore" not in {name.partition(".")[0] for name in names}
    assert path in SHARED or len(text.splitlines()) <= 16


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
        code = SCRIPT.format(boot="{boot}", folder=str(script.parent), file=str(script))
        done = in_engine(folder, code, TRITON_INTERPRET=str(int(interpreted)))
        # A script that fails on its way ends with status 1, too.
        shown = done.returncode == 1 and bool(done.stdout) and "Traceback" not in done.stderr
        assert shown, f"{script.name}: {done.returncode} {done.stdout}{done.stderr}"
