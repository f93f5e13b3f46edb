"""Keeps this folder's rooms from being loaded twice.

    pytest                          # or: pytest kvcore/stateful
    pytest stateful                 # refused, with what to type instead

kernels, properties and stateful are parts of the package kvcore, linked from kvcore/. By the path
`stateful/test_x.py` pytest would import a second copy of the module, under another name, whose classes are
not the first one's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
ROOMS = ("kernels", "properties", "stateful")

# --kv-subject and its like, also in a checkout that is not installed.
pytest_plugins = ["kvcore.stateful.plugin"]

# `pytest .` walks past the rooms and meets them once, in kvcore/.
collect_ignore = list(ROOMS)


def pytest_addoption() -> None:
    # Before pytest goes on to the conftest.py of a room, which would be loaded the wrong way itself.
    refuse([word for word in sys.argv[1:] if not word.startswith("-")] or ["."], Path.cwd())


def pytest_configure(config: pytest.Config) -> None:
    refuse(config.args, config.invocation_params.dir)


def refuse(arguments: Sequence[str], folder: Path) -> None:
    """UsageError if one of them is a path into a room."""
    for argument in arguments:
        path, *test = argument.split("::")
        detour = inside_a_room(folder / path)
        if detour is not None and (folder / path).exists():
            instead = "::".join([f"kvcore/{detour.as_posix()}", *test])
            raise pytest.UsageError(
                f"{argument!r} would load kvcore's modules twice, under two names; "
                f"type `pytest {instead}` in {ROOT} instead"
            )


def inside_a_room(path: Path) -> Path | None:
    """`path` relative to ROOT if it leads into a room past kvcore/, however it is spelled; else None."""
    path = Path(os.path.normpath(path))
    for folder in (path, *path.parents):
        if folder.name in ROOMS and folder.parent.exists() and folder.parent.samefile(ROOT):
            return Path(folder.name) / path.relative_to(folder)
    return None
