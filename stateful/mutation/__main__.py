"""The mutation score of kvcore's checks.

    python -m kvcore.stateful.mutation --sample 400 --seed 0 -n 16

Mutants of the core run in the cpu lane and those of the kernels in Triton's interpreter; with both lanes, what survives
at home is tried in the other one. Exit status: 0 if at least nine in ten are killed, 1 if not, 2 if the call is wrong,
the unmutated code does not pass or the file of equivalents does not say what is so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from ..cli import Formatter, WrongCall
from ..command_parts import count, out, progress_bar
from .children import Lane, Result, Unsound
from .mutants import Mutant
from .sample import EQUIVALENT, Stale, all_mutants, in_kernels, read_equivalents, sample

LANES = ("cpu", "interpret")
WANTED = 0.9
MOST_EQUIVALENT = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except (WrongCall, Unsound, Stale, OSError) as error:
        print(f"mutation: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("kvcore.stateful.mutation", description=__doc__, formatter_class=Formatter)
    made.add_argument("--sample", type=int, default=400, help="how many mutants, from every module")
    made.add_argument("--seed", type=int, default=0, help="which ones")
    made.add_argument("-n", dest="workers", type=int, default=os.cpu_count() or 1, help="processes")
    made.add_argument("--lane", choices=LANES, help="only mutants that are at home in this lane; both if not given")
    made.add_argument("--only", metavar="MUTANT_ID", help="this one, in every lane that is asked for")
    made.add_argument("--equivalent", type=Path, default=EQUIVALENT, metavar="FILE", help="mutants that change nothing")
    made.add_argument("--json", metavar="FILE", help="write the results there too")
    return made


def run(arguments: argparse.Namespace) -> int:
    if arguments.sample < 1 or arguments.workers < 1:
        raise WrongCall("--sample and -n have to be at least 1")
    every = all_mutants()
    equivalent = read_equivalents(arguments.equivalent, every)
    lanes = (arguments.lane,) if arguments.lane else LANES
    if arguments.only:
        chosen = [mutant for mutant in every if mutant.id == arguments.only]
        if not chosen:
            raise WrongCall(f"there is no mutant {arguments.only!r}")
    else:
        chosen = [m for m in sample(every, arguments.sample, arguments.seed) if home(m) in lanes]
    results = [
        replace(result, verdict="equivalent") if result.verdict == "survived" and mutant.id in equivalent else result
        for mutant, result in outcomes(chosen, lanes, arguments.workers, everywhere=bool(arguments.only)).items()
    ]
    return tell(results, equivalent, arguments.json)


def home(mutant: Mutant) -> str:
    return "interpret" if in_kernels(mutant) else "cpu"


def outcomes(chosen: Sequence[Mutant], lanes: Sequence[str], workers: int, everywhere: bool) -> dict[Mutant, Result]:
    """Each mutant at home, then what has survived (or, everywhere, has not been asked) in the other lane."""
    found: dict[Mutant, Result] = {}
    with progress_bar() as bars, ExitStack() as stack:
        opened = {}
        for lane in lanes:
            bar = bars.add_task(f"{lane}, no mutant", total=1)
            opened[lane] = stack.enter_context(Lane(lane, workers))
            bars.advance(bar)
        for away in (False, True) if everywhere or len(lanes) > 1 else (False,):
            for lane in lanes:
                left = [m for m in chosen if (home(m) != lane) == away and (m not in found or _survives(found[m]))]
                bar = bars.add_task(f"{lane}{', survivors' if away else ''}", total=len(left))
                for result in opened[lane].results(left):
                    assert result.mutant is not None
                    before = found[result.mutant].seconds if result.mutant in found else 0
                    found[result.mutant] = replace(result, seconds=round(before + result.seconds, 2))
                    bars.advance(bar)
    return {mutant: found[mutant] for mutant in chosen}


def _survives(result: Result) -> bool:
    return result.verdict == "survived"


def tell(results: Sequence[Result], equivalent: dict[str, str], json_path: str | None) -> int:
    """The table, the survivors, the score."""
    rows: dict[str, Counter[str]] = {}
    for result in results:
        assert result.mutant is not None
        rows.setdefault(result.mutant.module, Counter())[result.verdict] += 1
    table = Table("module", *(("mutants"), "killed", "timed out", "survived", "equivalent"))
    total = sum(rows.values(), Counter[str]())
    for name, row in [*sorted(rows.items()), ("all", total)]:
        verdicts = (row.total(), *(row[verdict] for verdict in ("killed", "timed out", "survived", "equivalent")))
        table.add_row(name, *map(str, verdicts))
    out.print(table)
    survivors = [result.mutant for result in results if _survives(result) and result.mutant]
    for mutant in survivors:
        out.print(f"{mutant.module}:{mutant.line}: {mutant.before} -> {mutant.after}   [{mutant.id}]", markup=False)
    asked = total.total() - total["equivalent"]
    score = (total["killed"] + total["timed out"]) / asked if asked else 1.0
    out.print(f"score {score:.1%}: {asked - len(survivors)} of {count(asked, 'mutant')}", markup=False)
    if json_path:
        document = {"score": score, "mutants": [as_json(result) for result in results]}
        Path(json_path).write_text(json.dumps(document, indent=1) + "\n")
    wrong = [r.mutant.id for r in results if r.mutant and r.mutant.id in equivalent and r.verdict != "equivalent"]
    if wrong:
        raise Stale(f"called equivalent, and killed: {', '.join(wrong)}")
    if total["equivalent"] > max(MOST_EQUIVALENT * total.total(), 1):
        out.print(f"more than {MOST_EQUIVALENT:.0%} are called equivalent", markup=False)
        return 1
    return 0 if score >= WANTED else 1


def as_json(result: Result) -> dict[str, object]:
    mutant = result.mutant
    assert mutant is not None
    told = {name: getattr(mutant, name) for name in ("id", "module", "line", "kind", "before", "after")}
    return {**told, **{name: getattr(result, name) for name in ("lane", "verdict", "by", "seconds")}}


if __name__ == "__main__":
    sys.exit(main())
