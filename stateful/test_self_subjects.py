"""Allocators as outsiders bring them: with a method less, a wrong signature, a crash, a factory that makes nothing.

Each is a class below, checked as a person does it, in a short run. Whatever is wrong with one, the answer is an exit
status, 0, 1 or 2, and one line that says what to change; never a traceback.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from . import profiles
from .check import check
from .cli import main
from .plugin import try_import
from .profiles import Profile
from .subjects import UnknownSubject
from .subjects.protocol import Capabilities

NONE = Capabilities("slots", page_sizes=(1, 4), refuses="none")


class Whole:
    """A correct allocator in plain Python. It answers a shortage with None and a wrong call with ValueError."""

    capabilities = NONE

    def __init__(self, config: Any) -> None:
        self.config, self.size = config, config.page_size
        self.clear()

    def clear(self) -> None:
        self.free_list = list(range(1, self.config.num_pages + 1))
        self.used: dict[int, int] = {}
        self.queue: list[int] | None = [] if getattr(self, "queue", None) is not None else None

    def alloc(self, need_size: int) -> Any:
        if need_size < 0 or need_size % self.size:
            raise ValueError("need_size")
        return self.alloc_extend([0], [need_size], [-1])

    def alloc_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        if len({len(prefix_lens), len(seq_lens), len(last_loc)}) != 1:
            raise ValueError("lengths")
        for prefix, seq, last in zip(prefix_lens, seq_lens, last_loc, strict=True):
            if seq < prefix or prefix < 0 or (last == -1) != (prefix == 0):
                raise ValueError("lengths")
            if prefix and self.used.get(last // self.size, 0) != last % self.size + 1 == (prefix - 1) % self.size + 1:
                raise ValueError("last_loc")
            if prefix and last % self.size != (prefix - 1) % self.size:
                raise ValueError("last_loc")
        new = [
            -(-seq // self.size) - -(-prefix // self.size) for prefix, seq in zip(prefix_lens, seq_lens, strict=True)
        ]
        if sum(new) > len(self.free_list):
            return self.short()
        slots: list[int] = []
        for prefix, seq, last in zip(prefix_lens, seq_lens, last_loc, strict=True):
            for position in range(prefix, seq):
                last = last + 1 if position % self.size else self.free_list.pop(0) * self.size
                self.used[last // self.size] = last % self.size + 1
                slots.append(last)
        return self.given(slots)

    def alloc_decode(self, seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        return self.alloc_extend([seq - 1 for seq in seq_lens], seq_lens, last_loc)

    def free(self, slots: Sequence[int]) -> None:
        pages = sorted({slot // self.size for slot in slots})
        whole = [page * self.size + i for page in pages for i in range(self.used.get(page, 0))]
        if sorted(slots) != whole or not all(map(self.used.get, pages)):
            raise ValueError("slots")
        for page in pages:
            del self.used[page]
        if self.queue is None:
            self.free_list += pages
        else:
            self.queue += pages

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        if start_pos % self.size:
            raise ValueError("start_pos")
        self.free(slots)

    def free_group_begin(self) -> None:
        if self.queue is not None:
            raise ValueError("is open")
        self.queue = []

    def free_group_end(self) -> None:
        if self.queue is None:
            raise ValueError("is not open")
        self.free_list += self.queue
        self.queue = None

    def available(self) -> Any:
        return [len(self.free_list) * self.size]

    def free_pages(self) -> Any:
        return self.free_list

    def queued_pages(self) -> Any:
        return self.queue or []

    def given(self, slots: list[int]) -> Any:
        """What a call returns that has these slots."""
        return slots

    def short(self) -> Any:
        """What a call answers for which there is no room."""
        return None


FEW = Profile("quick", soak_steps=2_400, shards=2, examples=2, example_steps=10, pieces=0, floor=1, kernel_cases=1)
"""Enough to reach everything that a profile promises; no machines, which begin in folders of their own."""


@pytest.fixture(autouse=True)
def a_short_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(profiles.PROFILES, "quick", FEW)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The exit status and all that is printed by `kvcore check` of a subject; no traceback is in it."""

    def run(subject: Any, *words: str) -> tuple[int, str]:
        name = subject if isinstance(subject, str) else f"{__name__}:{subject.__name__}"
        status = main(["check", "--subject", name, "-n", "1", *words])
        told = capfd.readouterr()
        printed = told.out + told.err
        assert "Traceback" not in printed
        return status, printed

    return run


Said = Callable[..., tuple[int, str]]


def test_a_correct_allocator_in_plain_python_holds(said: Said) -> None:
    status, printed = said(Whole)
    assert status == 0, printed
    assert "holds: 2,400 operations" in printed


class Tensors(Whole):
    def given(self, slots: list[int]) -> Any:
        return torch.tensor(slots, dtype=torch.int64)


class Int32(Whole):
    def given(self, slots: list[int]) -> Any:
        return torch.tensor(slots, dtype=torch.int32)


class Arrays(Whole):
    def given(self, slots: list[int]) -> Any:
        return np.array(slots, dtype=np.int32)


class CountsOnly(Whole):
    """It tells how many pages are free, and not which. A property without a getter is a method that is not there."""

    free_pages = queued_pages = property()


class QueueUnseen(Whole):
    """What an open group keeps, it does not tell."""

    queued_pages = property()


class NoRoom(Exception):
    """An engine's own error."""


class Raises(Whole):
    capabilities = replace(NONE, refuses="raises", shortage=(NoRoom,), asked=())

    def short(self) -> Any:
        raise NoRoom


class Answers(Whole):
    """It returns something where nothing is asked for."""

    def free(self, slots: Sequence[int]) -> Any:
        super().free(slots)
        return True


@pytest.mark.parametrize("subject", [Tensors, Int32, Arrays, CountsOnly, QueueUnseen, Raises, Answers])
def test_what_may_differ_between_allocators_is_accepted(subject: type[Whole], said: Said) -> None:
    status, printed = said(subject)
    assert status == 0, printed


class WithoutGroups(Whole):
    free_group_begin = free_group_end = property()
    alloc = property()


def test_a_method_that_is_missing_is_not_asked_and_the_rest_runs(said: Said) -> None:
    status, printed = said(WithoutGroups)
    assert status == 0, printed
    assert "not asked: alloc: the subject has no method alloc(need_size) -> slots int64" in printed
    assert "not asked: free_group_begin: the subject has no method free_group_begin()" in printed
    assert "not asked: KV-11: it has no free groups" in printed


class Trusting(Whole):
    """It checks nothing, and says so."""

    capabilities = replace(NONE, why_not={"KV-15": "its callers are trusted"}, asked=())

    def free(self, slots: Sequence[int]) -> None:
        self.used.update({slot // self.size: 0 for slot in slots})
        pages = sorted({slot // self.size for slot in slots})
        for page in pages:
            del self.used[page]
        assert slots
        assert min(slots) > 0
        (self.free_list if self.queue is None else self.queue).extend(pages)


def test_without_its_clause_no_bad_call_is_made(said: Said) -> None:
    status, printed = said(Trusting)
    assert status == 0, printed
    assert "not asked: KV-15: its callers are trusted" in printed


class Leaks(Whole):
    """A refused extend keeps a page."""

    def short(self) -> Any:
        self.free_list = self.free_list[1:]


class LeaksAndSaysSo(Leaks):
    capabilities = replace(NONE, why_not={"KV-7": "https://example.org/7"}, asked=())


def test_what_breaks_a_clause_that_is_not_asked_is_no_finding(said: Said) -> None:
    status, printed = said(Leaks)
    assert status == 1
    assert "KV-7 (all or nothing) is broken" in printed
    status, printed = said(LeaksAndSaysSo)
    assert "is broken" not in printed
    assert "not asked: KV-7: https://example.org/7" in printed


class WrongSignature(Whole):
    def free_segment(self, slots: Sequence[int]) -> None:  # type: ignore[override]
        raise AssertionError("is never called")


def test_a_signature_that_does_not_fit_is_told_with_the_right_one_and_the_rest_runs(said: Said) -> None:
    status, printed = said(WrongSignature)
    assert status == 1
    (line,) = (line for line in printed.splitlines() if "free_segment" in line)
    assert "cannot be called as free_segment(slots, start_pos)" in line
    assert "not reached: 2,400 operations" in printed


class Crashes(Whole):
    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        raise KeyError("row 7")


class Exits(Whole):
    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        sys.exit("nothing goes any more")


class Words(Whole):
    def given(self, slots: list[int]) -> Any:
        return ["a slot"] * len(slots)


class Halves(Whole):
    def given(self, slots: list[int]) -> Any:
        return np.array(slots) / 2


class Blind(Whole):
    """What is free it can tell only while something is."""

    def available(self) -> Any:
        return [self.size * len(self.free_list), self.free_list[0]][:1]


class TooFew(Whole):
    def given(self, slots: list[int]) -> Any:
        return slots[:-1]


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        (Crashes, "KV-5 (exact demand) is broken: free_segment is a legal call and ended in KeyError: 'row 7'"),
        (Exits, "free_segment is a legal call and ended in SystemExit: nothing goes any more"),
        (Words, "KV-5 (exact demand) is broken: alloc_extend is a legal call and ended in TypeError: a list of <U6"),
        (Halves, "ended in TypeError: a ndarray of float64 holds no integers"),
        (TooFew, "KV-5 (exact demand) is broken: alloc returned"),
        (Blind, "KV-1 (one owner) is broken: available() ended in IndexError: list index out of range"),
    ],
)
def test_a_call_that_goes_wrong_is_a_finding_that_names_it(subject: type[Whole], told: str, said: Said) -> None:
    status, printed = said(subject)
    assert status == 1
    assert told in printed
    assert "REPRO: kvcore replay kvcore-KV-" in printed


def test_the_rest_runs_beside_what_crashes() -> None:
    result = check(Crashes, workers=1)
    assert {key[1] for key in result.times} == {"free_segment"}
    assert result.reach.steps > FEW.soak_steps // 2
    assert not result.missing


class MadeForPagesOfOne(Whole):
    def __init__(self, config: Any) -> None:
        if config.page_size > 1:
            raise NotImplementedError("pages of one token only")
        super().__init__(config)


def test_a_configuration_that_was_promised_and_is_not_made_is_a_finding(said: Said) -> None:
    status, printed = said(MadeForPagesOfOne)
    assert status == 1
    assert "making the subject ended in NotImplementedError: pages of one token only" in printed
    assert "before the first operation" in printed


def nothing(config: Any) -> None:
    return None


def raises(config: Any) -> Any:
    raise RuntimeError("no engine is\ninstalled")


class NoCapabilities:
    def __init__(self, config: Any) -> None: ...


class OldCapabilities(NoCapabilities):
    capabilities = {"level": "slots"}  # noqa: RUF012 - as an outsider writes it


class NoAvailable(Whole):
    available = property()


class AvailableAsNumber(Whole):
    def available(self) -> Any:
        return len(self.free_list) * self.size


class AvailableOfTwoPools(Whole):
    def available(self) -> Any:
        return [1, 2]


class PagesOfAnotherPool(Whole):
    def free_pages(self) -> Any:
        return {"kv": self.free_list}


class PagesInWords(Whole):
    def free_pages(self) -> Any:
        return ["one", "two"]


class FreesOnly:
    capabilities = NONE

    def __init__(self, config: Any) -> None:
        self.config = config

    def free(self, slots: Sequence[int]) -> None: ...
    def available(self) -> Any:
        return [self.config.num_pages * self.config.page_size]


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        (nothing, "the subject makes a NoneType, which has no `capabilities`"),
        (raises, "RuntimeError: no engine is installed"),
        (NoCapabilities, "makes a NoCapabilities, which has no `capabilities`; it needs a Capabilities of kvcore"),
        (OldCapabilities, "has a dict as `capabilities`"),
        (NoAvailable, "makes a NoAvailable, which has no method available()"),
        (AvailableAsNumber, "from available(); expected is a list: the free tokens of ['full']"),
        (AvailableOfTwoPools, "returns [1, 2] from available(); expected is a list"),
        (PagesOfAnotherPool, "says nothing of a pool in free_pages(): it has ['full'], told are ['kv']"),
        (PagesInWords, "returns ['one', 'two'] from free_pages(), no page ids"),
        (FreesOnly, "hands out nothing: the subject has no method alloc(need_size)"),
        ("no_such_module:factory", "no_such_module"),
        (f"{__name__}:no_such_factory", "has no function 'no_such_factory'"),
    ],
    ids=lambda given: getattr(given, "__name__", "-"),
)
def test_what_cannot_be_driven_ends_with_2_and_one_line(subject: Any, told: str, said: Said) -> None:
    status, printed = said(subject)
    assert status == 2, printed
    assert told in printed.splitlines()[-1]
    assert not list(Path().glob("*.replay"))


def test_a_module_whose_import_raises_is_told_in_one_line(said: Said) -> None:
    Path("does_not_import.py").write_text("raise RuntimeError('no GPU,\\nno kernels')\n")
    status, printed = said("does_not_import:factory")
    assert status == 2
    assert printed.splitlines()[-1].endswith("its import raises RuntimeError: no GPU, no kernels")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"level": "slot"}, "level is 'slot'; it has to be one of engine, slots"),
        ({"page_sizes": (3,)}, "page_sizes holds 3; known are 1, 2, 4"),
        ({"page_sizes": ()}, "page_sizes is empty"),
        ({"page_sizes": 4}, "page_sizes is 4; it has to be a tuple"),
        ({"pools": ("swa",)}, "pools holds 'swa'; known are paged, window, hisparse"),
        ({"pools": ("window")}, "pools is 'window'; it has to be a tuple"),
        ({"why_not": {"KV-99": "never heard of"}}, "why_not holds 'KV-99'"),
        ({"asked": ("KV-1", "KV-0")}, "asked holds 'KV-0'"),
        ({"operations": ("alloc", "malloc")}, "operations holds 'malloc'; known are alloc, alloc_extend"),
        ({"operations": ("extend",)}, "operations holds 'extend'"),
        ({"refuses": "politely"}, "refuses is 'politely'; it has to be one of typed, none, raises"),
        ({"refuses": "raises"}, "shortage does not say what"),
        ({"refuses": "raises", "shortage": MemoryError}, "it has to be a tuple of exception classes"),
        ({"dies_in": ("gpu",)}, "dies_in holds 'gpu'; known are cpu, interpret, cuda"),
    ],
    ids=str,
)
def test_capabilities_that_mean_nothing_are_refused_where_they_are_written(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        Capabilities(**{"level": "slots", **given})


class Dies(Whole):
    """A free of a segment kills the process."""

    capabilities = replace(NONE, page_sizes=(4,), dies_in=("cpu",), asked=())

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        if slots and start_pos % self.size == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().free_segment(slots, start_pos)


def test_a_call_that_kills_its_process_is_a_finding_and_the_rest_runs(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(profiles.PROFILES, "quick", replace(FEW, shards=1))
    status, printed = said(Dies)
    assert status == 1
    assert "KV-13 (bounds) is broken: the process died in free_segment: SIGKILL" in printed
    assert printed.count("is broken") == 1
    assert re.search(r"^broken: 2,\d\d\d operations", printed, re.MULTILINE)
    (path,) = Path().glob("kvcore-KV-13-0.replay")
    first, last = path.read_text().partition("\n\n")[2].splitlines()
    assert first.startswith("alloc")
    assert last == "free_segment request=1"
    assert main(["replay", str(path)]) == 1


def test_a_factory_can_be_given_as_it_is() -> None:
    assert check(Whole, workers=1).verdict == "holds"
    with pytest.raises(UnknownSubject, match="no function"):
        check(lambda config: Whole(config))


def test_pytest_tells_a_subject_that_cannot_be_driven_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "makes_nothing.py").write_text("def factory(config): ...\n")
    asked = "kvcore.stateful.test_soak::test_every_clause_holds_after_every_operation[slots-0]"
    call = ["-m", "pytest", "-p", "no:cacheprovider", "--pyargs", asked, "--kv-subject", "makes_nothing:factory"]
    done = subprocess.run([sys.executable, *call], cwd=tmp_path, text=True, capture_output=True, timeout=240)
    assert done.returncode == 1, done.stdout
    assert "the subject makes a NoneType, which has no `capabilities`" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    (tmp_path / "bad.py").write_text("from kvcore.stateful.subjects.protocol import *\nCapabilities('slot')\n")
    with pytest.raises(pytest.UsageError, match="its import raises ValueError: level is 'slot'"):
        try_import("bad:factory")
