"""README.md and docs/: their commands parse, their options exist, their links lead somewhere, their example runs.

Commands are what stands in `sh` blocks, in the workflow, and in the text between backticks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cli import parser
from .faults import GALLERY
from .profiles import PROFILES
from .replay import Replay

ROOT = Path(__file__).absolute().parents[2]  # not resolve(): this file is reached through the link in kvcore/
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("**/*.md"))]
WORKFLOWS = sorted((ROOT / "docs").glob("**/*.yml"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the paragraph before it."""

    language: str
    text: str
    before: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(found[1], found[2], text[: found.start()].rstrip().rpartition("\n\n")[2])
        for found in FENCE.finditer(text)
    ]


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command as a person types it, with this Python and without this run's own variables."""
    start = {"kvcore": ["-m", "kvcore.stateful"], "pytest": ["-m", "pytest"], "python": []}
    name, *words = shlex.split(command)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    return subprocess.run(
        [sys.executable, *start[name], *words],
        cwd=cwd,
        env=kept,
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )


def says(printed: str, shown: str) -> bool:
    """Whether the shown lines stand in what was printed, one behind the other; one that ends in "..." is cut there."""
    lines, expected = printed.splitlines(), shown.splitlines()

    def fits(at: int) -> bool:
        here = lines[at : at + len(expected)]
        return len(here) == len(expected) and all(
            line.startswith(right.removesuffix("...").rstrip()) if right.endswith("...") else line.rstrip() == right
            for line, right in zip(here, expected, strict=True)
        )

    return any(fits(at) for at in range(len(lines)))


def commands(path: Path) -> Iterator[str]:
    """What a page tells the reader to type that begins with kvcore, pytest or tox."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yml":
        found = [line.strip().removeprefix("- ").removeprefix("run: ") for line in text.splitlines()]
    else:
        found = [line for block in blocks(text) if block.language == "sh" for line in block.text.splitlines()]
        found += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    for line in found:
        line = re.sub(r"\$\{\{.*?\}\}", "1", line.replace("${{ matrix.lane }}", "cpu"))
        if re.match(r"(kvcore|pytest|tox)( |$)", line):
            yield line


COMMANDS = sorted({(path.relative_to(ROOT).as_posix(), line) for path in PAGES + WORKFLOWS for line in commands(path)})


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_that_is_shown_parses(page: str, line: str, pytestconfig: pytest.Config) -> None:
    name, *words = shlex.split(line, comments=True)
    if name == "kvcore" and words and words != ["--help"]:
        try:
            parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{page}: {line}")
    for option in re.findall(r"--(kv-[a-z-]+)", line):
        pytestconfig.getoption(option.replace("-", "_"))  # ValueError: there is none
    if name == "tox":
        envs = re.findall(r"-e (\w+)", line)
        known = re.findall(r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text(), re.MULTILINE)
        assert set(envs) <= set(known)


def test_commands_are_found() -> None:
    pages = {page for page, _ in COMMANDS}
    assert pages >= {"README.md", "docs/ci.md", "docs/your-kernel.md", "docs/workflows/kvcore.yml"}
    assert ("README.md", "kvcore check") in COMMANDS


def test_every_subcommand_is_in_the_readme() -> None:
    (actions,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    shown = {line.split()[1] for page, line in COMMANDS if page == "README.md" and line.startswith("kvcore ")}
    assert set(actions.choices) <= shown


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_library_example_does_what_it_says() -> None:
    (example,) = (block.text for block in blocks(README.read_text(encoding="utf-8")) if block.language == "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})
    promised = re.findall(r"^print\(.*\) +# (.*)$", example, re.MULTILINE)
    assert printed.getvalue().splitlines() == promised
    assert promised


@pytest.mark.packaging
def test_the_failure_that_is_shown_is_what_is_printed(tmp_path: Path) -> None:
    found = blocks(README.read_text(encoding="utf-8"))
    (at,) = (
        i
        for i, block in enumerate(found)
        if "--subject kvcore.stateful.faults:" in block.text and block.language == "sh"
    )
    command, printed, file = (block.text for block in found[at : at + 3])
    done = run(f"{command.strip()} -n 1", cwd=tmp_path)
    assert done.returncode == 1
    assert says(done.stdout, printed), f"README.md shows\n{printed}\nit is\n{done.stdout}"
    (path,) = tmp_path.glob("*.replay")
    assert path.name in printed
    assert path.read_text() == file
    assert Replay.parse(file).clause in GALLERY["a_page_freed_twice"].clauses


def test_the_figures_of_the_profiles_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    for profile in PROFILES.values():
        per_level = f"{profile.soak_steps:,}"
        machines = f"{profile.pieces} x {profile.examples} x {profile.example_steps}"
        row = f"| `{profile.name}` | {per_level} | {machines} | {profile.kernel_cases} | {profile.floor:,} |"
        assert row in text, row
