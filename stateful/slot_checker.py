"""What is checked after every operation of the slot level: lists, maps and stamps against the ledger.

    checker = SlotChecker(subject, ledger, checks)
    checker.observe()
    checker.after(operation, verdict)        # raises Broken

What a subject does not show is not checked: without its list of free pages their number is, without its queue what an
open free group keeps is taken from the ledger.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..auditing import Violation
from ..snapshots import PoolState
from .checkers import StateChecker, named
from .operations import Operation
from .pages import PageLedger
from .slot_ledger import SlotLedger
from .subjects.observed import shows_pages, shows_queue
from .verdicts import Broken, Held, Legal

Int64 = NDArray[np.int64]


class SlotChecker(StateChecker):
    """What is free is exactly what nobody holds, maps are exact, and every held slot bears one stamp."""

    ledger: SlotLedger

    def __init__(self, subject: Any, ledger: SlotLedger, checks: Counter[str]) -> None:
        super().__init__(subject, ledger, checks)
        self.stamps = np.zeros((ledger.config.num_pages + 1) * ledger.config.page_size, dtype=np.int64)
        self.written: dict[int, Int64] = {}  # the slots that bear a number's stamp, by position
        self.sees_pages, self.sees_queue = shows_pages(subject), shows_queue(subject)

    def after(self, operation: Operation, verdict: Legal) -> None:
        """After a call that succeeded and that the ledger has entered."""
        self.checks.update(_AUDITED)
        self.checks["KV-11"] += self.ledger.pages.group_open
        if self.sees_pages:
            for (name, expected), pool in zip(self.ledger.pools.items(), self.state.pools.values(), strict=True):
                self._pool(operation, name, pool, expected)
        self._counts(operation)
        second = self.ledger.second
        if second is not None and second.names[1] in self.state.maps:
            self.checks["KV-10"] += 1
            second.check(self.ledger.live, self.state, self.ledger.pages)
        self._stamps(verdict)

    def _stamps(self, verdict: Legal) -> None:
        """Take the stamps off what nobody holds any more, and put them on what a call has lengthened: where one is
        still on, a slot has two holders."""
        live, written, stamps = self.ledger.live, self.written, self.stamps
        for number, slots in list(written.items()):
            if number not in live:
                stamps[written.pop(number)] = 0
            elif (length := live[number].allocated) < len(slots):
                stamps[slots[length:]] = 0
                written[number] = slots[:length]
        for growth in verdict.growth:
            held = live.get(growth.request)
            if held is None or growth.end == growth.start:
                continue
            slots = self._slots(held, growth.start, growth.end)
            if (twice := stamps[slots]).any():
                told = f"a slot of request {int(twice[twice > 0][0])} holds what request {growth.request} wrote"
                raise Broken("KV-1", told, pages=tuple(held.pages))
            stamps[slots] = growth.request
            before = written.get(growth.request)
            written[growth.request] = slots if before is None else np.concatenate((before, slots))

    def _slots(self, held: Held, start: int, end: int) -> Int64:
        size = self.ledger.config.page_size
        pages = np.array(held.pages[start // size :], dtype=np.int64) * size
        slots: Int64 = (pages[:, None] + np.arange(size)).reshape(-1)
        return slots[start % size : start % size + end - start]

    def _pool(self, operation: Operation, name: str, pool: PoolState, pages: PageLedger) -> None:
        """The pages that a pool lists are those that nobody holds, each once."""
        if not self.sees_queue and pages.queued:
            # A group may keep what is freed until it closes, and need not.
            early = pages.queued.intersection(pool.free.tolist())
            pages.queued -= early
            pages.unheld |= early
        queued = pool.queued if self.sees_queue else np.array(sorted(pages.queued), dtype=np.int64)
        if pages.agree(PoolState(pool.num_pages, pool.free, pool.staged, queued)):
            return
        listed = np.concatenate((pool.free, pool.staged, queued)).tolist()
        where = "" if self.ledger.second is None else f" in pool {name}"
        outside = sorted({page for page in listed if not 1 <= page <= pool.num_pages})
        if outside:
            clause = "KV-2" if 0 in outside else "KV-1"
            raise Broken(clause, f"after {operation.name}: pages {outside} are listed as free{where}")
        twice = sorted(page for page, count in Counter(listed).items() if count > 1)
        held = sorted(pages.owner.keys() & set(listed))
        lost = sorted((pages.unheld | pages.queued) - set(listed))
        if not twice and not held and not lost:
            raise Broken(
                "KV-11", f"after {operation.name}: pages {queued.tolist()} are queued{where}, others should be"
            )
        violation = Violation(
            "KV-1",
            f"pages listed twice as free: {twice}; free and held: {held}; lost: {lost}{where}",
            pages=(*twice, *held, *lost),
            only_lost=not twice and not held,
        )
        raise named(violation, operation)


_AUDITED = Counter({"KV-1": 1, "KV-2": 1, "KV-3": 1})
