"""The commands that end in a table: `kvcore faults`, `bench` and `contract`.

status = contract(parser().parse_args(["contract"]))
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from ..contract import CONTRACT
from . import results
from .cli import WrongCall
from .command_parts import bars, need_lane, out, progress_bar, tell_failure, write_json
from .report import versions

if TYPE_CHECKING:
    from .bench_suite import Figure


def faults(arguments: argparse.Namespace) -> int:
    """The gallery's scoreboard."""
    from .faults import GALLERY
    from .faults.hunt import hunt_all

    if arguments.only is not None and arguments.only not in GALLERY:
        near = ", ".join(get_close_matches(arguments.only, GALLERY, n=3))
        hint = f"; near are {near}" if near else "; `kvcore faults` lists them"
        raise WrongCall(f"the gallery has no fault {arguments.only!r}{hint}")
    chosen = [GALLERY[arguments.only]] if arguments.only else list(GALLERY.values())
    chosen = [fault for fault in chosen if arguments.device in (None, fault.device)]
    if not chosen:
        raise WrongCall(f"{arguments.only} shows in the lane {GALLERY[arguments.only].device}")
    table = Table("fault", "source", "may name it", "named by", "driver", "operations", "seconds", "replay")
    missed = 0
    with progress_bar() as bar:
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
                    tell_failure(found.failure, subject=subject, device=fault.device, seed=arguments.seed)
                else:
                    out.print(found.report, markup=False)
    out.print(table)
    out.print(f"{len(chosen) - missed} of {len(chosen)} faults found, each by a clause that may name it")
    return 1 if missed else 0


def bench(arguments: argparse.Namespace) -> int:
    """Figures, beside what they are held to."""
    from .bench import bench as rows_of

    need_lane(arguments.device)
    out.print(f"kvcore bench --device {arguments.device}   ({versions()}{_gpu(arguments.device)})")
    if arguments.soak:
        from .bench_suite import suite_figures

        return _bench_figures(arguments, suite_figures(arguments.device))
    if arguments.cache:
        from .bench_cache import cache_figures

        return _bench_figures(arguments, cache_figures())
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
        write_json(Path(arguments.json), {"device": arguments.device, "versions": versions(), "rows": rows})
    return 0


def _bench_figures(arguments: argparse.Namespace, of: Iterator[Figure]) -> int:
    """Figures that say themselves what they are and which way their bar points."""
    table = Table("what", "figure", "bar", "stands")
    figures = []
    with bars.status("timing"):
        for figure in of:
            figures.append(asdict(figure))
            value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
            bar = stands = ""
            if figure.bar is not None:
                good = figure.value <= figure.bar if figure.at_most else figure.value >= figure.bar
                bar = f"{'at most' if figure.at_most else 'at least'} {figure.bar:,} {figure.unit}"
                stands = "met" if good else "[bold red]missed"
            table.add_row(figure.what, f"{value} {figure.unit}", bar, stands)
    out.print(table)
    if arguments.json:
        write_json(Path(arguments.json), {"device": arguments.device, "versions": versions(), "figures": figures})
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
