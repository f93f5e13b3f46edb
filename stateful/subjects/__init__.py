"""Adapters: an allocator under test, by name.

factory = load_subject("my.package:factory")
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from .protocol import Factory

BY_NAME = {"kvcore": "kvcore.stateful.subjects.kvcore:kvcore"}


class UnknownSubject(ValueError):
    """No subject goes by this name; the message says what was tried."""


def load_subject(name: str) -> Factory:
    """The factory named `NAME` (one of BY_NAME) or `pkg.mod:factory`, looked up from the current folder too."""
    module_name, colon, attribute = BY_NAME.get(name, name).partition(":")
    if not colon or not module_name or not attribute:
        raise UnknownSubject(f"subject {name!r}: neither one of {', '.join(BY_NAME)} nor pkg.mod:factory")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise UnknownSubject(f"subject {name!r}: {error}") from None
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UnknownSubject(f"subject {name!r}: {module_name} has no factory {attribute!r}")
    return factory  # type: ignore[no-any-return]
