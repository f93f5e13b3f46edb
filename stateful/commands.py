"""What each command of `kvcore` does: run, show, write the result, return the exit status.

status = check(parser().parse_args(["check"]))
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from ..contract import CONTRACT
from ..errors import KVCacheError
from ..kernels.dispatch import OPERATIONS, kernels_for
from ..kernels.jit import LaneError
from . import results
from .cli import WrongCall
from .minimize import minimize
from .reach import Reach
from .replay import Failure, MalformedReplay, Replay, on_device, run, to_replay
from .report import failure_report, versions, write_and_tell
from .runner import WrongLevel
from .subjects import UnknownSubject, load, load_subject
from .subjects.protocol import Factory

# Into a file or a pipe there is no width to fit into; tables keep their names whole.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
bars = Console(stderr=True)


def check(arguments: argparse.Namespace) -> int:
    """The soak and the machines."""
    from .check import Task, levels_of, tasks_of
    from .check import check as run_check
    from .profiles import profile_for

    subject, device, profile, seed = arguments.subject, arguments.device, arguments.profile, arguments.seed
    _lane(device)
    factory = _factory(subject)
    kernels = _kernels(arguments.kernel)
    echo = "".join(f" --kernel {op}={fn}" for op, fn in kernels.items())
    out.print(
        f"kvcore check --subject {subject} --device {device} --profile {profile} --seed {seed}{echo}   ({versions()})",
        markup=False,
    )
    started = time.monotonic()
    _clear_last_run()
    try:
        levels = () if kernels else tuple(levels_of(factory, device))
    except Exception as error:
        raise WrongCall(f"subject {subject!r} cannot be made: {type(error).__name__}: {error}") from None
    if not levels and not kernels:
        raise WrongCall(f"subject {subject!r} offers neither level: capabilities.level is 'engine' or 'slots'")
    total = sum(task.steps for task in tasks_of(profile_for(profile, device), levels, subject, device, seed, kernels))
    with _bar() as bar:
        line = bar.add_task("checking", total=total)

        def progress(task: Task) -> None:
            bar.update(line, advance=task.steps, description=task.title)

        result = run_check(
            subject,
            device=device,
            profile=profile,
            seed=seed,
            workers=arguments.workers,
            kernels=kernels,
            progress=progress,
        )
    if result.kernel_failure:
        clause = CONTRACT[result.kernel_failure.clause]
        out.print(f"{clause.id} ({clause.name}) is broken: {clause.sentence}", markup=False)
        out.print(result.kernel_failure.text, markup=False)
    path = _report(result.failure, subject=subject, device=device, seed=seed)
    data = results.document(
        result.reach,
        result.capabilities.values(),
        result.failure,
        path,
        kernel_failure=result.kernel_failure,
        verdict=result.verdict,
        seconds=round(time.monotonic() - started, 3),
        subject=subject,
        device=device,
        profile=profile,
        seed=seed,
    )
    if kernels:
        for name in ("KV-12", "KV-13"):
            data["clauses"][name].update(asked=True, why="")
        out.print(f"{data['clauses']['KV-12']['checks']} calls of {', '.join(kernels)}", markup=False)
    return _finish(data, result.missing, arguments.json)


def workload(arguments: argparse.Namespace) -> int:
    """A trace, served."""
    from .trace import MalformedTrace, read_trace
    from .workload import SPECULATION, DoesNotFit, WorkloadSettings, run_workload

    subject, device, seed = arguments.subject, arguments.device, arguments.seed
    _lane(device)
    factory = _factory(subject)
    started = time.monotonic()
    _clear_last_run()
    try:
        trace = read_trace(arguments.trace, limit=arguments.limit)
    except (MalformedTrace, OSError) as error:
        raise WrongCall(f"{arguments.trace}: {error}") from None
    settings = WorkloadSettings(
        device=device,
        page_size=arguments.page_size,
        pages=arguments.pages,
        max_running=arguments.max_running,
        chunk=arguments.chunk,
        speculation=SPECULATION[arguments.spec],
        seed=seed,
    )
    try:
        with _bar() as bar:
            line = bar.add_task("serving", total=len(trace))
            result = run_workload(trace, factory, settings, progress=lambda done: bar.update(line, advance=done))
    except (DoesNotFit, KVCacheError, WrongLevel) as error:
        raise WrongCall(str(error)) from None
    path = _report(result.failure, subject=subject, device=device, seed=seed)
    data = results.document(
        result.reach,
        [result.capabilities] if result.capabilities else [],
        result.failure,
        path,
        verdict=result.verdict,
        seconds=round(time.monotonic() - started, 3),
        subject=subject,
        device=device,
        profile="workload",
        seed=seed,
        requests=result.requests,
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        hit_tokens=result.hit_tokens,
        evicted_pages=result.evicted_pages,
        retractions=result.retractions,
        peak_pages=result.peak_pages,
    )
    out.print(
        f"{result.requests:,} requests, {result.prompt_tokens:,} prompt and {result.output_tokens:,} output tokens, "
        f"{result.retractions:,} retractions, at most {result.peak_pages:,} of {result.config.num_pages:,} pages"
    )
    return _finish(data, result.missing, arguments.json)


def replay(arguments: argparse.Namespace) -> int:
    """A replay file."""
    try:
        recorded = Replay.read(arguments.file)
    except (MalformedReplay, OSError) as error:
        raise WrongCall(f"{arguments.file}: {error}") from None
    subject, device = arguments.subject or recorded.subject, arguments.device or recorded.device
    _lane(device)
    factory = _factory(subject)
    try:
        reach = Reach()
        failure = run(on_device(recorded.config, device), recorded.operations, factory, reach=reach)
    except (MalformedReplay, WrongLevel) as error:
        raise WrongCall(f"{arguments.file}: {error}") from None
    if failure is None:
        refused = sum(counter["refused"] for counter in reach.operations.values())
        told = f", {refused} refused as they have to be" if refused else ""
        out.print(f"holds: {_count(len(recorded.operations), 'operation')} on {subject}, every clause kept{told}")
        return 0
    path = Path(arguments.file)
    if arguments.minimize:
        failure = minimize(failure, factory)
        path = path.with_name(path.name + ".min")
        path.write_text(to_replay(failure, subject=subject, device=device, seed=recorded.seed).text(), encoding="utf-8")
    out.print(failure_report(failure, factory, path, subject=subject, device=device, seed=recorded.seed), markup=False)
    return 1


def faults(arguments: argparse.Namespace) -> int:
    """The gallery's scoreboard."""
    from .faults import GALLERY
    from .faults.hunt import hunt_all

    if arguments.only is not None and arguments.only not in GALLERY:
        raise WrongCall(f"the gallery has no fault {arguments.only!r}; it has {', '.join(GALLERY)}")
    chosen = [GALLERY[arguments.only]] if arguments.only else list(GALLERY.values())
    chosen = [fault for fault in chosen if arguments.device in (None, fault.device)]
    table = Table("fault", "source", "may name it", "named by", "driver", "operations", "seconds", "replay")
    missed = 0
    with _bar() as bar:
        line = bar.add_task("hunting", total=len(chosen))
        for fault, found in hunt_all(chosen, seed=arguments.seed):
            bar.update(line, advance=1)
            good = found.clause in fault.clauses
            missed += not good
            table.add_row(
                fault.id,
                fault.source,
                " ".join(fault.clauses),
                found.clause if good else f"[bold red]{found.clause or 'MISSED'}",
                found.driver,
                f"{found.operations:,}",
                f"{found.seconds:.2f}",
                str(len(found.failure.operations)) if found.failure else "",
            )
            if arguments.only:
                out.print(fault.story, markup=False)
                if found.failure:
                    subject = f"kvcore.stateful.faults:{fault.id}"
                    _report(found.failure, subject=subject, device=fault.device, seed=arguments.seed)
                else:
                    out.print(found.report, markup=False)
    out.print(table)
    out.print(f"{len(chosen) - missed} of {len(chosen)} faults found, each by a clause that may name it")
    return 1 if missed else 0


def bench(arguments: argparse.Namespace) -> int:
    """Figures, beside what they are held to."""
    from .bench import bench as rows_of

    _lane(arguments.device)
    out.print(f"kvcore bench --device {arguments.device}   ({versions()}{_gpu(arguments.device)})")
    if arguments.soak:
        return _bench_soak(arguments)
    table = Table("path", "page size", "batch", "us a call", "bar", "stands", "SGLang 0.5.23, recorded")
    rows = []
    with bars.status("timing"):
        for row in rows_of(arguments.device):
            rows.append(asdict(row))
            stands = "" if row.bar is None else "met" if row.microseconds <= row.bar else "[bold red]missed"
            cells = [f"{row.microseconds:.1f}", f"{row.bar:.1f}" if row.bar else "", stands, f"{row.sglang or ''}"]
            table.add_row(row.path, str(row.page_size or ""), str(row.batch or ""), *cells)
    out.print(table)
    if arguments.json:
        _write_json(Path(arguments.json), {"device": arguments.device, "versions": versions(), "rows": rows})
    return 0


def _bench_soak(arguments: argparse.Namespace) -> int:
    """What the suite costs: every operation fully checked, stamps on."""
    from .bench_suite import suite_figures

    table = Table("what", "figure", "bar", "stands")
    figures = []
    with bars.status("timing"):
        for figure in suite_figures(arguments.device):
            figures.append(asdict(figure))
            good = figure.value <= figure.bar if figure.at_most else figure.value >= figure.bar
            bar = f"{'at most' if figure.at_most else 'at least'} {figure.bar:,} {figure.unit}"
            table.add_row(figure.what, f"{figure.value:,.0f} {figure.unit}", bar, "met" if good else "[bold red]missed")
    out.print(table)
    if arguments.json:
        _write_json(Path(arguments.json), {"device": arguments.device, "versions": versions(), "figures": figures})
    return 0


def _gpu(device: str) -> str:
    if not device.startswith("cuda"):
        return ""
    import torch

    return f", {torch.cuda.get_device_name()}"


def contract(arguments: argparse.Namespace) -> int:
    """The clauses with their faults and the last run's reach."""
    from .faults import GALLERY

    try:
        last: dict[str, Any] = json.loads(results.LAST_RUN.read_text(encoding="utf-8"))
        clauses = last["clauses"]
        of = f"{last['subject']} on {last['device']}, {last['profile']}: {last['verdict']}"
    except (OSError, ValueError, KeyError, TypeError):
        clauses, of = {}, f"no last run: {results.LAST_RUN} is not there"
    columns = [Column(name, overflow="fold") for name in ("clause", "what holds", "asked of")]
    breaking_faults = Column("faults that break it", overflow="fold", min_width=46)
    table = Table(*columns, breaking_faults, Column("checks in the last run", overflow="fold"))
    for clause in CONTRACT.values():
        breaking = [fault.id for fault in GALLERY.values() if fault.clauses[0] == clause.id]
        run_of = clauses.get(clause.id)
        checks = "" if run_of is None else f"{run_of['checks']:,}" if run_of["asked"] else f"not asked: {run_of['why']}"
        table.add_row(f"{clause.id} {clause.name}", clause.sentence, clause.asked, "\n".join(breaking), checks)
    out.print(table)
    out.print(f"last run: {of}", markup=False)
    return 0


def _lane(device: str) -> None:
    """WrongCall where the device is not to be had."""
    try:
        kernels_for(device)
    except LaneError as error:
        raise WrongCall(str(error)) from None


def _kernels(words: Sequence[str]) -> dict[str, str]:
    """--kernel OP=pkg.mod:fn, checked before anything runs."""
    kernels: dict[str, str] = {}
    for word in words:
        op, _, fn = word.partition("=")
        if op in kernels:
            raise WrongCall(f"--kernel {op} is given twice")
        kernels[op] = fn
        if op not in OPERATIONS:
            raise WrongCall(f"--kernel {op}: no such operation; there are {', '.join(OPERATIONS)}")
        try:
            load(fn)
        except UnknownSubject as error:
            raise WrongCall(f"--kernel {op}: {error}") from None
    return kernels


def _factory(subject: str) -> Factory:
    try:
        return load_subject(subject)
    except UnknownSubject as error:
        raise WrongCall(str(error)) from None


def _bar() -> Progress:
    columns = (TextColumn("{task.description:>16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=bars, transient=True)


def _clear_last_run() -> None:
    results.LAST_RUN.unlink(missing_ok=True)


def _report(failure: Failure | None, *, subject: str, device: str, seed: int) -> Path | None:
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


def _finish(data: dict[str, Any], missing: list[str], json_path: str | None) -> int:
    """The last line, the files, the exit status."""
    for sentence in missing:
        out.print(f"not reached: {sentence}", markup=False)
    steps = sum(counter["chosen"] for counter in data["operations"].values())
    out.print(f"{data['verdict']}: {_count(steps, 'operation')} in {data['seconds']:.1f} s", markup=False)
    for path in (results.LAST_RUN, *([Path(json_path)] if json_path else [])):
        _write_json(path, data)
    return 0 if data["verdict"] == "holds" else 1


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _write_json(path: Path, data: Any) -> None:
    try:
        results.write_json(path, data)
    except OSError as error:
        raise WrongCall(f"cannot write {path}: {error.strerror}") from None
