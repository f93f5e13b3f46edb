"""The gallery: real bugs of KV-cache allocators, re-created as small overrides of the one place that is wrong.

    kvcore faults --only record_forgotten_in_extend
    kvcore check --subject kvcore.stateful.faults:record_forgotten_in_extend

A suite that has never failed proves nothing. Each fault is a subject: its name is a factory of this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..subjects.protocol import Factory


@dataclass(frozen=True)
class Fault:
    """One bug. `source`: where it was reported. `clauses`: the at most two that may name it. `story`: two sentences.
    `device`: the lane in which it shows.
    """

    id: str
    source: str
    clauses: tuple[str, ...]
    story: str
    factory: Factory
    device: str = "cpu"

    @property
    def group(self) -> str:
        """What its module is about: the beginning of that module's docstring."""
        return (sys.modules[self.factory.__module__].__doc__ or "").partition(":")[0]


GALLERY: dict[str, Fault] = {}


def fault(source: str, *clauses: str, device: str = "cpu") -> Callable[[Factory], Factory]:
    """Enter a factory into the gallery under its own name; its docstring is the story."""

    def enter(factory: Factory) -> Factory:
        name, story = factory.__name__, " ".join((factory.__doc__ or "").split())
        GALLERY[name] = Fault(name, source, clauses, story, factory, device)
        return factory

    return enter


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` for the time of a call."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def __getattr__(name: str) -> Factory:
    if name in GALLERY:
        return GALLERY[name].factory
    raise AttributeError(f"the gallery has no fault {name!r}; `kvcore faults` lists them")


from . import caching, deferred, kernels, offload, paths, preallocation, slots, windows  # noqa: E402, F401  (they enter themselves)
