"""What minimising leaves is 1-minimal: every step down that there is, tried here by another list than the minimiser's.

What it may cost is a number of operations, so the same failure becomes the same file on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import pytest

from ..errors import KVCacheError
from . import minimize as minimising
from .configuration import Configuration
from .faults import GALLERY
from .minimize import SETUP, minimize
from .operations import Operation
from .reach import Reach
from .replay import Failure, run
from .soak import soak

NAMES = (
    "a_page_freed_twice",
    "a_lock_lost_in_a_split",
    "a_younger_lease_forgotten_at_retire",
    "a_window_counted_from_the_reserve",
    "a_backup_that_is_free_already",
    "a_hole_freed_on_release",
    "a_set_freed_in_pieces",
)
"""One of each kind: paths, cache, leases, windows, HiSparse, pre-allocation, slots."""


@cache
def failure_of(name: str) -> Failure:
    for level in ("engine", "slots"):
        if failure := soak(level, GALLERY[name].factory, steps=6_000, seed=11, reach=Reach()):
            return failure
    raise AssertionError(f"{name} was not found")


@cache
def minimised(name: str) -> Failure:
    return minimize(failure_of(name), GALLERY[name].factory)


def less(value: Any) -> Iterator[Any]:
    """The value one less, in one place: a number, a flag that is off, a member or a part that is left out."""
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int):
        if value > 0:
            yield value - 1
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from ((*value[:i], smaller, *value[i + 1 :]) for smaller in less(part))
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            for smaller in less(getattr(value, field.name)):
                yield replace(value, **{field.name: smaller})


def smaller_operations(operation: Operation) -> Iterator[Operation]:
    """One number or flag less, or one member of the batch less. Requests are names, and what is usual is not written:
    to neither there is a step down."""
    for field in fields(operation):
        usual = getattr(operation, field.name) == field.default
        if not usual and field.name not in ("request", "requests", "prompt", "prompts"):
            for value in less(getattr(operation, field.name)):
                yield replace(operation, **{field.name: value})
    members = getattr(operation, "requests", ())
    for gone in range(len(members) if len(members) > 1 else 0):
        lists = {f.name: v for f in fields(operation) if len(v := _tuple(getattr(operation, f.name))) == len(members)}
        yield replace(operation, **{name: (*v[:gone], *v[gone + 1 :]) for name, v in lists.items()})


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def smaller_configurations(config: Configuration) -> Iterator[Configuration]:
    """One field less: a size by one, a page halved, a part that is left out."""
    for field in fields(config):
        value = getattr(config, field.name)
        halved = [value // 2] if field.name == "page_size" else []
        without = [None] if is_dataclass(value) else []
        for changed in (*halved, *without, *_lesser(value)):
            try:
                yield replace(config, **{field.name: changed})
            except KVCacheError:
                continue


def _lesser(value: Any) -> Iterator[Any]:
    try:
        yield from less(value)
    except KVCacheError:  # a part of a configuration refuses a size of its own
        return


@pytest.mark.parametrize("name", NAMES)
def test_no_operation_can_be_left_out(name: str) -> None:
    small = minimised(name)
    for i in range(len(small.operations)):
        assert not same(small, small.config, small.operations[:i] + small.operations[i + 1 :], name)


@pytest.mark.parametrize("name", NAMES)
def test_no_argument_can_be_smaller(name: str) -> None:
    small = minimised(name)
    for i, operation in enumerate(small.operations):
        for smaller in smaller_operations(operation):
            changed = (*small.operations[:i], smaller, *small.operations[i + 1 :])
            assert not same(small, small.config, changed, name), f"{operation}: {smaller} does as well"


def test_there_are_steps_down_to_try() -> None:
    assert sum(1 for name in NAMES for one in minimised(name).operations for _ in smaller_operations(one)) > len(NAMES)
    assert sum(1 for name in NAMES for _ in smaller_configurations(minimised(name).config)) > len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_part_of_the_configuration_can_be_smaller(name: str) -> None:
    small = minimised(name)
    for config in smaller_configurations(small.config):
        assert not same(small, config, small.operations, name), f"{config.to_json()} does as well"


def same(small: Failure, config: Configuration, operations: tuple[Operation, ...], name: str) -> bool:
    """Whether this breaks the same clause."""
    found = run(config, operations, GALLERY[name].factory)
    return found is not None and found.broken.clause == small.broken.clause


@pytest.mark.parametrize("name", NAMES)
def test_a_minimised_failure_cannot_be_minimised_further(name: str) -> None:
    small = minimised(name)
    again = minimize(small, GALLERY[name].factory)
    assert (again.config, again.operations) == (small.config, small.operations)


def test_minimising_stops_when_its_operations_are_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock: the budget bounds what is run, and what it has by then is a failure all the same."""
    ran: list[int] = []

    def counted(config: Any, operations: Any, factory: Any, **named: Any) -> Failure | None:
        ran.append(len(operations))
        return run(config, operations, factory, **named)

    name = "a_lock_lost_in_a_split"
    large, small = failure_of(name), minimised(name)
    monkeypatch.setattr(minimising, "run_safely", counted)
    part = minimize(large, GALLERY[name].factory, budget=400)
    assert len(small.operations) < len(part.operations) <= len(large.operations)
    assert same(part, part.config, part.operations, name)
    assert len(ran) <= 400 // SETUP + 1
    assert minimize(large, GALLERY[name].factory, budget=400).operations == part.operations
