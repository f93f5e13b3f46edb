"""The gallery's scoreboard: the pages that show it are true, and a fault that is missed is said and ends with 1."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ..contract import CONTRACT
from .clause_checks import where_checked
from .cli import main
from .faults import GALLERY, hunt
from .faults.scoreboard import Score, by_clause, figures, page, row, wrong
from .reach import Reach
from .soak import soak
from .subjects.kvcore import kvcore

ROOT = Path(__file__).absolute().parents[2]
PAGE = ROOT / "docs" / "faults.md"
KEYS = ["id", "source", "clauses", "caught", "caught_by", "driver", "operations", "seconds", "replay_length"]


def shown() -> dict[str, str]:
    """The lines of docs/faults.md, by fault."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return {found[1]: line for line in lines if (found := re.match(r"\| `(\w+)` \|", line))}


def test_the_page_shows_every_fault_with_its_story_source_and_clauses() -> None:
    assert sorted(shown()) == sorted(GALLERY)
    for fault in GALLERY.values():
        cells = shown()[fault.id].split(" | ")
        assert cells[1:4] == [fault.story, fault.source, " ".join(fault.clauses)]
        assert cells[4].split(",")[0] in fault.clauses


def quickly_found() -> list[str]:
    """One in nine of those that the page says are found within a second or so."""
    lines = {name: line.split(" | ") for name, line in shown().items() if GALLERY[name].device == "cpu"}
    return [name for name, cells in lines.items() if int(cells[5].replace(",", "")) < 1_000][::9]


@pytest.mark.parametrize("name", quickly_found())
def test_the_page_shows_what_a_hunt_finds(name: str) -> None:
    score = Score.of(GALLERY[name], hunt.hunt(GALLERY[name], seed=0))
    assert row(score) == shown()[name], "kvcore faults --markdown docs/faults.md writes the page anew"


@pytest.mark.parametrize("path", [PAGE, ROOT / "README.md"], ids=lambda path: path.name)
def test_the_table_by_clause_is_the_gallerys(path: Path) -> None:
    assert by_clause() in path.read_text(encoding="utf-8"), f"{path.name} has to hold\n{by_clause()}"


@pytest.mark.parametrize("clause", CONTRACT)
def test_every_clause_is_checked_somewhere_and_broken_by_a_fault(clause: str) -> None:
    assert where_checked()[clause]
    assert any(clause in fault.clauses for fault in GALLERY.values())


def test_a_fault_that_is_missed_or_named_by_another_clause_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = replace(GALLERY["a_page_freed_twice"], id="sound", factory=kvcore)
    monkeypatch.setitem(GALLERY, "sound", sound)
    monkeypatch.setattr(hunt, "PIECE", {"cpu": 50})
    monkeypatch.setattr(hunt, "profile_for", lambda *call: type("Short", (), {"soak_steps": 200}))
    missed = Score.of(sound, hunt.hunt(sound, seed=0))
    assert (missed.caught, missed.caught_by, missed.operations, missed.replay_length) == (False, "", 400, None)
    other = replace(missed, id="other", caught_by="KV-3")
    assert wrong([missed, other]) == [
        "sound was missed in 400 operations",
        "other was named by KV-3; what may name it is KV-8 or KV-1",
    ]


@pytest.mark.parametrize(("clause", "status"), [("KV-8", 0), ("KV-3", 1), ("", 1)])
def test_the_command_writes_what_it_shows_and_its_status_is_the_verdict(
    clause: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = hunt.Found(clause, "soak engine", 7, 0.25, None, "")
    monkeypatch.setattr(hunt, "hunt_all", lambda faults, seed: ((fault, found) for fault in faults))
    monkeypatch.chdir(tmp_path)
    assert main(["faults", "--only", "a_page_freed_twice", "--seed", "3", "--json", "out.json"]) == status
    data = json.loads(Path("out.json").read_text())
    assert data["seed"] == 3
    (entry,) = data["faults"]
    assert list(entry) == KEYS
    assert (entry["caught"], entry["caught_by"]) == (status == 0, clause)
    printed = capsys.readouterr().out
    assert "median 0.25 s of CPU, at most 0.25 s" in printed
    assert ("a_page_freed_twice was " in printed) == (status == 1)


def test_figures_are_medians_and_maxima_of_each_lane() -> None:
    def score(name: str, seconds: float, length: int | None) -> Score:
        return Score(name, "", (), True, "KV-1", "soak", 1, seconds, length)

    board = [score("a_page_freed_twice", 1, 2), score("a_stale_row_entry", 5, 8), score("evicted_by_age", 2, 3)]
    told = list(figures([*board, score("kernel_loads_without_a_default", 9, None)]))
    assert told[0].startswith("lane cpu: median 2.00 s of CPU, at most 5.00 s")
    assert told[1].startswith("lane interpret: median 9.00 s")
    assert told[2].startswith("replays: median 3 operations, at most 8")


def test_a_page_has_a_line_for_each_score() -> None:
    score = Score.of(GALLERY["a_page_freed_twice"], hunt.Found("KV-8", "soak engine", 1234, 0.5, None, ""))
    assert row(score) in page([score], seed=0).splitlines()
    assert row(score).endswith("| KV-8, soak engine | 1,234 | a call |")


def test_what_the_core_believes_of_itself_is_not_enough() -> None:
    """In checked mode, too: free list and the core's book of what is handed out agree, and the owners know better."""
    fault = GALLERY["a_neighbour_freed_in_its_place"]
    for checked in (False, True):
        failure = soak("slots", fault.factory, steps=2_000, seed=1, reach=Reach(), checked=checked)
        assert failure is not None
        assert failure.config.is_checked == checked
        assert failure.broken.clause in fault.clauses
