"""The pytest plugin: which subject, which device, how long.

    pytest --pyargs kvcore.stateful kvcore.properties --kv-subject my.package:factory --kv-device cuda

Loaded in every pytest run of an environment that has kvcore, so it imports neither torch nor kvcore's core
unless an option asks for them. One process is one lane: Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from . import options
from .options import DEVICES, PROFILES, Options

DEFAULT = Options()
COUNTED = pytest.StashKey[bool]()

BEFORE: list[Options] = []
"""What held when each run of this process began that has not ended: a run within a run comes last."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # Known under two names: the entry point's and, from `-p` or a conftest.py, the module's. Whichever comes
    # first blocks the other; without that pytest stops with "already registered under a different name".
    for name in ("kvcore", __name__):
        if not pluginmanager.has_plugin(name):
            pluginmanager.set_blocked(name)
    group = parser.getgroup("kvcore", "kvcore: the allocator under test")
    group.addoption(
        "--kv-subject",
        metavar="NAME|pkg.mod:factory",
        default=DEFAULT.subject,
        help="the allocator under test: a known name, or a factory to import (default: %(default)s)",
    )
    group.addoption(
        "--kv-device",
        choices=DEVICES,
        default=DEFAULT.device,
        help="cpu: the references; interpret: the kernels in Triton's interpreter; cuda: the kernels on the "
        "GPU, xdist worker k on GPU k modulo their number (default: %(default)s)",
    )
    group.addoption(
        "--kv-profile",
        choices=PROFILES,
        default=DEFAULT.profile,
        help="how many steps to run (default: %(default)s)",
    )
    group.addoption(
        "--kv-seed",
        type=int,
        metavar="SEED",
        default=DEFAULT.seed,
        help="where the draws of the seeded runs start (default: %(default)s)",
    )
    group.addoption(
        "--kv-known-failures",
        metavar="FILE",
        help="failures of the allocator that are expected, each with its issue; one that no longer fails is an error",
    )
    group.addoption(
        "--kv-database",
        metavar="DIR",
        help="where Hypothesis keeps what failed and looks first, for all runners and lanes that share the folder "
        "(default: Hypothesis's own)",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """What a machine has found is told as `kvcore check` tells it: minimised, with a replay file."""
    outcome: Any = yield
    failure = getattr(call.excinfo and call.excinfo.value, "failure", None)
    if call.excinfo is not None and type(call.excinfo.value).__name__ == "UnusableSubject":
        outcome.get_result().longrepr = f"the subject {call.excinfo.value}"
    elif failure is not None and "kvcore.stateful.machines" in sys.modules:
        from .report import write_and_tell

        chosen = options.current
        _, told = write_and_tell(failure, subject=chosen.subject, device=chosen.device, seed=chosen.seed)
        outcome.get_result().longrepr = told


@pytest.hookimpl(tryfirst=True)  # before another plugin's pytest_configure may import Triton
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "packaging: builds, installs or starts the package in processes of its own")
    device = config.getoption("--kv-device")
    if device == "interpret":
        interpret()
    elif device == "cuda":
        device = f"cuda:{gpu_index(config)}"
    subject = config.getoption("--kv-subject")
    if subject != DEFAULT.subject:
        try_import(subject)
    if config.getoption("--kv-known-failures"):
        try_reading(config.getoption("--kv-known-failures"))
    if config.getoption("--kv-database"):
        share_database(config.getoption("--kv-database"))
    config.stash[COUNTED] = True
    BEFORE.append(options.current)
    options.current = Options(
        subject=subject,
        device=device,
        profile=config.getoption("--kv-profile"),
        seed=config.getoption("--kv-seed"),
        known_failures=config.getoption("--kv-known-failures"),
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """A run within a run gives the outer one its options back. The outermost leaves its own: a fuzzer has pytest
    collect the tests and calls them when that run is over."""
    if COUNTED in config.stash:
        before = BEFORE.pop()
        if BEFORE:
            options.current = before


def pytest_report_header(config: pytest.Config) -> str:
    now = options.current
    return f"kvcore: subject {now.subject}, device {now.device}, profile {now.profile}, seed {now.seed}"


def share_database(folder: str) -> None:
    """Make the folder the database of every Hypothesis test of this run, also where Hypothesis would have none: with CI
    set it draws the same each time and remembers nothing."""
    from hypothesis import settings
    from hypothesis.database import DirectoryBasedExampleDatabase

    settings.register_profile(
        "kvcore-database",
        parent=settings(derandomize=False, database=DirectoryBasedExampleDatabase(folder)),
    )
    settings.load_profile("kvcore-database")


def interpret() -> None:
    """Make this process the interpreter's lane."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    if "triton" in sys.modules:
        raise pytest.UsageError(
            "--kv-device interpret: something has imported Triton already, its kernels are bound to the GPU; "
            "start pytest with TRITON_INTERPRET=1 in the environment"
        )
    os.environ["TRITON_INTERPRET"] = "1"


def gpu_index(config: pytest.Config) -> int:
    """The GPU of this process. Without one the run ends with status 2: never a skip, never the CPU."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise pytest.UsageError("--kv-device cuda: TRITON_INTERPRET=1 is set, the kernels would not run on the GPU")
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        pytest.exit(f"--kv-device cuda: torch {torch.__version__} finds no GPU here", returncode=2)
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(worker.removeprefix("gw")) % count


def try_import(subject: str) -> None:
    """Refuse a subject that does not exist here and now, not in the first test's setup."""
    from .subjects import UnknownSubject, load_subject

    try:
        load_subject(subject)
    except UnknownSubject as error:
        raise pytest.UsageError(f"--kv-subject: {error}") from None


def try_reading(path: str) -> None:
    """Refuse a file of known failures that cannot be read here and now."""
    from .known_failures import MalformedKnownFailures, read_known_failures

    try:
        read_known_failures(path)
    except OSError as error:
        raise pytest.UsageError(f"--kv-known-failures {path}: {error.strerror}") from None
    except MalformedKnownFailures as error:
        raise pytest.UsageError(f"--kv-known-failures {path}: {error}") from None
