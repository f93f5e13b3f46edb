"""How a call ended, and whether a subject without typed errors has refused it as it says it does.

    outcome = outcome_of(lambda: subject.alloc(8), Alloc(1, 8), subject.capabilities)
    refused_in_its_own_way(operation, verdict, outcome, unchanged)        # raises Broken

kvcore's own errors carry numbers and clauses, which the runner compares. Of others it is asked that they refuse when
and only when they have to, in the way that they declare, and that nothing has changed then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ContractError, KVCacheOutOfMemory
from .configuration import Configuration
from .operations import BadCall, Operation, RawCall
from .subjects import in_words
from .subjects.observed import integers
from .subjects.protocol import Capabilities
from .verdicts import Bad, Broken, Crashed, Done, Legal, Outcome, Refused, Short, Verdict

RETURNS_SLOTS = ("alloc", "alloc_extend", "alloc_decode", "alloc_draft", "alloc_extend_tail", "alloc_logical_only",
                 "alloc_device_buffer")  # fmt: skip
"""Operations of the slot level that return slots, so that None instead of them is a refusal."""


def outcome_of(perform: Callable[[], Any], call: Operation, capabilities: Capabilities) -> Outcome:
    """Done, Refused or Crashed. Broken, which a lockstep subject raises, is handed on."""
    try:
        value = perform()
    except Broken:
        raise
    except KVCacheOutOfMemory as error:
        return Refused("shortage", error)
    except ContractError as error:
        return Refused("bad_call", error)
    except capabilities.shortage as error:
        return Refused("shortage", error)
    except (Exception, SystemExit) as error:
        return Crashed(error)
    if name_of(call) not in RETURNS_SLOTS:
        return Done(value)
    if value is None:
        return Refused("shortage", None)
    try:
        return Done(integers(value))
    except (TypeError, ValueError) as error:
        return Crashed(error)


def refused_in_its_own_way(
    operation: Operation, verdict: Verdict, outcome: Outcome, unchanged: Callable[[], None]
) -> None:
    """The call was refused, or should have been, by a subject without typed errors."""
    name = name_of(operation)
    match verdict, outcome:
        case Legal(), Crashed(error):
            raise Broken("KV-5", f"{name} is a legal call and ended in {in_words(error)}") from error
        case Legal(pages=pages), Refused(_, error):
            why = f" ({in_words(error)})" if error else ""
            raise Broken("KV-6", f"{name} was refused{why}; there is room for the {pages} pages that it needs")
        case Short(pool, need, free), Done():
            raise Broken("KV-6", f"{name} succeeded: it needs {need} pages of pool '{pool}', {free} are free")
        case Bad(), Done():
            raise Broken("KV-15", f"{name} cannot be right and was accepted")
    unchanged()
    if isinstance(verdict, Short) and isinstance(outcome, Crashed):
        told = f"{name} is short of '{verdict.pool}' and ended in {in_words(outcome.error)}"
        raise Broken("KV-6", f"{told}, not in the refusal that the subject declares") from outcome.error


def name_of(operation: Operation) -> str:
    """The name of what is called: of a bad call, that of the call itself."""
    if isinstance(operation, BadCall):
        return name_of(operation.call)
    return operation.method if isinstance(operation, RawCall) else operation.name


def situation_of(operation: Operation, verdict: Verdict, ledger: Any) -> str:
    """What was expected of an operation that the ledger has not entered, in words: the second half of a finding."""
    config: Configuration = ledger.config
    if isinstance(operation, BadCall):
        return operation.kind
    if isinstance(verdict, Short):
        told = f"short of {verdict.pool}"
    else:
        told = "legal" if isinstance(verdict, Legal) else "cannot be right"
        if config.level == "slots" and ledger.has_given_up(operation):
            told += ", behind a window"
    return f"{told}, page size 1" if config.level == "slots" and config.page_size == 1 else told
