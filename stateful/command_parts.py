"""What the commands share: the console, the lane and the subject asked for, the failure told, the last line.

factory = factory_of("kvcore")
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..kernels.dispatch import kernels_for
from ..kernels.jit import LaneError
from . import results
from .cli import WrongCall
from .known_failures import Known, MalformedKnownFailures, read_known_failures
from .replay import Failure, Replay
from .report import write_and_tell
from .subjects import UnknownSubject, load_subject
from .subjects.protocol import Factory

if TYPE_CHECKING:
    from .check import CheckResult

# Into a file or a pipe there is no width to fit into; tables keep their names whole.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
bars = Console(stderr=True)


def need_lane(device: str) -> None:
    """WrongCall where the device is not to be had."""
    try:
        kernels_for(device)
    except LaneError as error:
        raise WrongCall(str(error)) from None


def factory_of(subject: str) -> Factory:
    try:
        return load_subject(subject)
    except UnknownSubject as error:
        raise WrongCall(str(error)) from None


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=bars, transient=True)


def clear_last_run() -> None:
    results.LAST_RUN.unlink(missing_ok=True)


def tell_failure(failure: Failure | None, *, subject: str, device: str, seed: int) -> Path | None:
    """Minimise, write the replay file, print."""
    if failure is None:
        return None
    try:
        with bars.status("minimising"):
            path, told = write_and_tell(failure, subject=subject, device=device, seed=seed)
    except OSError as error:
        raise WrongCall(f"cannot write the replay file: {error.strerror}") from None
    out.print(told, markup=False)
    return path


@dataclass(frozen=True)
class Told:
    """A finding as the result lists it: known is the issue that a known failure names, "" for a new one."""

    clause: str
    operation: str
    when: str
    times: int
    known: str
    replay: str | None
    operations: int | None
    message: str


MOST = 40
"""Findings that are minimised and shown; there are rarely more, and each takes seconds."""


def tell_findings(result: CheckResult, *, subject: str, device: str, seed: int) -> list[Told]:
    """Every new finding as one failure is told, then all of them in a table."""
    told: list[Told] = []
    for failure in result.failures[:MOST]:
        try:
            with bars.status("minimising"):
                path, text = write_and_tell(failure, subject=subject, device=device, seed=seed)
        except OSError as error:
            raise WrongCall(f"cannot write the replay file: {error.strerror}") from None
        out.print(text + "\n", markup=False)
        length = len(Replay.read(path).operations)
        told.append(
            Told(*failure.broken.key, result.times[failure.broken.key], "", str(path), length, failure.broken.message)
        )
    for key, times in sorted(result.times.items()):
        entry = next((entry for entry in result.known if entry.covers(key)), None)
        if entry is not None:
            told.append(Told(*key, times, entry.issue, None, None, entry.reason))
    if len(told) > 1 or any(finding.known for finding in told):
        table = Table("clause", "operation", "when", "met", "finding")
        for finding in told:
            what = f"known: {finding.known}" if finding.known else f"[bold red]new[/]: {finding.replay}"
            table.add_row(finding.clause, finding.operation, finding.when, f"{finding.times:,}", what)
        out.print(table)
    if len(result.failures) > MOST:
        out.print(f"and {count(len(result.failures) - MOST, 'finding')} more, which are not shown")
    return told


def tell_not_asked(data: dict[str, Any]) -> None:
    """What was not asked of the subject, and why."""
    for name, why in data["not_asked"].items():
        out.print(f"not asked: {name}: {why}", markup=False)


def known_failures(path: str | None) -> tuple[Known, ...]:
    """The entries of the file; none without one."""
    if path is None:
        return ()
    try:
        return read_known_failures(path)
    except OSError as error:
        raise WrongCall(f"--known-failures {path}: {error.strerror}") from None
    except MalformedKnownFailures as error:
        raise WrongCall(f"--known-failures {path}: {error}") from None


def finish(data: dict[str, Any], missing: list[str], json_path: str | None) -> int:
    """The last line, the files, the exit status."""
    for sentence in missing:
        out.print(sentence if sentence in data.get("stale", ()) else f"not reached: {sentence}", markup=False)
    steps = sum(counter["chosen"] for counter in data["operations"].values())
    out.print(f"{data['verdict']}: {count(steps, 'operation')} in {data['seconds']:.1f} s", markup=False)
    for path in (results.LAST_RUN, *([Path(json_path)] if json_path else [])):
        write_json(path, data)
    return 0 if data["verdict"] == "holds" else 1


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def write_json(path: Path, data: Any) -> None:
    try:
        results.write_json(path, data)
    except OSError as error:
        raise WrongCall(f"cannot write {path}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WrongCall(f"cannot write {path}: {error.strerror}") from None
