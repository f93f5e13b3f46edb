"""Delta debugging: from any failing sequence to a 1-minimal one that breaks the same clause.

    small = minimize(failure, factory)

Whole requests first, then operations and pairs of them, then the configuration, then arguments, then operations and
requests together with the room that they took, again and again until no single step helps: no operation can be left
out, no batch member, no number made smaller, no size of the configuration. What it may cost is counted in operations,
not in seconds, so that the same failure becomes the same file on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from ..errors import KVCacheError
from .child import run_safely
from .configuration import Configuration
from .operations import BadCall, Operation
from .replay import Failure
from .simpler import changes, numbers_of, simpler_than, without
from .subjects import offered_by
from .texts import Prompt

Operations = tuple[Operation, ...]
Try = Callable[[Configuration, Operations], Failure | None]

BUDGET = {"cpu": 150_000, "cuda": 60_000, "interpret": 6_000}
"""Operations that minimising may run, by lane: about a minute at 2,500, 1,000 and 100 a second. Most failures need a
hundredth of it; a workload's, of thousands of operations, stops here."""

SETUP = 10
"""What an attempt costs beside its operations: a fresh subject is about as expensive as ten of them."""


def minimize(failure: Failure, factory: Callable[[Configuration], Any], *, budget: int | None = None) -> Failure:
    """The smallest failure found that breaks the same clause. `budget`: operations to run, of which those of the last
    attempt may be over; BUDGET's if None. Stops early when they are spent, with what it has."""
    left = BUDGET[failure.config.device.partition(":")[0]] if budget is None else budget
    offered = offered_by(factory, failure.config.level, failure.config.device)

    def attempt(config: Configuration, operations: Operations) -> Failure | None:
        nonlocal left
        if left <= 0 or (offered and config.page_size not in offered.page_sizes):
            return None
        found = run_safely(config, operations, factory)
        left -= SETUP + len(found.operations if found else operations)
        return found if found and is_alike(found, failure) else None

    best = attempt(failure.config, failure.operations) or failure
    while True:
        before = (best.config, best.operations)
        best = _fewer_requests(best, attempt)
        best = _fewer_operations(best, attempt)
        best = _fewer_pairs(best, attempt)
        best = _simpler_configuration(best, attempt)
        best = _simpler_operations(best, attempt)
        best = _fewer_operations_in_less_room(best, attempt)
        best = _fewer_requests_in_less_room(best, attempt)
        if (best.config, best.operations) == before:
            return _renumbered(best, attempt)


def is_alike(found: Failure, failure: Failure) -> bool:
    """Whether it is the same failure: the same clause, and of a slot allocator, which can have several faults in one
    clause, the same operation in the same situation, to be refused in the same way."""
    if failure.config.level == "slots":
        return found.broken.key == failure.broken.key and found.broken.refusal == failure.broken.refusal
    return found.broken.clause == failure.broken.clause


def _fewer_requests(best: Failure, attempt: Try) -> Failure:
    """Leave a request out of every operation at once: what took its pages goes together with what gave them back."""
    numbers = {n for operation in best.operations for n in numbers_of(operation)}
    size = max(len(numbers) // 2, 1)
    while numbers:
        for gone in _chunks(sorted(numbers), size):
            kept = tuple(left for operation in best.operations if (left := without(operation, gone)))
            if kept != best.operations and (found := attempt(best.config, kept)):
                best = found
                numbers -= gone
        if size == 1:
            return best
        size //= 2
    return best


def _chunks(numbers: list[int], size: int) -> Iterator[set[int]]:
    return (set(numbers[i : i + size]) for i in range(0, len(numbers), size))


def _fewer_operations(best: Failure, attempt: Try) -> Failure:
    """Leave out runs of operations, halving their length down to one, the last ones first."""
    size = max(len(best.operations) // 2, 1)
    while True:
        start = len(best.operations) - size
        while start > -size:
            kept = best.operations[: max(start, 0)] + best.operations[start + size :]
            if found := attempt(best.config, kept):
                best = found
                start = min(start, len(best.operations))
            start -= size
        if size == 1:
            return best
        size //= 2


PAIRS_UP_TO = 24
"""Operations of a sequence whose pairs are tried: at most 276, of a few steps each."""


def _fewer_pairs(best: Failure, attempt: Try) -> Failure:
    """Two operations less at once, wherever they stand: a begin and its end, what takes and what makes room."""
    second = len(best.operations) - 1
    while second > 0 and len(best.operations) <= PAIRS_UP_TO:
        for first in range(second - 1, -1, -1):
            kept = [operation for i, operation in enumerate(best.operations) if i not in (first, second)]
            if found := attempt(best.config, tuple(kept)):
                best = found
                break
        second = min(second, len(best.operations)) - 1
    return best


def _simpler_operations(best: Failure, attempt: Try) -> Failure:
    """Each operation with fewer members, smaller numbers, plainer flags."""
    index = 0
    while index < len(best.operations):
        for simpler in simpler_than(best.operations[index]):
            if found := attempt(best.config, (*best.operations[:index], simpler, *best.operations[index + 1 :])):
                best = found
                break
        else:
            index += 1
    return best


def _simpler_configuration(best: Failure, attempt: Try) -> Failure:
    """Fewer pages, rows and tokens, no speculation, smaller pages."""
    progress = True
    while progress:
        progress = False
        for change in changes(best.config):
            try:
                config = replace(best.config, **change)
            except KVCacheError:
                continue
            if found := attempt(config, best.operations):
                best, progress = found, True
                break
    return best


def _fewer_operations_in_less_room(best: Failure, attempt: Try) -> Failure:
    """One operation less and a smaller pool at once: what only fills the pool can go when the pool shrinks with it."""
    index = len(best.operations) - 2
    while index >= 0:
        kept = best.operations[:index] + best.operations[index + 1 :]
        best = _in_less_room(best, kept, attempt) or best
        index = min(index, len(best.operations) - 1) - 1
    return best


def _fewer_requests_in_less_room(best: Failure, attempt: Try) -> Failure:
    """One request less and a smaller pool at once."""
    for number in sorted({n for operation in best.operations for n in numbers_of(operation)}):
        kept = tuple(left for operation in best.operations if (left := without(operation, {number})))
        best = _in_less_room(best, kept, attempt) or best
    return best


def _in_less_room(best: Failure, kept: Operations, attempt: Try) -> Failure | None:
    """The operations that are left on a smaller pool, or with fewer rows."""
    for name in ("num_pages", "max_requests"):
        most = getattr(best.config, name)
        for less in range(most - 1, max(most - 9, 0), -1):
            smaller: dict[str, Any] = {name: less}
            if found := attempt(replace(best.config, **smaller), kept):
                return found
    return None


def _renumbered(best: Failure, attempt: Try) -> Failure:
    """Requests counted 1, 2, 3 in the order in which they appear, if that still fails."""
    order: dict[int, int] = {}
    renumbered = tuple(_with_numbers(operation, order) for operation in best.operations)
    return attempt(best.config, renumbered) or best


def _with_numbers(operation: Operation, order: dict[int, int]) -> Operation:
    if isinstance(operation, BadCall):
        return replace(operation, call=_with_numbers(operation.call, order))
    new: dict[str, Any] = {}
    for f in fields(operation):
        value = getattr(operation, f.name)
        if f.name == "request":
            new[f.name] = order.setdefault(value, len(order) + 1)
        elif f.name == "requests":
            new[f.name] = tuple(order.setdefault(number, len(order) + 1) for number in value)
        elif f.name == "prompt":
            new[f.name] = _rewritten(value, order)
        elif f.name == "prompts":
            new[f.name] = tuple(_rewritten(prompt, order) for prompt in value)
    return replace(operation, **new)


def _rewritten(prompt: Prompt, order: dict[int, int]) -> Prompt:
    """The writers that are requests under their new numbers."""
    return tuple((end, order.setdefault(w, len(order) + 1) if w > 0 else w) for end, w in prompt)
