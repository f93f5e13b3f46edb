"""docs/your-allocator.md, followed word by word: its files written, its commands run, what they print compared with it.

Blocks are read as in test_self_your_kernel. `kvcore` is called in this process, on a shorter profile than `quick`: what
it finds and prints is the same. Before the section on known failures the allocator is put back as it was.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import profiles
from .cli import main
from .operations import SLOT_OPERATIONS
from .subjects.protocol import SlotAllocator
from .test_self_readme import ROOT, Block, blocks, run, says
from .test_self_subjects import FEW
from .test_self_your_kernel import patched

PAGE = ROOT / "docs" / "your-allocator.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(heading: str) -> list[Block]:
    """The blocks of a section."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return blocks(text)


class Reader:
    """Somebody who does in a folder what the page says."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd

    def follow(self, found: list[Block]) -> list[int]:
        """Writes the files, runs the commands, compares what they print; the exit statuses."""
        statuses, printed = [], ""
        for block in found:
            name = re.findall(r"[Ii]n\s+`([\w.]+)`:\Z", block.before)
            if block.language == "sh":
                status, printed = self.types(block.text.strip())
                statuses.append(status)
            elif block.language == "text":
                assert says(printed, block.text), f"the page shows\n{block.text}\nit is\n{printed}"
            elif block.language == "diff":
                path = self.folder / name[0]
                path.write_text(patched(path.read_text(), block.text))
            elif name:
                (self.folder / name[0]).write_text(block.text)
        return statuses

    def types(self, command: str) -> tuple[int, str]:
        """The exit status of a command and what it prints."""
        self.forget()
        if command.startswith("kvcore "):
            status, told = main(shlex.split(command)[1:]), self.capfd.readouterr()
            printed, errors = told.out, told.err
        else:
            done = run(command, cwd=self.folder)
            status, printed, errors = done.returncode, done.stdout, done.stderr
        assert "Traceback" not in printed + errors
        return status, printed

    def forget(self) -> None:
        """The next import reads the files as they are now."""
        for module in ("my_pool", "my_adapter"):
            sys.modules.pop(module, None)


@pytest.fixture
def reader(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setitem(profiles.PROFILES, "quick", FEW)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions of a file within a second look the same
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    reader = Reader(tmp_path, capfd)
    yield reader
    reader.forget()


FIRST = section("From nothing to the first finding")


@pytest.mark.packaging
def test_from_nothing_to_an_allocator_that_holds(reader: Reader) -> None:
    """Checked: broken; replayed: broken; mended: the replay holds, the run holds, and so do its own tests."""
    assert reader.follow([block for block in FIRST if "--pyargs" not in block.text]) == [1, 1, 0, 0, 0]


@pytest.mark.packaging
def test_what_is_known_fails_nothing(reader: Reader) -> None:
    """The entry's replay is the file that the first part of the page has left."""
    reader.follow(FIRST[:2])
    shown = next(block.text for block in FIRST if block.language == "text")
    ((config, operation),) = re.findall(r"^on +(.*)\n +1  (.*)$", shown, re.MULTILINE)
    replay = f"config {json.dumps(ast.literal_eval(config))}\n{operation}\n"
    (reader.folder / "kvcore-KV-7-0.replay").write_text(replay)
    assert reader.follow(section("While it is not mended")) == [0]


def test_every_operation_has_its_row() -> None:
    rows = {
        name: arguments
        for cell in re.findall(r"^\| (`\w+\(.*?)(?= \|)", TEXT, re.MULTILINE)
        for name, arguments in re.findall(r"`(\w+)\((.*?)\)`", cell)
    }
    assert set(rows) == {operation.name for operation in SLOT_OPERATIONS} | {"free_device_buffer"}
    for name, arguments in rows.items():
        expected = list(inspect.signature(getattr(SlotAllocator, name)).parameters)[1:]
        assert re.findall(r"\w+", arguments) == expected, name


def test_the_function_does_what_the_page_says(reader: Reader) -> None:
    (example,) = (block.text for block in FIRST if "import check\n" in block.text)
    reader.follow(FIRST[:2])
    with pytest.raises(AssertionError, match="KV-7"):
        exec(compile(example, PAGE.name, "exec"), {})
    reader.follow([block for block in FIRST if block.language == "diff"])
    reader.forget()
    exec(compile(example, PAGE.name, "exec"), {})
