"""What is checked on a workload: what each operation touched at once, everything else every N operations.

    runner = Runner(config, factory, checker=TouchedChecker)
    runner.step(operation)          # record, layout, owner, counts and stamps of the rows that it touched
    runner.finish()                 # and a last recount of everything

Behind the interface of `checkers.FullChecker`, whose work grows with the pool: a snapshot and an audit of a real one
cost a hundred operations. Nothing is sampled. Every slot is stamped when it is handed out and read back through the
row before it is given back, so a slot, a row entry or a stamp that anyone else moved meanwhile shows then or at the
next recount; a recount covers the whole table, stale entries too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..auditing import audit
from ..snapshots import CACHE_FIELDS, Snapshot
from .checkers import GIVES_BACK
from .ledger import Ledger
from .operations import (
    Checkpoint,
    Commit,
    DeviceBuffer,
    Operation,
    Release,
    ReleaseOverallocated,
    Retract,
    SwapOut,
)
from .stamps import contents
from .verdicts import Broken, Growth, Legal, Verdict

Int64 = NDArray[np.int64]

RECOUNT_EVERY = 2000
"""Operations between two recounts. One costs about as much as 100 operations: 5 % of the run."""

_NOTHING = np.zeros(0, dtype=np.int64)
_NO_TABLE = np.zeros((0, 0), dtype=np.int32)
_TOUCHED = ("KV-1", "KV-2", "KV-3", "KV-4")


class TouchedChecker:
    """The engine level, for pools and rows of real size."""

    def __init__(self, subject: Any, ledger: Ledger, checks: Counter[str]) -> None:
        self.subject, self.ledger, self.checks = subject, ledger, checks
        state: Snapshot = subject.snapshot()
        for violation in audit(state):
            raise Broken(violation.clause, f"before the first operation: {violation.message}")
        self.table = state.slots  # what every entry has to be, stale ones too
        slots = (ledger.config.num_pages + 1) * ledger.config.page_size
        self.content = np.zeros(slots, dtype=np.int64)
        self.owner = np.zeros(slots, dtype=np.int64)
        self.row_of: dict[int, int] = {}
        self.read: dict[tuple[int, int, int], Int64] = {}
        self.window: Int64 | None = None  # what was written into the window pool's slots
        if ledger.pools.window is not None:
            self.window = np.zeros((ledger.pools.window.num_pages + 1) * ledger.config.page_size, dtype=np.int64)
        self.state_before = state
        self.since_recount = 0

    def before(self, operation: Operation, verdict: Verdict) -> None:
        """Read back what a legal call will give away; keep the state that a refused one may not change."""
        if not isinstance(verdict, Legal):
            self.state_before = self.subject.snapshot()
        elif isinstance(operation, (Release, Retract)):
            for number in operation.requests:
                self._read_back(number, 0)
                self._read_offloaded(number)
        elif isinstance(operation, (SwapOut, DeviceBuffer)):
            self._read_offloaded(operation.request)
        elif isinstance(operation, ReleaseOverallocated):
            self._read_back(operation.request, self.ledger.live[operation.request].committed)
        elif isinstance(verdict, Legal) and verdict.gives_up and self.ledger.pools.is_pure:
            for number, begin, _ in verdict.gives_up:
                self._read_back(number, begin)
        elif isinstance(operation, Checkpoint):
            self._read_back(operation.request, self.ledger.live[operation.request].protected)

    def observe(self) -> None:
        """Forget what was read before the call."""
        self.read.clear()

    def read_row(self, request: int, start: int, end: int) -> Int64:
        """The slots of [start, end) in the request's row, read once an operation."""
        if start == end:
            return _NOTHING
        slots = self.read.get((request, start, end))
        if slots is None:
            self._row(request)
            slots = self.read[request, start, end] = self.subject.row(request, start, end)
        return slots

    def read_map(self, pages: Sequence[int]) -> list[int]:
        """The window page of each page."""
        found: list[int] = self.subject.window_pages(pages) if pages else []
        return found

    def read_device_map(self, pages: Sequence[int]) -> list[int]:
        """The device page of each page."""
        found: list[int] = self.subject.device_pages(pages) if pages else []
        return found

    def read_held(self, what: str, request: int) -> list[int]:
        """The pages of a request's buffer, or its host pages."""
        found: list[int] = self.subject.held(what, request)
        return found

    def unchanged(self, operation: Operation) -> None:
        """After a refusal: bit for bit as before (KV-7)."""
        self.checks["KV-7"] += 1
        before, after = self.state_before, self.subject.snapshot()
        # The table apart: as bytes, which are as good for small ones, this one takes ten times as long.
        changed = [] if np.array_equal(before.slots, after.slots) else ["slots"]
        changed += replace(before, slots=_NO_TABLE).differences(replace(after, slots=_NO_TABLE))
        if changed:
            raise Broken("KV-7", f"{operation.name} was refused, and changed: {', '.join(changed)}")

    def after(self, operation: Operation, verdict: Legal) -> None:
        """After a call that succeeded and that the ledger has entered."""
        for clause in _TOUCHED:
            self.checks[clause] += 1
        self.checks["KV-9"] += self.ledger.cache.on
        self.checks["KV-10"] += self.window is not None or self.ledger.pools.device is not None
        if isinstance(operation, (Release, Retract)):
            self._released(operation)
        grown = [growth for growth in verdict.growth if growth.end > growth.start]
        # Whose lengths stay is compared when they move next: a commit follows every reserve.
        for growth in verdict.growth if isinstance(operation, Commit) else grown:
            self._record(operation, growth.request)
        for number in verdict.touched:
            self._record(operation, number)
        self._share(operation)
        self._counts(operation)
        self._stamp(grown, verdict.window_from or 0)
        self.since_recount += 1
        if self.since_recount == RECOUNT_EVERY:
            self._recount(operation.name)

    def at_end(self) -> None:
        """Recount everything once more."""
        self._recount("the last operation")

    def _row(self, request: int) -> int:
        """The row that the request holds, which never changes while it holds one."""
        row: int = self.subject.row_of(request)
        if self.row_of.setdefault(request, row) != row:
            raise Broken("KV-4", f"request {request} held row {self.row_of[request]}, now {row}", rows=(row,))
        if not 0 < row < len(self.table):
            raise Broken("KV-4", f"request {request} should hold a row and has row {row}")
        return row

    def _record(self, operation: Operation, request: int) -> None:
        held, found = self.ledger.live[request], self.subject.lengths(request)
        right = (held.protected, held.committed, held.allocated)
        if found != right:
            message = f"request {request} has protected, committed, allocated {found}, should be {right}"
            raise Broken("KV-4", f"after {operation.name}: {message}", rows=(self.subject.row_of(request),))

    def _released(self, operation: Release | Retract) -> None:
        for number in operation.requests:
            self.row_of.pop(number, None)
            row, lengths = self.subject.row_of(number), self.subject.lengths(number)
            if row or any(lengths):
                message = f"request {number} still has row {row} and lengths {lengths}"
                raise Broken("KV-4", f"after {operation.name}: {message}", rows=(row,))

    def _counts(self, operation: Operation) -> None:
        """As many tokens are free as the ledger expects, in each pool; the recount looks at the lists themselves."""
        clause = "KV-8" if operation.name in GIVES_BACK else "KV-5"
        self.checks[clause] += 1
        size, available = self.ledger.config.page_size, self.subject.available()
        expected = [pool.free * size for pool in self.ledger.pools.all()]
        if available != expected:
            raise Broken(clause, f"after {operation.name}: {available} tokens are free, should be {expected}")

    def _share(self, operation: Operation) -> None:
        """Positions that lie on the cache's pages from now on: those pages, and what was written there."""
        size = self.ledger.config.page_size
        for number, start, end in self.ledger.shared_now:
            held = self.ledger.live.get(number)
            if held is None:  # released at once
                continue
            row, slots = self._row(number), self.subject.row(number, start, end)
            right = np.array(held.pages[start // size : end // size], dtype=np.int64)[:, None] * size + np.arange(size)
            if not np.array_equal(slots, right.reshape(-1)):
                message = f"request {number} does not hold the cache's pages at positions {start}..{end}"
                raise Broken("KV-9", f"after {operation.name}: {message}", rows=(row,))
            self.table[row, start:end] = slots
            self._same_marks(number, start, slots, row)

    def _stamp(self, grown: list[Growth], window_from: int) -> None:
        """Write the marks of the new positions through their slots, and through the map."""
        for growth in grown:
            number, start, end = growth.request, growth.start, growth.end
            slots = self.read_row(number, start, end)
            self.table[self.row_of[number], start:end] = slots
            self.content[slots] = contents(self.ledger.live[number].text, start, end)
            self.owner[slots] = number
            if self.window is not None and end > window_from:
                through = slots[max(window_from - start, 0) :]
                self.window[self._through(through)] = self.content[through]

    def _through(self, slots: Int64) -> Int64:
        """The window slots of these slots, as the ledger's map has them; slot 0 where there is none."""
        size, pages = self.ledger.config.page_size, slots // self.ledger.config.page_size
        edges = np.flatnonzero(np.diff(pages, prepend=-1))
        window_pages = [self.ledger.pools.map.get(page, 0) for page in pages[edges].tolist()]
        spread = np.repeat(np.array(window_pages, dtype=np.int64), np.diff(edges, append=len(pages)))
        return np.where(spread > 0, spread * size + slots % size, 0)

    def _read_back(self, request: int, start: int) -> None:
        """Positions from `start` on, through the row, before they are given back."""
        row, held = self._row(request), self.ledger.live[request]
        start = max(start, held.cursor) if self.ledger.pools.is_pure and held.cursor > held.protected else start
        for begin, end in ((start, held.hole[0]), (max(start, held.hole[1]), held.allocated)):  # not in an open hole
            if begin < end:
                slots = self.subject.row(request, begin, end)
                if len(slots) != end - begin:
                    message = f"request {request} has {len(slots)} slots at positions {begin}..{end}"
                    raise Broken("KV-3", message, rows=(row,))
                self._same_marks(request, begin, slots, row)

    def _read_offloaded(self, request: int) -> None:
        """What a request has on device and host, before it is given back or moves: the pages that it was given."""
        pools, held, size = self.ledger.pools, self.ledger.live[request], self.ledger.config.page_size
        if pools.device is None:
            return
        resident = held.pages[: -(-held.resident // size)]
        for what, right, found in (
            ("device pages", [pools.device_map[page] for page in resident], self.read_device_map(resident)),
            ("buffer", held.buffer, self.read_held("buffer", request)),
            ("host pages", held.host, self.read_held("host", request)),
        ):
            if found != right:
                raise Broken("KV-10", f"request {request} had the {what} {right}, now {found}")

    def _same_marks(self, request: int, start: int, slots: NDArray[Any], row: int) -> None:
        """The row holds the slots that it was given, and they hold what was written there."""
        end = start + len(slots)
        if (slots != self.table[row, start:end]).any():
            at = start + int((slots != self.table[row, start:end]).argmax())
            message = f"request {request}, position {at} went from slot {self.table[row, at]} to {slots[at - start]}"
            raise Broken("KV-3", message, rows=(row,))
        held = self.ledger.live[request]
        wrong = self.content[slots] != contents(held.text, start, end)
        own = max(held.protected - start, 0)
        wrong[own:] |= self.owner[slots[own:]] != request  # before that it is whoever wrote it for the cache
        if self.window is not None:
            through = self._through(slots)
            lost = (through > 0) & (self.window[through] != self.content[slots])
            if lost.any():
                at = start + int(lost.argmax())
                what = "its window slot holds what another one wrote"
                raise Broken("KV-10", f"request {request}, position {at}: {what}", rows=(row,))
        if wrong.any():
            at = int(wrong.argmax())
            message = f"slot {slots[at]} holds what request {self.owner[slots[at]]} wrote"
            raise Broken("KV-1", f"request {request}, position {start + at}: {message}", rows=(row,))

    def _recount(self, name: str) -> None:
        """The whole state, in the order record, bounds, layout, owner, content."""
        self.since_recount = 0
        self.checks.update((*_TOUCHED, "KV-13"))
        state, live, said = self.subject.snapshot(), self.ledger.live, f"at the recount after {name}"
        bound = {self._row(number): number for number in live}
        if state.bound != bound:
            raise Broken("KV-4", f"{said}: rows are bound as {state.bound}, should be {bound}")
        records = np.zeros_like(state.records[:-1])
        for row, number in bound.items():
            held = live[number]
            lens = held.protected, held.committed, held.allocated
            offloaded = held.resident, held.hosted, len(held.buffer), held.newest
            records[:, row] = *lens, held.cursor, held.floor, *held.hole, *offloaded
        for row in np.flatnonzero((records != state.records[:-1]).any(axis=0)).tolist():
            raise Broken("KV-4", f"{said}: row {row} has the record {state.record(row)}", rows=(row,))
        violations = audit(state)
        for violation in violations:
            if violation.clause not in ("KV-1", "KV-10"):
                raise Broken(violation.clause, f"{said}: {violation.message}", violation.pages, violation.rows)
        if not np.array_equal(state.slots, self.table):
            row, position = (int(i[0]) for i in np.nonzero(state.slots != self.table))
            was, found = self.table[row, position], state.slots[row, position]
            what = f"row {row}, position {position} went from slot {was} to {found}"
            clause = "KV-3" if position < state.records[2, row] else "KV-13"
            raise Broken(clause, f"{said}: {what}", rows=(row,))
        for violation in violations:
            raise Broken(violation.clause, f"{said}: {violation.message}", violation.pages, violation.rows)
        self._recount_cache(state, said)
        for ledger, (name, pool) in zip(self.ledger.pools.all(), state.pools.items(), strict=True):
            if not ledger.agree(pool):
                raise Broken("KV-1", f"{said}: the free pages of pool {name} are others than the ledger's")
        pools = self.ledger.pools
        right = {"window": pools.map, "device": pools.device_map}
        for name, (mapped, target) in state.maps.items():
            if dict(zip(mapped.tolist(), target.tolist(), strict=True)) != right[name]:
                raise Broken("KV-10", f"{said}: the {name} map is another than the ledger's")
        if pools.device is not None and state.held != self.ledger.held_by(self.row_of):
            raise Broken("KV-10", f"{said}: buffers, host pages or back-ups are others than the ledger's")
        for number in bound.values():
            self._read_back(number, 0)

    def _recount_cache(self, state: Snapshot, said: str) -> None:
        """Every cached page: its prefix, its locks, its history."""
        right = np.zeros_like(state.cache)
        for page, cached in self.ledger.cache.by_page.items():
            right[:, page] = cached.column()
        if (right != state.cache).any():
            field, page = (int(i[0]) for i in np.nonzero(right != state.cache))
            what = f"{CACHE_FIELDS[field]} is {state.cache[field, page]}, should be {right[field, page]}"
            raise Broken("KV-9", f"{said}: cached page {page}: {what}", pages=(page,))
