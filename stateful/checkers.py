"""What is checked after every operation: the whole state, against the audit, the ledger and the stamps.

    checker = FullChecker(subject, ledger, checks)
    checker.observe()                        # read the state that the call left
    checker.after(operation, verdict)        # raises Broken

Order: record, bounds, layout, owner, counts, content. For small configurations; `touched.TouchedChecker` behind the
same interface is for workloads, `slot_checker.SlotChecker` for slot allocators, which have no rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..auditing import Violation, audit
from ..records import FIELDS
from ..snapshots import CACHE_FIELDS, PoolState, Snapshot
from .ledger import Ledger
from .operations import Operation
from .pages import PageLedger
from .stamps import Stamps
from .subjects.observed import available, observer
from .verdicts import Broken, Legal, Verdict

Int64 = NDArray[np.int64]

GIVES_BACK = (
    "release", "retract", "release_overallocated", "checkpoint", "window_evict", "retire", "free_group_end",
    "free", "free_segment", "free_window", "clear",
)  # fmt: skip


class StateChecker:
    """What the checkers of both levels share: the last state, the one before, the refusal that changes nothing."""

    def __init__(self, subject: Any, ledger: Any, checks: Counter[str]) -> None:
        self.subject, self.ledger, self.checks = subject, ledger, checks
        slots = ledger.config.level == "slots"
        self.expected: list[PageLedger] = list(ledger.pools.values()) if slots else ledger.pools.all()
        names = ledger.pools if slots else {}
        self.look = observer(subject, {name: pool.num_pages for name, pool in names.items()})
        self.state: Snapshot = self.look()
        self.state_before = self.state

    def before(self, operation: Operation, verdict: Verdict) -> None:
        """Nothing to do: the state after the last operation is the state before this one."""

    def observe(self) -> None:
        """Read the state that a call has left."""
        self.state_before, self.state = self.state, self.look()

    def unchanged(self, operation: Operation) -> None:
        """After a refusal: bit for bit as before (KV-7)."""
        self.observe()
        self.checks["KV-7"] += 1
        if changed := self.state_before.differences(self.state):
            raise Broken("KV-7", f"{operation.name} was refused, and changed: {', '.join(changed)}")

    def at_end(self) -> None:
        """Nothing is left to recount."""

    def _counts(self, operation: Operation) -> None:
        """The pages listed as free are as many as the allocator says and as the ledger expects, in each pool."""
        size = self.state.page_size
        clause = "KV-8" if operation.name in GIVES_BACK else "KV-5"
        self.checks[clause] += 1
        said = available(self.subject, self.state.pools)
        for (name, pool), expected in zip(self.state.pools.items(), self.expected, strict=True):
            listed = len(pool.free) + len(pool.staged)
            if not listed * size == said[name] == expected.free * size:
                raise Broken(
                    clause,
                    f"after {operation.name}: the allocator says that {said[name]} tokens are free in pool {name}, "
                    f"{listed} pages are listed, {expected.free} should be",
                )


class FullChecker(StateChecker):
    """The engine level. It keeps the state that has to be: every entry of the table, stale ones too, every record,
    every stamp. One comparison of each tells whether all is well; where one differs it asks which clause that is."""

    ledger: Ledger

    def __init__(self, subject: Any, ledger: Ledger, checks: Counter[str]) -> None:
        super().__init__(subject, ledger, checks)
        for violation in audit(self.state):
            raise Broken(violation.clause, f"before the first operation: {violation.message}")
        self.row_of: dict[int, int] = {}
        self.records = np.zeros_like(self.state.records[:-1])
        self.table = self.state.slots.copy()
        self.cache = self.state.cache.copy()
        pools = ledger.pools
        self.maps = {"window": pools.map, "device": pools.device_map}
        second = {"window": pools.window, "device": pools.device}
        sizes = {name: pool.num_pages for name, pool in second.items() if pool is not None}
        self.stamps = Stamps(ledger.config.num_pages, ledger.config.page_size, self.table.shape, sizes)
        self.since_audit = 0

    def read_row(self, request: int, start: int, end: int) -> Int64:
        """The slots of [start, end) in the request's row, as last observed."""
        row = self.row_of.get(request)
        if row is None:
            found = [row for row, number in self.state.bound.items() if number == request]
            if not found:
                raise Broken("KV-4", f"request {request} should hold a row and does not")
            row = self.row_of[request] = found[0]
        return self.state.slots[row, start:end].astype(np.int64)

    def after(self, operation: Operation, verdict: Legal) -> None:
        """After a call that succeeded and that the ledger has entered."""
        self._expect(verdict)
        state, table_before, books = self.state, self.table, self.ledger.pools
        for growth in verdict.growth:
            row = self.row_of[growth.request]
            table_before[row, growth.start : growth.end] = state.slots[row, growth.start : growth.end]
        self._share()
        sound = (
            len(state.bound) == len(self.row_of)
            and state.records[:-1].tobytes() == self.records.tobytes()
            and state.slots.tobytes() == self.table.tobytes()
            and state.cache.tobytes() == self.cache.tobytes()
            and all(ledger.agree(pool) for ledger, pool in zip(self.expected, state.pools.values(), strict=True))
            and (books.window is None or self._map("window") == books.map)
            and (
                books.device is None
                or (self._map("device") == books.device_map and state.held == self.ledger.held_by(self.row_of))
            )
        )
        self.since_audit += 1
        if not sound or self.since_audit == AUDIT_EVERY:
            self._name_what_is_wrong(operation)
            self.since_audit = 0
        self.checks.update(_FULL)
        self.checks["KV-9"] += self.ledger.cache.on
        self.checks["KV-10"] += books.window is not None or books.device is not None
        self.checks["KV-11"] += books.group_open
        self.checks["KV-16"] += bool(books.leases)
        self._counts(operation)
        for growth in verdict.growth:
            if growth.end > growth.start:
                row = self.row_of[growth.request]
                slots = state.slots[row, growth.start : growth.end]
                self.stamps.write(self.ledger.live[growth.request], row, growth.start, slots, self.maps)
        self.stamps.check(state)

    def _expect(self, verdict: Legal) -> None:
        """Move the expected state as the ledger has moved."""
        live = self.ledger.live
        if len(self.row_of) != len(live):
            for number in self.row_of.keys() - live.keys():
                row = self.row_of.pop(number)
                self.records[:, row] = 0
                self.stamps.forget(row, 0)
        for number in (*(growth.request for growth in verdict.growth), *verdict.touched):
            held = live[number]
            lens = held.protected, held.committed, held.allocated
            offloaded = held.resident, held.hosted, len(held.buffer), held.newest
            self.records[:, self.row_of[number]] = *lens, held.cursor, held.floor, *held.hole, *offloaded
        for number in verdict.touched:
            self.stamps.forget(self.row_of[number], live[number].allocated)
        if self.ledger.pools.is_pure:
            for number, begin, end in verdict.gives_up:
                self.stamps.forget(self.row_of[number], begin, end)
        if self.ledger.cache.changed:
            pages = list(self.ledger.cache.changed)
            cached = [self.ledger.cache.by_page.get(page) for page in pages]
            self.cache[:, pages] = np.array([one.column() if one else _NOT_CACHED for one in cached], dtype=np.int64).T

    def _share(self) -> None:
        """What lies on the cache's pages from now on, and whose slots belong to the cache."""
        size = self.ledger.config.page_size
        if self.ledger.published:
            self.stamps.publish(_slots_of(self.ledger.published, size))
        for number, start, end in self.ledger.shared_now:
            held, row = self.ledger.live.get(number), self.row_of.get(number)
            if held is not None and row is not None:  # else released at once
                self.table[row, start:end] = _slots_of(held.pages[start // size : end // size], size)
                self.stamps.share(held, row, start, end)

    def _name_what_is_wrong(self, operation: Operation) -> None:
        """Record, bounds, layout, owner: the first that does not hold. Every AUDIT_EVERY operations also where all
        seems well, so that the recount from the raw state is exercised by itself."""
        state, live = self.state, sorted(self.ledger.live)
        if sorted(state.bound.values()) != live:
            raise Broken("KV-4", f"requests with a row are {sorted(state.bound.values())}, should be {live}")
        for row in np.flatnonzero((state.records[:-1] != self.records).any(axis=0)).tolist():
            names = zip(FIELDS, state.records[:-1, row].tolist(), self.records[:, row].tolist(), strict=False)
            wrong = ", ".join(f"{name} is {found}, should be {right}" for name, found, right in names if found != right)
            raise Broken("KV-4", f"after {operation.name}: row {row} ({state.bound.get(row)}): {wrong}", rows=(row,))
        violations = audit(state)
        for violation in violations:
            if violation.clause not in ("KV-1", "KV-10"):
                raise named(violation, operation)
        changed = state.slots != self.table
        if changed.any():
            row, position = (int(i[0]) for i in np.nonzero(changed))
            inside = position < state.records[2, row]
            was, now = self.table[row, position], state.slots[row, position]
            what = f"row {row}, position {position} went from slot {was} to {now}"
            if position < self.records[0, row]:
                raise Broken("KV-9", f"after {operation.name}: {what} instead of the cache's {was}", rows=(row,))
            raise Broken("KV-3" if inside else "KV-13", f"after {operation.name}: {what}", rows=(row,))
        for violation in violations:
            raise named(violation, operation)
        if (state.cache != self.cache).any():
            field, page = (int(i[0]) for i in np.nonzero(state.cache != self.cache))
            found, right = state.cache[field, page], self.cache[field, page]
            what = f"cached page {page}: {CACHE_FIELDS[field]} is {found}, should be {right}"
            raise Broken("KV-9", f"after {operation.name}: {what}", pages=(page,))
        for ledger, (name, pool) in zip(self.expected, state.pools.items(), strict=True):
            if not ledger.agree(pool):
                raise Broken(*_disagreement(operation, name, pool, ledger))
        pools = self.ledger.pools
        for name, expected in (("window", pools.map), ("device", pools.device_map)):
            mapped = self._map(name) if name in state.maps else {}
            if mapped == expected:
                continue
            page = min(set(mapped.items()) ^ set(expected.items()))[0]
            what = f"the {name} map has {page} -> {mapped.get(page, 0)}, should be {expected.get(page, 0)}"
            raise Broken("KV-10", f"after {operation.name}: {what}", pages=(page,))
        if pools.device is not None and state.held != self.ledger.held_by(self.row_of):
            found, right = state.held, self.ledger.held_by(self.row_of)
            wrong = next(name for name in right if found[name] != right[name])
            raise Broken("KV-10", f"after {operation.name}: {wrong}: {found[wrong]}, should be {right[wrong]}")

    def read_map(self, pages: Sequence[int]) -> list[int]:
        """The window page of each page, as last observed."""
        found = self._map("window")
        return [found.get(page, 0) for page in pages]

    def read_device_map(self, pages: Sequence[int]) -> list[int]:
        """The device page of each page, as last observed."""
        found = self._map("device")
        return [found.get(page, 0) for page in pages]

    def read_held(self, what: str, request: int) -> list[int]:
        """The pages of a request's buffer, or its host pages, as last observed."""
        row = next((row for row, number in self.state.bound.items() if number == request), 0)
        return list(self.state.held[what].get(row, ()))

    def _map(self, name: str) -> dict[int, int]:
        mapped, target = self.state.maps[name]
        return dict(zip(mapped.tolist(), target.tolist(), strict=True))


AUDIT_EVERY = 16
"""Operations between two recounts of a state that compares equal: it costs as much as the operation itself."""


def _disagreement(operation: Operation, name: str, pool: PoolState, ledger: PageLedger) -> tuple[str, str]:
    """The clause, and which list of the pool holds the wrong pages."""
    said = f"after {operation.name}: pool {name}: "
    if set(pool.quarantined.tolist()) != ledger.quarantined:
        return "KV-16", f"{said}{pool.quarantined.tolist()} are in quarantine, should be {sorted(ledger.quarantined)}"
    if set(pool.queued.tolist()) != ledger.queued:
        return "KV-11", f"{said}{pool.queued.tolist()} are queued, should be {sorted(ledger.queued)}"
    return "KV-1", f"{said}pages {[*pool.free.tolist(), *pool.staged.tolist()]} are free, the ledger knows others"


def _slots_of(pages: list[int], size: int) -> Int64:
    slots: Int64 = (np.array(pages, dtype=np.int64)[:, None] * size + np.arange(size)).reshape(-1)
    return slots


_NOT_CACHED = (0,) * len(CACHE_FIELDS)
_FULL = Counter({"KV-1": 1, "KV-2": 1, "KV-3": 1, "KV-4": 1, "KV-13": 1})


def named(violation: Violation, operation: Operation) -> Broken:
    """Ownership that breaks while pages come back is KV-8; pages that an allocation lost were taken too many: KV-5."""
    clause = violation.clause
    if clause == "KV-1" and violation.pages:
        if operation.name in GIVES_BACK:
            clause = "KV-8"
        elif violation.only_lost:
            clause = "KV-5"
    return Broken(clause, f"after {operation.name}: {violation.message}", violation.pages, violation.rows)
