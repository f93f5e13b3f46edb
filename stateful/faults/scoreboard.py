"""What came of hunting the gallery: a line a fault, the figures beside their bars, the page docs/faults.md.

    board = [Score.of(fault, found) for fault, found in hunt_all(list(GALLERY.values()), seed=0)]
    asdict(board[0]), wrong(board), figures(board), page(board, seed=0)

Seconds are CPU seconds of one core and differ from run to run; all else is the seed's, so the page leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ...contract import CONTRACT
from . import GALLERY, Fault
from .hunt import Found


@dataclass(frozen=True)
class Score:
    """One fault. caught: named, by a clause of its list. caught_by: the clause that named it, "" if none did.
    replay_length: operations of the minimised replay; None for a kernel that fails alone, whose finding is a call."""

    id: str
    source: str
    clauses: tuple[str, ...]
    caught: bool
    caught_by: str
    driver: str
    operations: int
    seconds: float
    replay_length: int | None

    @classmethod
    def of(cls, fault: Fault, found: Found) -> Score:
        length = len(found.failure.operations) if found.failure else None
        good, seconds = found.clause in fault.clauses, round(found.seconds, 3)
        return cls(
            fault.id, fault.source, fault.clauses, good, found.clause, found.driver, found.operations, seconds, length
        )


def wrong(board: Sequence[Score]) -> list[str]:
    """The faults that were missed or named by a clause that is not in their list, in words."""
    found = []
    for score in board:
        if not score.caught_by:
            found.append(f"{score.id} was missed in {score.operations:,} operations")
        elif not score.caught:
            found.append(f"{score.id} was named by {score.caught_by}; what may name it is {' or '.join(score.clauses)}")
    return found


SECONDS = {"cpu": "2 s, at most 30 s", "interpret": "10 s"}
"""What a lane's median and maximum are held to."""


def figures(board: Sequence[Score]) -> Iterator[str]:
    """How long it took, lane by lane, and how long the replays are, beside what they are held to."""
    for lane, bar in SECONDS.items():
        times = [score.seconds for score in board if GALLERY[score.id].device == lane]
        if times:
            told = f"median {median(times):.2f} s of CPU, at most {max(times):.2f} s"
            yield f"lane {lane}: {told} until found (bars: median {bar})"
    lengths = [score.replay_length for score in board if score.replay_length is not None]
    if lengths:
        told = f"median {median(lengths):g} operations, at most {max(lengths)}"
        yield f"replays: {told} (bars: median 5, at most 10)"


def by_clause() -> str:
    """A table in Markdown: how many faults each clause has to name, and how many of them were reported in public."""
    lines = ["| clause | faults | of them re-created from reports |", "|---|---|---|"]
    for clause in CONTRACT.values():
        named = [fault for fault in GALLERY.values() if fault.clauses[0] == clause.id]
        reported = sum(fault.source != "none known" for fault in named)
        lines.append(f"| {clause.id} {clause.name} | {len(named)} | {reported} |")
    return "\n".join(lines)


def page(board: Sequence[Score], *, seed: int) -> str:
    """docs/faults.md: every fault with its story and how it was found, under the file that it stands in."""
    lines = [
        "# The planted faults",
        "",
        f"Written by `kvcore faults --seed {seed} --markdown docs/faults.md`. Each line is a bug that was planted in",
        "kvcore's own allocator, hunted as the quick profile would on one core, and what named it: after how many",
        "operations of the seed, and how many of them are left in the minimised replay. A kernel that fails alone has",
        "no replay; its finding is a call. `kvcore faults --only ID` shows the failure.",
        "",
        by_clause(),
    ]
    group = ""
    for score in board:
        fault = GALLERY[score.id]
        if fault.group != group:
            group = fault.group
            lines += [
                "",
                f"## {group}",
                "",
                "| fault | what goes wrong | source | may name it | named by | operations | replay |",
            ]
            lines.append("|---|---|---|---|---|---|---|")
        lines.append(row(score))
    return "\n".join([*lines, ""])


def row(score: Score) -> str:
    """The fault's line in the page."""
    replay = "a call" if score.replay_length is None else str(score.replay_length)
    cells = (f"`{score.id}`", GALLERY[score.id].story, score.source, " ".join(score.clauses))
    return f"| {' | '.join(cells)} | {score.caught_by}, {score.driver} | {score.operations:,} | {replay} |"
