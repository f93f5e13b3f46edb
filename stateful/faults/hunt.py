"""Hunting a fault of the gallery the way `kvcore check` would, with no strategy that depends on the fault.

found = hunt(GALLERY["a_page_freed_twice"], seed=0)
found.failure, found.operations, found.seconds
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..minimize import minimize
from ..profiles import PROFILES
from ..reach import Reach
from ..replay import Failure
from ..soak import EPISODE, soak
from . import Fault


@dataclass(frozen=True)
class Found:
    """How a fault was found: operations and seconds from the first operation on; the failure is minimised."""

    failure: Failure | None
    driver: str
    operations: int
    seconds: float


def hunt(fault: Fault, *, seed: int) -> Found:
    """As many operations as the quick profile's soak, on one core, the levels taking turns as two workers would."""
    reach, started = Reach(), time.perf_counter()
    for piece in range(PROFILES["quick"].soak_steps // EPISODE):
        for level in ("engine", "slots"):
            failure = soak(level, fault.factory, steps=EPISODE, seed=seed * 1_000_003 + piece, reach=reach)
            if failure:
                seconds = time.perf_counter() - started
                return Found(minimize(failure, fault.factory), f"soak {level}", reach.steps, seconds)
    return Found(None, "", reach.steps, time.perf_counter() - started)
