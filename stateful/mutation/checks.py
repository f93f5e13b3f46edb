"""What a mutant has to pass, cheapest first: the soaks, the kernels alone, the project's tests, longer soaks.

    for name, check in checks_of("cpu", "kvcore/freeing.py"):
        begin(name)
        check()                 # raises, or returns

A check raises whatever it likes: a mutant that makes anything raise is noticed. This module imports kvcore only inside
its functions, since it is the mutated kvcore that they are about.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .sample import ROOT, import_name

Begin = Callable[[str], None]
Check = tuple[str, Callable[[Begin], None]]

LEFT_OUT = {"test_self_broken_kernels.py", "test_self_check_kernel.py"}
"""Tests that ask whether faults are found: of the suite, not of the core."""

OF_KERNELS = {"test_kernel_lanes.py", "test_kernels.py", "test_self_kernels.py"}
"""The tests of the interpreter's lane, and of no other."""

SLOW = {"test_kernels.py"}
"""Tests that take long for what they say of the core: last."""

TOO_MUCH = "the_cpu_lane or in_the_interpreter or says_why_it_is_not_to_be_had or thousand"
"""Tests of those files that start processes, in which there is no mutant, or take a minute interpreted."""


class Noticed(Exception):
    """A check that fails without an exception of its own."""


def checks_of(lane: str, module: str, part: tuple[int, int] = (0, 1)) -> Iterator[Check]:
    """Named checks of a lane for a mutant of `module`, in the order in which they run.

    part: (k, n) is every n-th file of tests from the k-th on, all other checks with the first.
    """
    fast, slow = tests_of(lane, module)
    if part[0]:
        yield "tests", partial(pass_tests, lane, (fast + slow)[part[0] :: part[1]])
        return
    steps = {"cpu": 300, "interpret": 60}[lane]
    yield "import", lambda begin: import_it_all(module)
    for seed in range(2):
        for level in ("engine", "slots"):
            for checked in (False, True):
                yield f"soak {level} {seed}", partial(soak, lane, level, steps, seed, checked)
    if lane == "interpret":
        yield "kernels alone", partial(kernels_alone, module)
    yield "tests", partial(pass_tests, lane, fast[:: part[1]])
    for seed in range(2, 8):
        for level in ("engine", "slots"):
            yield f"soak {level} {seed}", partial(soak, lane, level, 10 * steps, seed, seed % 4 == 0)
    yield "slow tests", partial(pass_tests, lane, slow[-len(fast) % part[1] :: part[1]])


def import_it_all(module: str) -> None:
    """The mutant, and all that users import. Before pytest starts, which would load the mutant from its file."""
    for name in import_module("kvcore")._HOME:
        getattr(sys.modules["kvcore"], name)
    if module:
        import_module(import_name(module))


def soak(lane: str, level: str, steps: int, seed: int, checked: bool, begin: Begin) -> None:
    from kvcore.stateful.reach import Reach
    from kvcore.stateful.soak import soak as run
    from kvcore.stateful.subjects import load_subject

    failure = run(level, load_subject("kvcore"), steps=steps, seed=seed, reach=Reach(), checked=checked, device=lane)
    if failure is not None:
        raise Noticed(str(failure.broken))


def kernels_alone(module: str, begin: Begin) -> None:
    """Each kernel against its reference, that of the mutated module first."""
    from kvcore.kernels.dispatch import OPERATIONS

    check_kernel: Any = import_module("kvcore.properties.check_kernel")  # the package has a function of that name
    from kvcore.properties.lanes import small_tile_function

    check_kernel.smallest = lambda case, fails: case  # Whether it fails is all that is asked.
    for op in sorted(OPERATIONS, key=lambda op: op not in module):
        begin(f"kernel {op}")
        fn = small_tile_function(op, "interpret")
        found = check_kernel.find_mismatch(op, fn, "interpret", examples=15, largest_batch=17, large=False)
        if found is not None:
            raise Noticed(found.wrong)


def tests_of(lane: str, module: str) -> tuple[list[Path], list[Path]]:
    """The files of tests, the fast and the slow ones; those that import the module come first, then small ones."""
    fast: list[Path] = []
    slow: list[Path] = []
    name = Path(module).stem
    importing = re.compile(rf"^from \S*\b{name} import|^from \S+ import .*\b{name}\b", re.MULTILINE)

    def distance(path: Path) -> tuple[bool, int]:
        text = path.read_text()
        return importing.search(text) is None, len(text)

    files = sorted(ROOT.glob("properties/test_*.py"))  # those of stateful/ are about the suite; its soak is a check
    for path in sorted(files, key=distance):
        if path.name not in LEFT_OUT and (path.name in OF_KERNELS) == (lane != "cpu"):
            (slow if path.name in SLOW else fast).append(path)
    return fast, slow


def pass_tests(lane: str, files: list[Path], begin: Begin) -> None:
    """The tests of these files in this process, up to the first that fails."""
    import pytest

    if not files:
        return
    sys.argv = ["pytest"]
    status = pytest.main(
        [
            *("-x", "-q", "--rootdir", str(ROOT.parent), "-c", str(ROOT.parent / "pyproject.toml")),
            *("-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not packaging", "--hypothesis-seed", "0"),
            *("-k", f"not ({TOO_MUCH})"),
            *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
            *("--basetemp", str(Path.cwd() / "tmp"), "--kv-device", lane, *map(str, files)),
        ],
        plugins=[_Listener(begin)],
    )
    if status != 0:
        raise Noticed(f"pytest ends with status {int(status)}")


class _Listener:
    """Tells the name of each test that begins."""

    def __init__(self, begin: Begin) -> None:
        self.begin = begin

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begin(nodeid.removeprefix("kvcore/"))
