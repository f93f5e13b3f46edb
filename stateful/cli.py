"""The command line: `kvcore check`, `workload`, `replay`, `faults`, `contract`, `bench`.

    kvcore check --subject my.package:factory

Exit status: 0 holds, 1 a clause is broken or a promised reach was missed, 2 the call itself is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import __version__
from .options import DEVICES, PROFILES, Options

DEFAULT = Options()


class WrongCall(Exception):
    """The call itself cannot be carried out; one line says why, and the exit status is 2."""


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Every option with its default, descriptions as written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default == [] or action.default is False:
            return action.help  # the help says what happens then
        return super()._get_help_string(action)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run; returns the exit status."""
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except WrongCall as error:
        print(f"kvcore {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"kvcore {arguments.command}: interrupted", file=sys.stderr)
        return 130


def run(arguments: argparse.Namespace) -> int:
    """The command that was named. Each loads what it needs: `kvcore --help` imports no torch."""
    device = getattr(arguments, "device", None)
    if device is None and arguments.command == "replay":
        device = recorded_device(arguments.file)
    if device == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, and for every worker
    try:
        from . import commands
    except ImportError as error:
        raise WrongCall(f"{error}; the commands need `pip install 'kvcore[suite]'`") from None
    from .subjects import UnusableSubject

    command: Callable[[argparse.Namespace], int] = getattr(commands, arguments.command)
    try:
        return command(arguments)
    except UnusableSubject as error:
        raise WrongCall(f"the subject {error}") from None


def recorded_device(file: str) -> str | None:
    """The device that a replay file names, read before anything is loaded; None if it names none."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None  # told by the command, which reads the file again
    return next((line.split()[1] for line in lines if line.startswith("device ") and len(line.split()) == 2), None)


def parser() -> argparse.ArgumentParser:
    """All commands and options."""
    top = argparse.ArgumentParser("kvcore", description=__doc__, formatter_class=Formatter, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"kvcore {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=summary, description=summary, formatter_class=Formatter, allow_abbrev=False
        )

    check = command("check", "random sequences against an allocator, every clause checked after every step")
    _subject(check, DEFAULT.subject)
    check.add_argument("--profile", choices=PROFILES, default=DEFAULT.profile, help="how many steps to run")
    check.add_argument(
        "-n",
        dest="workers",
        type=_at_least(1),
        metavar="WORKERS",
        help="processes; one a core if not given, on a GPU at most four for each",
    )
    check.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="OP=pkg.mod:fn",
        help="check this function as the device operation OP, and nothing else; may be repeated",
    )
    check.add_argument("-x", "--first", action="store_true", help="stop at the first finding instead of going on")
    check.add_argument(
        "--known-failures",
        metavar="FILE",
        help="failures that are expected, each with its issue; one that no longer fails is an error",
    )
    _seed_and_json(check)

    workload = command("workload", "a real request trace through a small continuous-batching scheduler")
    workload.add_argument("trace", metavar="TRACE", help="Mooncake JSONL or Azure LLM CSV")
    _subject(workload, DEFAULT.subject)
    workload.add_argument("--limit", type=_at_least(1), help="serve the first LIMIT requests only")
    workload.add_argument(
        "--pool",
        choices=("paged", "window", "hisparse"),
        default="paged",
        help="one pool, a second one for window layers, or a small one on the device and one on the host beside it",
    )
    workload.add_argument("--pages", type=_at_least(1), help="pages of the pool; from the trace if not given")
    workload.add_argument(
        "--window", type=_at_least(1), metavar="SIZE", help="with --pool window: tokens looked back; 4096 if not given"
    )
    workload.add_argument(
        "--window-pages",
        type=_at_least(1),
        metavar="PAGES",
        help="with --pool window: pages of its pool; from trace, window and chunk if not given",
    )
    workload.add_argument(
        "--device-pages",
        type=_at_least(1),
        metavar="PAGES",
        help="with --pool hisparse: pages on the device; a quarter, or what the largest request needs, if not given",
    )
    workload.add_argument(
        "--host-pages",
        type=_at_least(1),
        metavar="PAGES",
        help="with --pool hisparse: pages on the host; an eighth more than --pages if not given",
    )
    workload.add_argument(
        "--buffer-size",
        type=_at_least(1),
        metavar="TOKENS",
        help="with --pool hisparse: tokens of a request's device buffer; 2048 if not given",
    )
    workload.add_argument("--page-size", type=_at_least(1), default=64, help="tokens a page")
    workload.add_argument("--max-running", type=_at_least(1), default=64, help="requests that run at once")
    workload.add_argument("--chunk", type=_at_least(1), default=8192, help="prompt tokens computed a step")
    workload.add_argument("--spec", choices=("eagle", "dflash", "none"), default="eagle", help="speculative decoding")
    workload.add_argument(
        "--prefix-cache",
        choices=("radix", "none"),
        help="whether prompts share what they have in common, by the trace's hash ids; radix if not given, none with "
        "--pool hisparse",
    )
    workload.add_argument(
        "--eviction", choices=("lru", "lfu", "fifo"), default="lru", help="which cached pages go first"
    )
    _seed_and_json(workload)

    replay = command("replay", "run a replay file and show the first step that breaks a clause")
    replay.add_argument("file", metavar="FILE", help="a replay file, as a failing run writes it")
    _subject(replay, None)
    replay.add_argument("--minimize", action="store_true", help="write FILE.min, the smallest that fails alike")

    faults = command("faults", "the gallery of planted bugs: which are found, by which clause, how fast")
    faults.add_argument("--only", metavar="ID", help="this one, its failure shown as a user sees it")
    faults.add_argument("--device", choices=("cpu", "interpret"), help="only those of this lane; all if not given")
    _seed_and_json(faults)
    faults.add_argument("--markdown", metavar="FILE", help="write the gallery there as a page, with what named each")

    bench = command("bench", "times of the allocation paths, whole calls, beside an empty launch")
    bench.add_argument("--device", choices=DEVICES, default=DEFAULT.device, help="the lane to run in")
    part = bench.add_mutually_exclusive_group()
    part.add_argument("--soak", action="store_true", help="time the suite instead: checked operations a second")
    part.add_argument(
        "--cache", action="store_true", help="time the prefix cache instead: ten million tokens, host only"
    )
    bench.add_argument("--json", metavar="FILE", help="write the figures there too")

    contract = command("contract", "the clauses, their checks, their faults, and how often the last run exercised them")
    contract.add_argument("--json", metavar="FILE", help="write the table there too")
    return top


def _subject(command: argparse.ArgumentParser, default: str | None) -> None:
    said = "" if default else "; the file's own if not given"
    command.add_argument(
        "--subject", default=default, metavar="NAME|pkg.mod:factory", help=f"the allocator under test{said}"
    )
    command.add_argument(
        "--device", choices=DEVICES, default=default and DEFAULT.device, help=f"the lane to run in{said}"
    )


def _seed_and_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=_at_least(0), default=DEFAULT.seed, help="where the draws start")
    command.add_argument("--json", metavar="FILE", help="write the result there too")


def _at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"has to be at least {low}, not {value}")
        return value

    parse.__name__ = f"integer of at least {low}"
    return parse
