"""A pool as a person sees it: which page belongs to whom.

print(page_map(before, after))

    page     1  2  3  4
    before   a  .  .  #
    after    a  a  !  #      ! two places at once    ? nowhere    . free    # in the prefix cache
    a = request 1 (row 1): committed 5, allocated 8, slots 4 5 6 7 8 9 10 11
"""

from __future__ import annotations

from collections import defaultdict
from string import ascii_lowercase

import numpy as np

from ..snapshots import PoolState, Snapshot

WIDTH = 24
"""Pages a line: three columns each, and the line fits a terminal of 80."""

MOST = 240
"""Pages of a map; of a larger pool only those are shown that the operation changed."""


def page_map(before: Snapshot, after: Snapshot) -> str:
    """The pools before and after an operation, and the requests that the letters stand for."""
    letters = _letters(before, after)
    lines: list[str] = []
    for name, pool in after.pools.items():
        maps = {"before": _places(before, before.pools[name], letters), "after": _places(after, pool, letters)}
        if len(after.pools) > 1:
            lines.append(f"pool {name}")
        pages = list(range(1, pool.num_pages + 1))
        if pool.num_pages > MOST:
            pages = [page for page in pages if maps["before"][page] != maps["after"][page]][:MOST]
            lines.append(f"the first {len(pages)} pages that changed, of {pool.num_pages:,}")
        for start in range(0, len(pages), WIDTH):
            line = pages[start : start + WIDTH]
            lines.append("page   " + "".join(f"{page:>3}" for page in line))
            for title, places in maps.items():
                lines.append(f"{title:<7}" + "".join(f"{_symbol(places[page]):>3}" for page in line))
    shown = "".join(lines)
    legend = [("!", "two places at once"), ("?", "nowhere"), (".", "free"), ("#", "in the prefix cache")]
    lines.append("       " + "   ".join(f"{sign} {text}" for sign, text in legend if sign in shown))
    for state in (before, after):
        title = "before" if state is before else "after"
        for row, number in sorted(state.bound.items()):
            record = state.record(row)
            slots = " ".join(map(str, state.row_slots(row)[:40]))
            more = " ..." if record["allocated"] > 40 else ""
            shared = f"protected {record['protected']}, " if record["protected"] else ""
            hole = f"hole {record['hole_lo']}..{record['hole_hi']}, " if record["hole_hi"] else ""
            lines.append(
                f"{title:<7} {letters[number]} = request {number} (row {row}): {shared}"
                f"committed {record['committed']}, allocated {record['allocated']}, {hole}slots {slots or 'none'}{more}"
            )
    return "\n".join(lines)


def _letters(*states: Snapshot) -> dict[object, str]:
    numbers = sorted({number for state in states for number in state.bound.values()})
    return {number: ascii_lowercase[i % 26] + "'" * (i // 26) for i, number in enumerate(numbers)}


def _places(state: Snapshot, pool: PoolState, letters: dict[object, str]) -> dict[int, list[str]]:
    """Every place that names a page."""
    places: dict[int, list[str]] = defaultdict(list)
    for part in (pool.free, pool.staged, pool.queued):
        for page in part.tolist():
            places[page].append(".")
    for page in np.flatnonzero(state.cache[0]).tolist():
        places[page].append("#")
    for row, number in state.bound.items():
        record, size = state.record(row), state.page_size
        for position in range(record["protected"], record["allocated"], size):
            if not record["hole_lo"] <= position < record["hole_hi"]:
                places[int(state.slots[row, position]) // size].append(letters[number])
    return places


def _symbol(places: list[str]) -> str:
    return "?" if not places else places[0] if len(places) == 1 else "!"
