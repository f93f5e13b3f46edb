"""What a run has found so far: one failure for each kind, and what is left out because it is known.

    findings = Findings(is_old=known.covers)
    findings.add(failure)
    findings.new, findings.times

Two failures are the same finding if the same clause broke in the same operation in the same situation (`Broken.key`).
A run goes on after a failure with a fresh subject. What fails again and again is left out after a few times, so that
the rest still runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from .configuration import Configuration
from .operation_lines import parse
from .operations import Operation
from .refusals import name_of

if TYPE_CHECKING:
    from .known_failures import Known
    from .replay import Failure
    from .runner import Runner

Key = tuple[str, str, str]

LEFT_OUT_AFTER = 3
"""Failures of one operation in one situation, after which it is not drawn any more: each costs a fresh subject."""


class Findings:
    """`new`: the first failure of each kind; `times`: how often each kind was met, old ones too.

    is_old: tells what is known already. first: one new finding is enough. left_out: pairs of operation and situation
    that are not launched at all. journal: a file that is told of every operation before it is launched, for whoever
    looks after a process that died.
    """

    def __init__(
        self,
        is_old: Callable[[Key], bool] = lambda key: False,
        left_out: Iterable[tuple[str, str]] = (),
        journal: Path | None = None,
        first: bool = False,
    ) -> None:
        self.is_old, self.first = is_old, first
        self.left_out = set(left_out)
        self.new: dict[Key, Failure] = {}
        self.times: Counter[Key] = Counter()
        self._fitting: dict[tuple[str, str], bool] = {}  # what has been compared with the patterns of left_out
        self._failed: Counter[tuple[str, str]] = Counter()
        self._journal: TextIO | None = None if journal is None else journal.open("w", encoding="utf-8")

    @classmethod
    def knowing(cls, known: Sequence[Known]) -> Findings:
        """Those of a run that has a file of known failures."""
        return cls(
            lambda key: any(entry.covers(key) for entry in known),
            [(entry.operation, entry.when) for entry in known if entry.never],
        )

    def add(self, failure: Failure) -> bool:
        """Enter a failure; what it failed in may be left out from now on. Whether that was all that was looked for."""
        key = failure.broken.key
        self.times[key] += 1
        if not self.is_old(key):
            self.new.setdefault(key, failure)
        self._failed[key[1:]] += 1
        if self._failed[key[1:]] >= LEFT_OUT_AFTER:
            self.left_out.add(key[1:])
            self._fitting.clear()
        return self.first and bool(self.new)

    def leaves_out(self, runner: Runner, operation: Operation) -> bool:
        """Whether the operation is not to be launched now; else it is about to be."""
        if not self.left_out and self._journal is None:
            return False
        situation = runner.situation(operation)
        pair = name_of(operation), situation
        if pair not in self._fitting:
            self._fitting[pair] = any(_fits(pattern, pair) for pattern in self.left_out)
        if self._fitting[pair]:
            return True
        if self._journal is not None:
            self._journal.write(f"{situation}\t{operation}\n")
            self._journal.flush()
        return False

    def begins(self, config: Configuration) -> None:
        """A fresh subject: what the journal says of the one before it is not needed."""
        if self._journal is not None:
            self._journal.seek(0)
            self._journal.truncate()
            self._journal.write(f"{config.device}\t{json.dumps(config.to_json())}\n")
            self._journal.flush()


def _fits(pattern: tuple[str, str], pair: tuple[str, str]) -> bool:
    return pattern == pair or all(map(fnmatchcase, pair, pattern))


def last_words(journal: Path) -> tuple[Configuration, tuple[Operation, ...], str] | None:
    """The configuration, the operations and the situation of the last one, from the journal of a process that died."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    if len(lines) < 2:
        return None
    device, _, config = lines[0].partition("\t")
    told = [line.partition("\t") for line in lines[1:]]
    operations = tuple(parse(operation) for _, _, operation in told)
    return replace(Configuration.from_json(json.loads(config)), device=device), operations, told[-1][0]
