"""What a subject offers: the operations whose methods it has, with the signatures that are called.

    offer = offer_of(subject)
    offer.operations, offer.missing, offer.wrong

A method that is missing is not asked; one that cannot be called as it will be is a fault of the subject, told at once.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from ..operations import ENGINE_OPERATIONS, SLOT_OPERATIONS, BadCall
from . import UnusableSubject
from .protocol import Capabilities, Engine, SlotAllocator

ONLY_WITH = {
    "alloc_extend_tail": "window",
    "free_window": "window",
    "alloc_logical_only": "hisparse",
    "alloc_device_buffer": "hisparse",
}
"""Operations of the slot level, and the pool that they are about."""

ONLY_WHERE_ASKED = {"free_group_begin": "KV-11", "free_group_end": "KV-11"}
"""Operations that nothing but the one clause is about: where it is not asked, they are not called."""

BESIDE = {"alloc_device_buffer": ("free_device_buffer",)}
"""Methods that an operation needs besides the one of its name."""


SHOWS = {"slots": ("available",), "engine": ("snapshot", "available")}
"""Methods without which nothing can be compared."""

HANDS_OUT = {"slots": ("alloc", "alloc_extend"), "engine": ("extend", "prealloc")}
"""Operations one of which there has to be, or a request never holds anything."""


@dataclass(frozen=True)
class Offer:
    """operations: those that are driven, and bad calls where they are asked. missing, wrong: operation -> what was
    looked for and what is there."""

    operations: frozenset[str]
    missing: dict[str, str]
    wrong: dict[str, str]


def offer_of(subject: Any) -> Offer:
    """Looks at the subject's methods, or at those of its class; calls none."""
    capabilities: Capabilities = subject.capabilities
    slots = capabilities.level == "slots"
    known = SLOT_OPERATIONS if slots else ENGINE_OPERATIONS
    offered: set[str] = set()
    missing: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for operation in known:
        name = operation.name
        if slots and ONLY_WITH.get(name, "paged") not in ("paged", *capabilities.pools):
            continue
        clause = ONLY_WHERE_ASKED.get(name)
        if clause is not None and clause not in capabilities.asked:
            continue
        declared = capabilities.operations is None or name in capabilities.operations
        if not declared:
            missing[name] = "the subject does not offer it"
            continue
        for method in (name, *BESIDE.get(name, ())):
            if not hasattr(subject, method):
                told = f"the subject has no method {_written(method, slots)}"
                (missing if capabilities.operations is None else wrong)[name] = told
            elif unfit := _unfit(subject, method, slots):
                wrong[name] = unfit
        if name not in missing and name not in wrong:
            offered.add(name)
    if "KV-15" in capabilities.asked:
        offered.add(BadCall.name)
    return Offer(frozenset(offered), missing, wrong)


def require_what_is_needed(subject: Any, offer: Offer) -> None:
    """UnusableSubject if too little is there to drive the subject at all."""
    level = subject.capabilities.level
    for method in SHOWS[level]:
        if not callable(getattr(subject, method, None)):
            raise UnusableSubject(f"makes a {type(subject).__name__}, which has no method {method}()")
    if not offer.operations.intersection(HANDS_OUT[level]):
        first, second = ({**offer.missing, **offer.wrong}[name] for name in HANDS_OUT[level])
        raise UnusableSubject(f"hands out nothing: {first}; {second}")


def _expected(method: str, slots: bool) -> inspect.Signature:
    return inspect.signature(getattr(SlotAllocator if slots else Engine, method))


def _written(method: str, slots: bool) -> str:
    """The method as it is called: its name, its arguments, what it returns."""
    signature = _expected(method, slots)
    given = ", ".join(list(signature.parameters)[1:])
    returns = {"Int64": " -> slots int64", "None": ""}.get(str(signature.return_annotation))
    return f"{method}({given}){f' -> {signature.return_annotation}' if returns is None else returns}"


def _unfit(subject: Any, method: str, slots: bool) -> str:
    """Why the method cannot be called as it will be; empty if it can."""
    found = getattr(subject, method)
    if not callable(found):
        return f"{method} is no method; expected is {_written(method, slots)}"
    try:
        signature = inspect.signature(found)
    except ValueError:
        return ""  # a builtin does not say
    own = [object()] if inspect.isclass(subject) and inspect.isfunction(found) else []
    try:
        signature.bind(*own, *list(_expected(method, slots).parameters)[1:])
    except TypeError as error:
        return f"{method}{signature} cannot be called as {_written(method, slots)}: {error}"
    return ""
