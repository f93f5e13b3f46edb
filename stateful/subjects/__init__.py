"""Adapters: an allocator under test, by name.

factory = load_subject("my.package:factory")
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ..configuration import Configuration
from .protocol import Capabilities, Factory

BY_NAME = {"kvcore": "kvcore.stateful.subjects.kvcore:kvcore"}


class UnknownSubject(ValueError):
    """No subject goes by this name; the message says what was tried."""


def load_subject(name: str) -> Factory:
    """The factory named `NAME` (one of BY_NAME) or `pkg.mod:factory`, looked up from the current folder too."""
    factory: Factory = load(BY_NAME.get(name, name))
    return factory


def load(name: str) -> Any:
    """The function that `pkg.mod:function` names. UnknownSubject says why there is none."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UnknownSubject(f"{name!r} is neither one of {', '.join(BY_NAME)} nor pkg.mod:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: ./kernels of a checkout must not hide an installed package
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise UnknownSubject(f"{name!r}: {error}") from None
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UnknownSubject(f"{name!r}: {module_name} has no function {attribute!r}")
    return found


def offered_by(factory: Factory, level: str, device: str) -> Capabilities | None:
    """What a factory says of the subject that it makes for this level; None if it makes one of the other level.

    Read from `factory.capabilities`, as a class has it; else one subject is made, on a small configuration.
    """
    said = getattr(factory, "capabilities", None)
    if not isinstance(said, Capabilities):
        plain = Configuration(page_size=4, num_pages=6, max_requests=4, context_len=12, device=device, level=level)
        said = factory(plain).capabilities
    return said if said.level == level else None
