"""What each command of `kvcore` does: run, show, write the result, return the exit status.

status = check(parser().parse_args(["check"]))

Here are those that run a subject, `check`, `workload` and `replay`; the others are in command_tables.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..contract import CONTRACT
from ..errors import KVCacheError
from ..kernels.dispatch import OPERATIONS
from . import results
from .child import run_safely
from .cli import WrongCall
from .command_parts import (
    clear_last_run,
    count,
    factory_of,
    finish,
    known_failures,
    need_lane,
    out,
    progress_bar,
    tell_failure,
    tell_findings,
    tell_not_asked,
)
from .command_tables import bench, contract, faults
from .minimize import minimize
from .reach import Reach
from .replay import MalformedReplay, Replay, on_device, to_replay
from .report import failure_report, versions
from .runner import WrongLevel
from .subjects import UnknownSubject, load

__all__ = ["bench", "check", "contract", "faults", "replay", "workload"]  # cli.py takes a command by its name


POOL_OPTIONS = {"window": ("window", "window_pages"), "hisparse": ("device_pages", "host_pages", "buffer_size")}
"""The options of `workload` that only one --pool has."""


def check(arguments: argparse.Namespace) -> int:
    """The soak and the machines."""
    from .check import Task, levels_of, tasks_of
    from .check import check as run_check
    from .profiles import profile_for

    subject, device, profile, seed = arguments.subject, arguments.device, arguments.profile, arguments.seed
    need_lane(device)
    factory = factory_of(subject)
    kernels = _kernels(arguments.kernel)
    known = known_failures(arguments.known_failures)
    echo = "".join(f" --kernel {op}={fn}" for op, fn in kernels.items())
    echo += f" --known-failures {arguments.known_failures}" if known else ""
    out.print(
        f"kvcore check --subject {subject} --device {device} --profile {profile} --seed {seed}{echo}   ({versions()})",
        markup=False,
    )
    started = time.monotonic()
    clear_last_run()
    levels = () if kernels else tuple(levels_of(factory, device))
    if not levels and not kernels:
        raise WrongCall(f"subject {subject!r} offers neither level: capabilities.level is 'engine' or 'slots'")
    total = sum(task.steps for task in tasks_of(profile_for(profile, device), levels, subject, device, seed, kernels))
    with progress_bar() as bar:
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
            known=known,
            first=arguments.first,
            progress=progress,
        )
    if result.kernel_failure:
        clause = CONTRACT[result.kernel_failure.clause]
        out.print(f"{clause.id} ({clause.name}) is broken: {clause.sentence}", markup=False)
        out.print(result.kernel_failure.text, markup=False)
    told = tell_findings(result, subject=subject, device=device, seed=seed)
    data = results.document(
        result.reach,
        result.capabilities.values(),
        result.failure,
        Path(told[0].replay) if told and told[0].replay else None,
        kernel_failure=result.kernel_failure,
        verdict=result.verdict,
        seconds=round(time.monotonic() - started, 3),
        subject=subject,
        device=device,
        profile=profile,
        seed=seed,
    )
    data["findings"] = [asdict(finding) for finding in told]
    data["stale"] = result.stale
    if kernels:
        for name in ("KV-12", "KV-13"):
            data["clauses"][name].update(asked=True, why="")
        out.print(f"{data['clauses']['KV-12']['checks']} calls of {', '.join(kernels)}", markup=False)
    tell_not_asked(data)
    return finish(data, result.stale + result.missing, arguments.json)


def workload(arguments: argparse.Namespace) -> int:
    """A trace, served."""
    from .trace import MalformedTrace, read_trace
    from .workload import SPECULATION, DoesNotFit, WorkloadSettings, run_workload

    subject, device, seed = arguments.subject, arguments.device, arguments.seed
    has_window, has_host = arguments.pool == "window", arguments.pool == "hisparse"
    for pool, names in POOL_OPTIONS.items():
        for name in names:
            if arguments.pool != pool and getattr(arguments, name) is not None:
                raise WrongCall(f"--{name.replace('_', '-')} needs --pool {pool}")
    if has_host and arguments.prefix_cache == "radix":
        raise WrongCall("--pool hisparse has no prefix cache: nothing of a finished request stays on the device")
    need_lane(device)
    factory = factory_of(subject)
    started = time.monotonic()
    clear_last_run()
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
        prefix_cache=arguments.prefix_cache or ("none" if has_host else "radix"),
        eviction=arguments.eviction,
        window=(arguments.window or 4096) if has_window else None,
        window_pages=arguments.window_pages,
        buffer_size=(arguments.buffer_size or 2048) if has_host else None,
        device_pages=arguments.device_pages,
        host_pages=arguments.host_pages,
        seed=seed,
    )
    try:
        with progress_bar() as bar:
            line = bar.add_task("serving", total=len(trace))
            result = run_workload(trace, factory, settings, progress=lambda done: bar.update(line, advance=done))
    except (DoesNotFit, KVCacheError, WrongLevel) as error:
        raise WrongCall(str(error)) from None
    path = tell_failure(result.failure, subject=subject, device=device, seed=seed)
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
        recomputed_tokens=result.recomputed_tokens,
        hit_tokens=result.hit_tokens,
        rehit_tokens=result.rehit_tokens,
        evicted_pages=result.evicted_pages,
        window_given_up=result.window_given_up,
        window_evicted=result.window_evicted,
        retractions=result.retractions,
        short_of=result.short_of,
        peak_pages=result.peak_pages,
        peak_window_pages=result.peak_window_pages,
        backups=result.backups,
        backup_resumes=result.backup_resumes,
        dropped_backups=result.dropped_backups,
        peak_device_pages=result.peak_device_pages,
        peak_host_pages=result.peak_host_pages,
    )
    out.print(
        f"{result.requests:,} requests, {result.prompt_tokens:,} prompt and {result.output_tokens:,} output tokens, "
        f"{result.retractions:,} retractions, at most {result.peak_pages:,} of {result.config.num_pages:,} pages"
    )
    if settings.prefix_cache != "none":
        out.print(
            f"{result.hit_tokens:,} prompt tokens hit and {result.rehit_tokens:,} more by resumes, "
            f"{result.evicted_pages:,} pages evicted"
        )
    short_of = " and ".join(f"{times:,} times {pool}" for pool, times in sorted(result.short_of.items()))
    if result.config.hisparse is not None:
        out.print(
            f"{result.backups:,} back-ups, {result.backup_resumes:,} resumes from one, {result.dropped_backups:,} "
            f"dropped; at most {result.peak_device_pages:,} of {result.config.hisparse.device_pages:,} device and "
            f"{result.peak_host_pages:,} of {result.config.hisparse.host_pages:,} host pages; short of pages: "
            f"{short_of or 'never'}"
        )
    if result.config.window is not None:
        out.print(
            f"{result.window_given_up + result.window_evicted:,} window pages evicted, {result.window_evicted:,} of "
            f"them out of the cache, at most {result.peak_window_pages:,} of {result.config.window.num_pages:,}; short "
            f"of pages: {short_of or 'never'}"
        )
    return finish(data, result.missing, arguments.json)


def replay(arguments: argparse.Namespace) -> int:
    """A replay file."""
    try:
        recorded = Replay.read(arguments.file)
    except OSError as error:
        raise WrongCall(f"{arguments.file}: {error.strerror}") from None
    except MalformedReplay as error:
        raise WrongCall(f"{arguments.file}: {error}") from None
    subject, device = arguments.subject or recorded.subject, arguments.device or recorded.device
    need_lane(device)
    factory = factory_of(subject)
    try:
        reach = Reach()
        failure = run_safely(on_device(recorded.config, device), recorded.operations, factory, reach)
    except (MalformedReplay, WrongLevel) as error:
        raise WrongCall(f"{arguments.file}: {error}") from None
    if failure is None:
        refused = sum(counter["refused"] for counter in reach.operations.values())
        told = f", {refused} refused as they have to be" if refused else ""
        out.print(f"holds: {count(len(recorded.operations), 'operation')} on {subject}, every clause kept{told}")
        return 0
    path = Path(arguments.file)
    if arguments.minimize:
        failure = minimize(failure, factory)
        path = path.with_name(path.name + ".min")
        path.write_text(to_replay(failure, subject=subject, device=device, seed=recorded.seed).text(), encoding="utf-8")
    out.print(failure_report(failure, factory, path, subject=subject, device=device, seed=recorded.seed), markup=False)
    return 1


def _kernels(words: Sequence[str]) -> dict[str, str]:
    """--kernel OP=pkg.mod:fn, checked before anything runs."""
    kernels: dict[str, str] = {}
    for word in words:
        op, equals, fn = word.partition("=")
        if not equals:
            raise WrongCall(f"--kernel {word}: has to be OP=pkg.mod:fn")
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
