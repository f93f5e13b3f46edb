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


_CAPABILITIES = f"a {Capabilities.__name__} of {Capabilities.__module__}"


class UnknownSubject(ValueError):
    """No subject goes by this name; the message says what was tried."""


class UnusableSubject(ValueError):
    """What a factory makes cannot be driven; the message goes on from the subject's name and says why."""


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
    except Exception as error:  # whatever the import of somebody's module raises
        raise UnknownSubject(f"{name!r}: its import raises {in_words(error)}") from None
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UnknownSubject(f"{name!r}: {module_name} has no function {attribute!r}")
    return found


def name_of_factory(factory: Factory) -> str:
    """`pkg.mod:factory`, by which another process finds it. UnknownSubject if it has no such name."""
    name = f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', '')}"
    if load(name) is not factory:
        raise UnknownSubject(f"{name!r} is not the factory that was given; workers have to import it")
    return name


def offered_by(factory: Factory, level: str, device: str) -> Capabilities | None:
    """What a factory says of the subject that it makes for this level; None if it makes one of the other level.

    Read from `factory.capabilities`, as a class has it; else one subject is made, on a small configuration.
    """
    said = getattr(factory, "capabilities", None)
    if not isinstance(said, Capabilities):
        plain = Configuration(page_size=4, num_pages=6, max_requests=4, context_len=12, device=device, level=level)
        try:
            made = factory(plain)
        except Exception as error:
            why = "a factory with `capabilities` of its own is not called to read them"
            raise UnusableSubject(f"cannot be made on {plain.to_json()}: {in_words(error)}; {why}") from None
        said = capabilities_of(made)
    return said if said.level == level else None


def capabilities_of(subject: Any) -> Capabilities:
    """What a subject says of itself. UnusableSubject if it says nothing."""
    said = getattr(subject, "capabilities", None)
    if isinstance(said, Capabilities):
        return said
    what = "has no `capabilities`" if said is None else f"has a {type(said).__name__} as `capabilities`"
    raise UnusableSubject(f"makes a {type(subject).__name__}, which {what}; it needs {_CAPABILITIES}")


def in_words(error: BaseException | None) -> str:
    """An exception on one line: its type and its message."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
