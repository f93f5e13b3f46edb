"""What a run writes: the JSON of check and workload, and `.kvcore/last-run.json`.

write_json(path, document(reach, capabilities, verdict=..., seconds=..., ...))
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..contract import CONTRACT
from .check import KernelFailure
from .reach import Reach
from .replay import Failure
from .subjects.protocol import Capabilities

LAST_RUN = Path(".kvcore") / "last-run.json"


def document(
    reach: Reach,
    capabilities: Iterable[Capabilities],
    failure: Failure | None,
    replay: Path | None,
    kernel_failure: KernelFailure | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """`facts` are verdict, seconds, subject, device, profile, seed and what a command adds."""
    broken = failure.broken.clause if failure else kernel_failure.clause if kernel_failure else None
    asked: dict[str, bool] = {}
    why: dict[str, str] = {}
    for offered in capabilities:
        for clause in CONTRACT:
            asked[clause] = asked.get(clause, False) or clause in offered.asked
            if clause in offered.why_not:
                why.setdefault(clause, offered.why_not[clause])
    return {
        **facts,
        "steps": reach.steps,
        "operations": {
            name: {key: counter[key] for key in ("chosen", "changed", "refused")}
            for name, counter in sorted(reach.operations.items())
        },
        "states": dict(sorted(reach.states.items())),
        "clauses": {
            clause: {
                "asked": asked.get(clause, False),
                "checks": reach.checks[clause],
                "violations": int(clause == broken),
                "why": "" if asked.get(clause, False) else why.get(clause, "the subject does not say"),
            }
            for clause in CONTRACT
        },
        "kernels": dict(sorted(reach.kernels.items())),
        "not_asked": _not_asked(reach, asked, why),
        "failure": _failure(failure, replay, kernel_failure),
    }


def _not_asked(reach: Reach, asked: dict[str, bool], why: dict[str, str]) -> dict[str, str]:
    """Operations that no subject has offered, and clauses that are not asked on any level, with the reason."""
    operations = {name: told for name, told in sorted(reach.lacking.items()) if name not in reach.offered}
    return operations | {clause: why.get(clause, "the subject does not say") for clause in asked if not asked[clause]}


def _failure(failure: Failure | None, replay: Path | None, kernel: KernelFailure | None) -> dict[str, Any] | None:
    if failure:
        return {"clause": failure.broken.clause, "message": failure.broken.message, "replay": str(replay)}
    return {"clause": kernel.clause, "message": kernel.text, "replay": None} if kernel else None


def write_json(path: Path, data: Any) -> None:
    """Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
