"""The lane of this run, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

ONLY_IN_KERNEL_LANES = ("test_kernel_lanes.py", "test_self_broken_kernels.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What speaks of kernels is not collected in the cpu lane, which has none."""
    is_cpu = config.getoption("--kv-device", default="cpu") == "cpu"
    return True if is_cpu and collection_path.name in ONLY_IN_KERNEL_LANES else None


@pytest.fixture(scope="session")
def device() -> str:
    """The lane: cpu, interpret, or the GPU of this process."""
    from ..stateful import options

    return options.current.device
