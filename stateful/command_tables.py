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
from .command_parts import bars, need_lane, out, progress_bar, tell_failure, write_json, write_text
from .report import versions

if TYPE_CHECKING:
    from .bench_suite import Figure


def faults(arguments: argparse.Namespace) -> int:
    """The gallery's scoreboard."""
    from .faults import GALLERY
    from .faults.hunt import hunt_all
    from .faults.scoreboard import Score, figures, page, wrong

    if arguments.only is not None and arguments.only not in GALLERY:
        near = ", ".join(get_close_matches(arguments.only, GALLERY, n=3))
        hint = f"; near are {near}" if near else "; `kvcore faults` lists them"
        raise WrongCall(f"the gallery has no fault {arguments.only!r}{hint}")
    if arguments.markdown and (arguments.only or arguments.device):
        raise WrongCall("--markdown is a page of the whole gallery: without --only and --device")
    chosen = [GALLERY[arguments.only]] if arguments.only else list(GALLERY.values())
    chosen = [fault for fault in chosen if arguments.device in (None, fault.device)]
    if not chosen:
        raise WrongCall(f"{arguments.only} shows in the lane {GALLERY[arguments.only].device}")
    table = Table("fault", "source", "may name it", "named by", "driver", "operations", "seconds", "replay")
    board: list[Score] = []
    with progress_bar() as bar:
        line = bar.add_task("hunting", total=len(chosen))
        for fault, found in hunt_all(chosen, seed=arguments.seed):
            bar.update(line, advance=1)
            score = Score.of(fault, found)
            board.append(score)
            table.add_row(
                score.id,
                score.source,
                " ".join(score.clauses),
                score.caught_by if score.caught else f"[bold red]{score.caught_by or 'MISSED'}",
                score.driver,
                f"{score.operations:,}",
                f"{score.seconds:.2f}",
                "" if score.replay_length is None else str(score.replay_length),
            )
            if arguments.only:
                out.print(fault.story, markup=False)
                if found.failure:
                    subject = f"kvcore.stateful.faults:{fault.id}"
                    tell_failure(found.failure, subject=subject, device=fault.device, seed=arguments.seed)
                else:
                    out.print(found.report, markup=False)
    out.print(table)
    for sentence in (*figures(board), *wrong(board)):
        out.print(sentence, markup=False)
    caught = sum(score.caught for score in board)
    out.print(f"{caught} of {len(board)} faults found, each by a clause that may name it")
    if arguments.json:
        rows = [asdict(score) for score in board]
        write_json(Path(arguments.json), {"seed": arguments.seed, "versions": versions(), "faults": rows})
    if arguments.markdown:
        write_text(Path(arguments.markdown), page(board, seed=arguments.seed))
    return 0 if caught == len(board) else 1


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
    """The clauses with the checks that test them, the faults that break them, and the last run's reach."""
    from .clause_checks import where_checked
    from .faults import GALLERY

    try:
        last: dict[str, Any] = json.loads(results.LAST_RUN.read_text(encoding="utf-8"))
        clauses = last["clauses"]
        of = f"{last['subject']} on {last['device']}, {last['profile']}: {last['verdict']}"
    except (OSError, ValueError, KeyError, TypeError):
        clauses, of = {}, f"no last run: {results.LAST_RUN} is not there"
    columns = [Column(name, overflow="fold") for name in ("clause", "what holds", "asked of")]
    columns += [Column(name, overflow="fold", min_width=46) for name in ("checked in", "faults that break it")]
    table = Table(*columns, Column("checks in the last run", overflow="fold"))
    rows = []
    for clause in CONTRACT.values():
        breaking = [fault.id for fault in GALLERY.values() if fault.clauses[0] == clause.id]
        checked, run_of = where_checked()[clause.id], clauses.get(clause.id)
        count = "" if run_of is None else f"{run_of['checks']:,}" if run_of["asked"] else f"not asked: {run_of['why']}"
        sides = ("\n".join(checked), "\n".join(breaking))
        table.add_row(f"{clause.id} {clause.name}", clause.sentence, clause.asked, *sides, count, end_section=True)
        rows.append({**asdict(clause), "checked_in": checked, "faults": breaking, "last_run": run_of})
    out.print(table)
    out.print(f"last run: {of}", markup=False)
    if arguments.json:
        write_json(Path(arguments.json), {"last_run": of, "clauses": rows})
    return 0
