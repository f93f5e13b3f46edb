"""What a run has exercised: operations, states, clauses; and what a profile promises to reach.

reach = Reach()
runner = Runner(config, factory, reach)
...
reach.missing(PROFILES["quick"].floors)      # sentences; empty if the promise was kept
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .ledger import Ledger
from .operations import (
    BadCall,
    BindNewest,
    Checkpoint,
    Commit,
    DeviceBuffer,
    Evict,
    Extend,
    LateResult,
    Operation,
    PreallocHisparse,
    Release,
    SwapOut,
    WindowEvict,
)
from .slot_ledger import SlotLedger
from .verdicts import Legal, Short, Verdict

LOOKS_EVERY = 8
"""Steps on a large configuration between two looks at all requests: with dozens of them it is a tenth of a step."""


@dataclass
class Reach:
    """Counters that add up over runs. `checks` counts checks per clause, `operations` chosen, changed and refused.

    offered, lacking, unfit: operations that subjects have offered; lacked, with what was looked for; or offered with a
    method that cannot be called as it has to be.
    """

    steps: int = 0
    operations: dict[str, Counter[str]] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    offered: set[str] = field(default_factory=set)
    lacking: dict[str, str] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)

    def about_to(self, operation: Operation, verdict: Verdict, ledger: Any) -> None:
        """Count what can only be seen before the ledger moves."""
        if not isinstance(verdict, Legal) or isinstance(operation, BadCall):
            return
        if verdict.hits and verdict.pages > ledger.pages.free and ledger.cache.pinned(path for _, path in verdict.hits):
            self.states["batch evicts its own hit"] += 1  # or would, if it did not hold it first
        if isinstance(operation, Extend):
            size = ledger.config.page_size
            for growth in verdict.growth:
                if growth.start == growth.end:
                    self.states["zero-length member"] += 1
                elif growth.start % size:
                    self.states["mid-page chunk"] += 1
                if ledger.get(growth.request).retracted:
                    self.states["resumed"] += 1
        elif isinstance(operation, DeviceBuffer):
            held = ledger.live[operation.request]
            pages = -(-held.resident // ledger.config.page_size)
            self.states["buffer smaller than resident"] += ledger.wanted_buffer(held, held.allocated) < pages
        elif isinstance(operation, Release):
            if any(h.drafted and h.committed < h.allocated for h in map(ledger.get, operation.requests)):
                self.states["stop inside the draft"] += 1
        elif isinstance(operation, Commit):
            for number, accepted in zip(operation.requests, operation.accepted, strict=True):
                held = ledger.live[number]
                if accepted and held.committed + accepted == min(held.allocated, ledger.config.context_len):
                    self.states["all accepted"] += 1
                else:
                    self.states["some accepted" if accepted else "none accepted"] += 1

    def count(self, operation: Operation, verdict: Verdict, ledger: Any) -> None:
        """Count a step that held, from the ledger's state after it."""
        self.steps += 1
        counter = self.operations.setdefault(operation.name, Counter())
        counter["chosen"] += 1
        if not isinstance(verdict, Legal):
            counter["refused"] += 1
            if isinstance(verdict, Short):
                self.states[f"short of {verdict.pool}"] += 1
        else:
            growth = verdict.growth
            if isinstance(operation, (Release, Checkpoint)) and ledger.duplicates:
                self.states["duplicate insert"] += 1
            if _takes_effect(operation, verdict, ledger):
                counter["changed"] += 1
            if growth:
                self.states[f"batch of {len(growth)}"] += 1
        states = self.states
        if not ledger.pages.unheld:
            states["pool full"] += 1
        if len(ledger.live) >= 3:
            states["three or more live"] += 1
        size = ledger.config.page_size
        if isinstance(ledger, SlotLedger):
            if ledger.second is not None:
                states["second pool of slots full"] += not ledger.second.pages.unheld
            states["partial tail"] += any(held.allocated % size for held in ledger.live.values())
            return
        self._of_pools(ledger, verdict)
        if ledger.config.is_large and self.steps % LOOKS_EVERY:
            return
        near = ledger.near_the_limit
        partial = over = full = hole = shared = leaf = cursor = False
        for held in ledger.live.values():
            partial |= held.allocated % size != 0
            over |= held.committed < held.allocated
            full |= held.committed > near
            hole |= held.hole[1] > 0
            cursor |= 0 < held.cursor < held.protected
            if held.shared:
                shared |= held.shared[0].locks > 1
                leaf |= not held.shared[-1].children
        for name, reached in (
            ("partial tail", partial),
            ("over-allocated tail", over),
            ("row nearly full", full),
            ("hole open", hole),
            ("cursor inside prefix", cursor),
            ("shared page", shared),
            ("locked leaf", leaf),
            ("rows full", not ledger.free_rows),
        ):
            states[name] += reached

    def _of_pools(self, ledger: Ledger, verdict: Verdict) -> None:
        pools, states = ledger.pools, self.states
        if pools.window is not None and not pools.window.unheld:
            states["second pool full"] += 1
        for name, pool in (("device pool full", pools.device), ("host pool full", pools.host)):
            states[name] += pool is not None and not pool.unheld
        if pools.group_open and isinstance(verdict, Short):
            states["group open over shortage"] += 1
        for lease in pools.leases.values():
            if ledger.bindings(lease.requests) != tuple(lease.bindings.values()):
                states["lease over finish"] += 1
                break

    def add(self, other: Reach) -> None:
        """Add another run's counts."""
        self.steps += other.steps
        for name, counter in other.operations.items():
            self.operations.setdefault(name, Counter()).update(counter)
        self.states.update(other.states)
        self.checks.update(other.checks)
        self.kernels.update(other.kernels)
        self.offered |= other.offered
        self.lacking.update(other.lacking)
        self.unfit.update(other.unfit)


def _takes_effect(operation: Operation, verdict: Legal, ledger: Any) -> bool:
    """Whether a legal operation has changed anything."""
    if isinstance(operation, Commit):
        return any(operation.accepted)
    if isinstance(operation, Checkpoint):
        return bool(ledger.shared_now)
    if isinstance(operation, Evict):
        return bool(ledger.cache.changed)
    if isinstance(operation, WindowEvict):
        return bool(verdict.gives_up)
    if isinstance(operation, (PreallocHisparse, SwapOut, DeviceBuffer, BindNewest)):
        return bool(ledger.returned)
    if isinstance(operation, LateResult):
        return any(operation.accepted)
    return not verdict.growth or bool(verdict.hits) or any(g.end > g.start for g in verdict.growth)
