"""What the commands share: the console, the lane and the subject asked for, the failure told, the last line.

factory = factory_of("kvcore")
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..kernels.dispatch import kernels_for
from ..kernels.jit import LaneError
from . import results
from .cli import WrongCall
from .replay import Failure
from .report import write_and_tell
from .subjects import UnknownSubject, load_subject
from .subjects.protocol import Factory

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


def finish(data: dict[str, Any], missing: list[str], json_path: str | None) -> int:
    """The last line, the files, the exit status."""
    for sentence in missing:
        out.print(f"not reached: {sentence}", markup=False)
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
