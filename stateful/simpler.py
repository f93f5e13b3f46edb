"""What is one step simpler than an operation or a configuration, the largest steps first.

for less in simpler_than(Extend((1, 2), (5, 3))): ...
for change in changes(config): replace(config, **change)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any

from ..errors import KVCacheError
from .configuration import Configuration
from .operations import BadCall, Operation, RawCall
from .texts import Prompt


def numbers_of(operation: Operation) -> tuple[int, ...]:
    """The requests that it names."""
    if isinstance(operation, BadCall):
        return numbers_of(operation.call)
    one = getattr(operation, "request", None)
    return getattr(operation, "requests", ()) if one is None else (one,)


def without(operation: Operation, gone: set[int]) -> Operation | None:
    """The operation without these requests, None if nothing is left of it."""
    numbers = numbers_of(operation)
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


def simpler_than(operation: Operation) -> Iterator[Operation]:
    """The operation made smaller in one place: a member less, a number, a flag."""
    if isinstance(operation, BadCall):
        yield from (replace(operation, call=call) for call in simpler_than(operation.call))
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


def changes(config: Configuration) -> Iterator[dict[str, Any]]:
    """What to change in a configuration, each of them one step; some are refused by it."""
    if config.speculation is not None:
        yield {"speculation": None}
        for name in ("steps", "topk", "draft_tokens"):
            for less in _less(getattr(config.speculation, name)):
                if less:
                    changed: dict[str, Any] = {name: less}
                    yield {"speculation": replace(config.speculation, **changed)}
    for size in sorted({1, 2, 4, config.page_size // 2}):
        if 0 < size < config.page_size:
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
