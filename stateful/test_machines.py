"""The machines under pytest, against the subject that the options name.

pytest --pyargs kvcore.stateful --kv-subject my.package:factory
"""

from __future__ import annotations

from . import options
from .machines import AllocatorMachine, PathMachine, machine_settings


class TestPaths(PathMachine.TestCase):  # type: ignore[misc,valid-type]
    """Every interleaving of the paths keeps every clause."""

    settings = machine_settings(options.current.profile, device=options.current.device)


class TestAllocator(AllocatorMachine.TestCase):  # type: ignore[misc,valid-type]
    """Every interleaving of the slot allocator's calls keeps every clause."""

    settings = machine_settings(options.current.profile, device=options.current.device)
