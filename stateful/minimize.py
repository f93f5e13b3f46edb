"""Delta debugging: from any failing sequence to a 1-minimal one that breaks the same clause.

    small = minimize(failure, factory)

Whole requests first, then operations and pairs of them, then the configuration, then arguments, then operations and
requests together with the room that they took, again and again until no single step helps: no operation can be left
out, no batch member, no number made smaller, no size of the configuration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any

from ..errors import KVCacheError
from .configuration import Configuration
from .operations import BadCall, Operation, RawCall
from .replay import Failure, run
from .texts import Prompt

Operations = tuple[Operation, ...]
Try = Callable[[Configuration, Operations], Failure | None]


def minimize(failure: Failure, factory: Callable[[Configuration], Any], *, seconds: float = 60.0) -> Failure:
    """The smallest failure found that breaks the same clause. Stops early when the time is up, with what it has."""
    clause, deadline = failure.broken.clause, time.monotonic() + seconds

    def attempt(config: Configuration, operations: Operations) -> Failure | None:
        if time.monotonic() > deadline:
            return None
        found = run(config, operations, factory)
        return found if found and found.broken.clause == clause else None

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


def _fewer_requests(best: Failure, attempt: Try) -> Failure:
    """Leave a request out of every operation at once: what took its pages goes together with what gave them back."""
    numbers = {n for operation in best.operations for n in _numbers(operation)}
    size = max(len(numbers) // 2, 1)
    while numbers:
        for gone in _chunks(sorted(numbers), size):
            kept = tuple(left for operation in best.operations if (left := _without(operation, gone)))
            if kept != best.operations and (found := attempt(best.config, kept)):
                best = found
                numbers -= gone
        if size == 1:
            return best
        size //= 2
    return best


def _chunks(numbers: list[int], size: int) -> Iterator[set[int]]:
    return (set(numbers[i : i + size]) for i in range(0, len(numbers), size))


def _numbers(operation: Operation) -> tuple[int, ...]:
    if isinstance(operation, BadCall):
        return _numbers(operation.call)
    one = getattr(operation, "request", None)
    return getattr(operation, "requests", ()) if one is None else (one,)


def _without(operation: Operation, gone: set[int]) -> Operation | None:
    """The operation without these requests, None if nothing is left of it."""
    numbers = _numbers(operation)
    if not gone.intersection(numbers):
        return operation
    stays = [i for i, number in enumerate(numbers) if number not in gone]
    if not stays or isinstance(operation, BadCall):
        return None
    return _members(operation, stays)


def _members(operation: Operation, stays: list[int]) -> Operation:
    """The operation with only these members of its batch."""
    lists = {f.name: getattr(operation, f.name) for f in fields(operation)}
    return replace(
        operation,
        **{n: tuple(v[i] for i in stays if i < len(v)) for n, v in lists.items() if isinstance(v, tuple) and v},
    )


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
        for simpler in _simpler(best.operations[index]):
            if found := attempt(best.config, (*best.operations[:index], simpler, *best.operations[index + 1 :])):
                best = found
                break
        else:
            index += 1
    return best


def _simpler(operation: Operation) -> Iterator[Operation]:
    if isinstance(operation, BadCall):
        yield from (replace(operation, call=call) for call in _simpler(operation.call))
        return
    if isinstance(operation, RawCall):
        return
    values = {f.name: getattr(operation, f.name) for f in fields(operation)}
    longest = max((len(value) for name, value in values.items() if isinstance(value, tuple)), default=0)
    if longest > 1:
        yield from (_members(operation, [i for i in range(longest) if i != gone]) for gone in range(longest))
    usual = {f.name: f.default for f in fields(operation) if f.default is not MISSING}
    for name, value in values.items():
        if name in ("request", "requests") or value == usual.get(name, MISSING):
            continue
        if name in usual:
            yield replace(operation, **{name: usual[name]})
        if name == "prompts":
            for i, prompt in enumerate(value):
                for simpler in _simpler_prompts(prompt):
                    yield replace(operation, **{name: (*value[:i], simpler, *value[i + 1 :])})
        elif name == "prompt":
            yield from (replace(operation, **{name: simpler}) for simpler in _simpler_prompts(value))
        elif isinstance(value, tuple):
            for i, number in enumerate(value):
                for less in _less(number):
                    yield replace(operation, **{name: (*value[:i], less, *value[i + 1 :])})
        elif value is True:
            yield replace(operation, **{name: False})
        elif isinstance(value, int) and value is not False:
            yield from (replace(operation, **{name: less}) for less in _less(value))


def _simpler_prompts(prompt: Prompt) -> Iterator[Prompt]:
    """Without one segment, or with one that ends earlier."""
    for i, (end, writer) in enumerate(prompt):
        yield (*prompt[:i], *prompt[i + 1 :])
        yield from ((*prompt[:i], (less, writer), *prompt[i + 1 :]) for less in _less(end) if less)


def _less(number: int) -> Iterator[int]:
    """Smaller numbers of the same sign, the smallest first."""
    seen = set()
    for less in (0, 1, number // 2, number * 3 // 4, number * 7 // 8, number * 31 // 32, number - 1):
        if 0 <= less < number and less not in seen:
            seen.add(less)
            yield less


def _simpler_configuration(best: Failure, attempt: Try) -> Failure:
    """Fewer pages, rows and tokens, no speculation, smaller pages."""
    progress = True
    while progress:
        progress = False
        for change in _changes(best.config):
            try:
                config = replace(best.config, **change)
            except KVCacheError:
                continue
            if found := attempt(config, best.operations):
                best, progress = found, True
                break
    return best


def _changes(config: Configuration) -> Iterator[dict[str, Any]]:
    if config.speculation is not None:
        yield {"speculation": None}
        for name in ("steps", "topk", "draft_tokens"):
            for less in _less(getattr(config.speculation, name)):
                if less:
                    changed: dict[str, Any] = {name: less}
                    yield {"speculation": replace(config.speculation, **changed)}
    for size in (1, 2, 4):
        if size < config.page_size:
            yield {"page_size": size}
    for name in ("num_pages", "max_requests", "context_len"):
        yield from ({name: less} for less in _less(getattr(config, name)) if less)
    if config.checked:
        yield {"checked": False}
    if config.prefix_cache != "none":
        yield {"prefix_cache": "none", "eviction": "lru"}
    if config.eviction != "lru":
        yield {"eviction": "lru"}
    if config.hisparse is not None:
        yield {"hisparse": None}
        for name in ("ratio", "buffer_size", "device_pages", "host_pages"):
            for less in _less(getattr(config.hisparse, name)):
                fewer: dict[str, Any] = {name: less}
                with suppress(KVCacheError):
                    yield {"hisparse": replace(config.hisparse, **fewer)}
    if config.need_sort:
        yield {"need_sort": False}
    if config.window is not None:
        yield {"window": None}
        for name in ("interval", "floor", "size", "num_pages"):
            for less in _less(getattr(config.window, name)):
                part: dict[str, Any] = {name: less}
                with suppress(KVCacheError):
                    yield {"window": replace(config.window, **part)}


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
    for number in sorted({n for operation in best.operations for n in _numbers(operation)}):
        kept = tuple(left for operation in best.operations if (left := _without(operation, {number})))
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
