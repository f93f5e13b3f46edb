"""The file of known failures: what it has to say, what it covers, and what it says when an entry no longer fails.

    pytest kvcore/stateful/test_self_known_failures.py

The allocator under test keeps a page of a call that is short of room, and ends in an error when it is cleared.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import profiles
from .cli import main
from .known_failures import Known, read_known_failures, stale
from .test_self_subjects import FEW, Whole


class Leaks(Whole):
    """Two bugs."""

    def short(self) -> Any:
        self.free_list = self.free_list[1:]

    def clear(self) -> None:
        if hasattr(self, "free_list"):
            CLEARS.append(1)
            raise KeyError("clear")
        super().clear()


class Fixed(Whole):
    """None any more."""


CLEARS: list[int] = []
"""One for each clear that was launched in this process."""

ENTRY = {
    "clause": "KV-7",
    "operation": "alloc*",
    "when": "short of full*",
    "reason": "a page is lost",
    "issue": "#12",
}
CLEAR = {"clause": "KV-5", "operation": "clear", "when": "legal*", "reason": "is not there", "issue": "owner/engine#7"}
SHORT = 'config {"page_size": 1, "num_pages": 1, "max_requests": 1, "context_len": 1, "level": "slots"}\n'
REPLAYS = {
    "short.replay": f"{SHORT}alloc request=1 tokens=2\n",
    "clear.replay": f"{SHORT}clear\n",
    "holds.replay": SHORT,
}


def write(*entries: dict[str, Any]) -> str:
    """known.toml, in the current folder."""
    lines = []
    for entry in entries:
        lines.append("[[failure]]")
        lines += [f"{name} = {str(value).lower() if value is True else repr(value)}" for name, value in entry.items()]
    Path("known.toml").write_text("\n".join(lines) + "\n")
    return "known.toml"


@pytest.fixture(autouse=True)
def a_short_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(profiles.PROFILES, "quick", FEW)
    monkeypatch.chdir(tmp_path)
    CLEARS.clear()
    for name, text in REPLAYS.items():
        (tmp_path / name).write_text(text)


Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    """The exit status and what is printed by `kvcore check --known-failures` of a subject."""

    def run(subject: type[Whole], file: str) -> tuple[int, str]:
        name = f"{__name__}:{subject.__name__}"
        status = main(["check", "--subject", name, "-n", "1", "--known-failures", file])
        told = capfd.readouterr()
        assert "Traceback" not in told.out + told.err
        return status, told.out + told.err

    return run


def test_what_is_known_is_told_as_known_and_fails_nothing(said: Said) -> None:
    status, printed = said(Leaks, write({**ENTRY, "replay": "short.replay"}, CLEAR))
    assert status == 0, printed
    assert "is broken" not in printed
    assert "known: #12" in printed
    assert "known: owner/engine#7" in printed
    assert "new:" not in printed
    assert not list(Path().glob("kvcore-*.replay"))


def test_what_is_not_known_fails_beside_what_is(said: Said) -> None:
    status, printed = said(Leaks, write(CLEAR))
    assert status == 1
    assert "KV-7 (all or nothing) is broken" in printed
    assert "known: owner/engine#7" in printed
    assert "new: kvcore-KV-7-0.replay" in printed


def test_an_entry_that_no_longer_fails_is_an_error(said: Said) -> None:
    status, printed = said(Fixed, write({**ENTRY, "replay": "short.replay"}, CLEAR))
    assert status == 1
    assert (
        "known failure KV-7 in alloc* when short of full* (#12) no longer fails: its replay holds"
        in printed.splitlines()
    )
    assert "known failure KV-5 in clear when legal* (owner/engine#7) was not met in this run" in printed.splitlines()


def test_a_replay_that_breaks_something_else_is_an_error(said: Said) -> None:
    status, printed = said(Leaks, write(ENTRY, {**CLEAR, "replay": "short.replay"}))
    assert status == 1
    assert "its replay breaks KV-7 in alloc when short of full" in printed


def test_never_keeps_the_operation_from_being_launched(said: Said) -> None:
    said(Leaks, write(ENTRY, CLEAR))
    assert len(CLEARS) > 1
    CLEARS.clear()
    status, printed = said(Leaks, write(ENTRY, {**CLEAR, "replay": "clear.replay", "never": True}))
    assert status == 0, printed
    assert len(CLEARS) == 1, "the replay alone launches it"


KNOWN = Known("KV-7", "alloc*", "short of *", "a page is lost", "#12")


@pytest.mark.parametrize(
    ("key", "is_covered"),
    [
        (("KV-7", "alloc", "short of full"), True),
        (("KV-7", "alloc_decode", "short of window, page size 1"), True),
        (("KV-7", "free", "short of full"), False),
        (("KV-7", "alloc", "legal"), False),
        (("KV-6", "alloc", "short of full"), False),
    ],
)
def test_an_entry_covers_what_fits_its_patterns_and_has_its_clause(key: tuple[str, str, str], is_covered: bool) -> None:
    assert KNOWN.covers(key) is is_covered


def test_without_a_replay_the_run_has_to_meet_it() -> None:
    assert not stale([KNOWN], [("KV-7", "alloc", "short of full")], {})
    assert stale([KNOWN], [("KV-7", "free", "short of full")], {}) == [f"known failure {KNOWN} was not met in this run"]


def test_with_a_replay_the_run_need_not() -> None:
    assert not stale([KNOWN], [], {KNOWN: ("KV-7", "alloc", "short of full")})


@pytest.mark.parametrize("issue", ["#1", "owner/project#12", "docs/findings.md#a-page", "https://example.org/1"])
def test_an_issue_is_a_number_or_a_url(issue: str) -> None:
    (known,) = read_known_failures(write({**ENTRY, "issue": issue, "replay": "short.replay"}))
    assert known.issue == issue
    assert known.replay == Path("short.replay")
    assert not known.never


def without(field: str) -> dict[str, str]:
    return {name: value for name, value in ENTRY.items() if name != field}


MALFORMED: list[tuple[Sequence[dict[str, Any]], str]] = [
    ((), "has no [[failure]]"),
    ((without("issue"),), "entry 1 has no issue"),
    ((without("reason"),), "entry 1 has no reason"),
    ((ENTRY, without("clause")), "entry 2 has no clause"),
    (({**ENTRY, "issue": "some day"},), "entry 1: issue 'some day' is neither a number (#123) nor a URL"),
    (({**ENTRY, "isue": "#12"},), "entry 1 has an unknown field 'isue'"),
    (({**ENTRY, "clause": "KV-99"},), "entry 1: the contract has no clause 'KV-99'"),
    (({**ENTRY, "replay": "gone.replay"},), "entry 1: there is no replay gone.replay"),
    (({**ENTRY, "never": True},), "entry 1 is never launched, and has no replay that shows that it fails"),
    (({**ENTRY, "never": "yes", "replay": "short.replay"},), "entry 1: never has to be a bool"),
    (({**ENTRY, "when": 7},), "entry 1: when has to be a str"),
]


@pytest.mark.parametrize(("entries", "told"), MALFORMED, ids=[told for _, told in MALFORMED])
def test_a_malformed_file_ends_with_2_and_one_line(entries: Sequence[dict[str, Any]], told: str, said: Said) -> None:
    status, printed = said(Whole, write(*entries))
    assert status == 2
    assert printed == f"kvcore check: --known-failures known.toml: {told}\n"


@pytest.mark.parametrize(
    ("file", "told"),
    [("gone.toml", "No such file or directory"), ("words.toml", "Expected '='"), ("broken.toml", "line")],
)
def test_what_is_no_such_file_ends_with_2_and_one_line(file: str, told: str, said: Said) -> None:
    Path("words.toml").write_text("it just fails\n")
    Path("broken.toml").write_text('[[failure]]\nclause = "KV-7\n')
    status, printed = said(Whole, file)
    assert status == 2
    (line,) = printed.splitlines()
    assert told in line


def test_a_malformed_replay_of_an_entry_ends_with_2_and_one_line(said: Said) -> None:
    Path("short.replay").write_text("alloc request=1\n")
    status, printed = said(Leaks, write({**ENTRY, "replay": "short.replay"}))
    assert status == 2
    assert "short.replay: " in printed.splitlines()[-1]


def under_pytest(file: str, *words: str) -> subprocess.CompletedProcess[str]:
    call = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "kvcore.stateful.test_soak",
        "-k",
        "slots-0 or fails_still",
    ]
    subject = ["--kv-subject", f"{__name__}:Leaks", "--kv-known-failures", file]
    return subprocess.run([*call, *subject, *words], text=True, capture_output=True, timeout=240)


def test_pytest_takes_the_file_as_well() -> None:
    done = under_pytest(write({**ENTRY, "replay": "short.replay"}, CLEAR))
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    done = under_pytest(write({**ENTRY, "replay": "holds.replay"}, CLEAR))
    assert done.returncode == 1
    assert "no longer fails: its replay holds" in done.stdout


def test_pytest_refuses_a_malformed_file_at_once() -> None:
    done = under_pytest(write(without("issue")))
    assert done.returncode == 4
    assert "--kv-known-failures known.toml: entry 1 has no issue" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
