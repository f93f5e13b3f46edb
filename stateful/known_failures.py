"""The file of known failures, which lives with whoever owns the allocator under test.

    [[failure]]
    clause = "KV-7"
    operation = "alloc_decode"
    when = "short of window"
    reason = "the pages of the full pool are not given back"
    issue = "https://github.com/sgl-project/sglang/pull/35338"
    replay = "decode-short-of-one-pool.replay"

`operation` and `when` are as `kvcore check` prints them, and may hold `*`. `replay`, beside the file, is run first: it
has to fail still. Without one, the run itself has to meet the failure. `never = true` keeps the operation from being
launched in that situation at all, but for the replay, which is run in a process of its own. No entry without an issue;
an entry that no longer fails is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..contract import CONTRACT
from .findings import Key
from .replay import MalformedReplay, Replay

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest has brought it

REFERENCE = re.compile(r"\S*#\S+|\w+://\S+")
"""An issue number, as in #35338, owner/project#35338 or docs/findings.md#name; or a URL."""


class MalformedKnownFailures(ValueError):
    """The file cannot be read as one of known failures; the message says where and why."""


@dataclass(frozen=True)
class Known:
    """One entry. replay: None, or the file's path; never: not to be launched in the process of the run."""

    clause: str
    operation: str
    when: str
    reason: str
    issue: str
    replay: Path | None = None
    never: bool = False

    def covers(self, key: Key) -> bool:
        """Whether a finding is this entry's."""
        clause, operation, situation = key
        return clause == self.clause and fnmatchcase(operation, self.operation) and fnmatchcase(situation, self.when)

    def keeps_back(self, operation: str) -> bool:
        """Whether the operation is not launched as often as others because of this entry."""
        return self.never and fnmatchcase(operation, self.operation)

    def __str__(self) -> str:
        return f"{self.clause} in {self.operation} when {self.when} ({self.issue})"


def read_known_failures(path: str | Path) -> tuple[Known, ...]:
    """The entries of a file. Raises MalformedKnownFailures or OSError."""
    file = Path(path)
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("failure", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MalformedKnownFailures(str(error)) from None
    if not isinstance(entries, list) or not entries:
        raise MalformedKnownFailures("has no [[failure]]")
    return tuple(_entry(number, entry, file.parent) for number, entry in enumerate(entries, start=1))


def _entry(number: int, entry: Any, folder: Path) -> Known:
    given = dict(entry) if isinstance(entry, dict) else {}
    types = {"never": bool}
    unknown = given.keys() - {f.name for f in fields(Known)}
    if unknown:
        raise MalformedKnownFailures(f"entry {number} has an unknown field {sorted(unknown)[0]!r}")
    for name in ("clause", "operation", "when", "reason", "issue"):
        if not str(given.get(name, "")).strip():
            raise MalformedKnownFailures(f"entry {number} has no {name}")
    for name, value in given.items():
        if not isinstance(value, types.get(name, str)):
            raise MalformedKnownFailures(f"entry {number}: {name} has to be a {types.get(name, str).__name__}")
    if given["clause"] not in CONTRACT:
        raise MalformedKnownFailures(f"entry {number}: the contract has no clause {given['clause']!r}")
    if not REFERENCE.fullmatch(given["issue"].strip()):
        raise MalformedKnownFailures(f"entry {number}: issue {given['issue']!r} is neither a number (#123) nor a URL")
    if given.get("never") and "replay" not in given:
        raise MalformedKnownFailures(f"entry {number} is never launched, and has no replay that shows that it fails")
    if "replay" in given:
        given["replay"] = folder / given["replay"]
        if not given["replay"].is_file():
            raise MalformedKnownFailures(f"entry {number}: there is no replay {given['replay']}")
        try:
            Replay.read(given["replay"])
        except MalformedReplay as error:
            raise MalformedKnownFailures(f"entry {number}: {given['replay']}: {error}") from None
    return Known(**given)


def stale(known: Sequence[Known], met: Sequence[Key], replayed: dict[Known, Key | None]) -> list[str]:
    """Entries that no longer fail, in sentences. replayed: what the replay of an entry has broken, None for nothing."""
    told = []
    for entry in known:
        if entry in replayed:
            broke = replayed[entry]
            if broke is None:
                told.append(f"known failure {entry} no longer fails: its replay holds")
            elif not entry.covers(broke):
                told.append(f"known failure {entry}: its replay breaks {broke[0]} in {broke[1]} when {broke[2]}")
        elif not any(map(entry.covers, met)):
            told.append(f"known failure {entry} was not met in this run")
    return told
