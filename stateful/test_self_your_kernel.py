"""docs/your-kernel.md, followed word by word: its files written, its commands run, what they print compared with it.

A block that follows "In `file`:" is the file's content, or a diff to it; a `sh` block is run in that folder; a `text`
block is what the command before it prints. A line that ends in "..." is cut there. Not followed: the GPU's section.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .test_self_readme import ROOT, Block, blocks, run, says

PAGE = ROOT / "docs" / "your-kernel.md"
HEADINGS = ("An example in torch", "An example in Triton")


def section(heading: str) -> list[Block]:
    """The blocks of a section."""
    (text,) = re.findall(
        rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return blocks(text)


def patched(source: str, diff: str) -> str:
    """The file after the diff: its lines with a minus give way to those with a plus; the others stay."""
    lines = diff.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in ("- ", "+ "))
    assert source.count(old) == 1, f"the file has not these lines, or has them twice:\n{old}"
    return source.replace(old, new)


@pytest.mark.packaging
@pytest.mark.parametrize("heading", HEADINGS)
def test_what_the_page_shows_is_what_happens(heading: str, tmp_path: Path) -> None:
    followed = {"file": 0, "diff": 0, "text": 0}
    statuses = []
    printed = ""
    for block in section(heading):
        if block.language == "sh":
            done = run(block.text.strip(), cwd=tmp_path)
            statuses.append(done.returncode)
            printed = done.stdout
            assert "Traceback" not in done.stdout + done.stderr
        elif block.language == "text":
            assert says(printed, block.text), f"the page shows\n{block.text}\nit is\n{printed}"
            followed["text"] += 1
        else:
            (name,) = re.findall(r"[Ii]n\s+`([\w.]+)`:\Z", block.before)
            path = tmp_path / name
            what = "diff" if block.language == "diff" else "file"
            path.write_text(patched(path.read_text(), block.text) if what == "diff" else block.text)
            followed[what] += 1
    # Broken as shown, then fixed: everything after the first command holds.
    assert statuses == [1] + [0] * (len(statuses) - 1)
    assert len(statuses) >= 2
    assert all(followed.values()), followed


def test_every_operation_has_its_row() -> None:
    from ..kernels.dispatch import OPERATIONS
    from ..properties import operations

    rows = dict(re.findall(r"^\| `(\w+)` \| `fn\((.*?)\)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    known = dict(re.findall(r"^\| (\w+) +\| fn\((.*?)\)", operations.__doc__ or "", re.MULTILINE))
    assert rows == known
    assert set(rows) == set(OPERATIONS)
