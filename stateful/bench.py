"""Times of the allocation paths, whole calls, host and device, beside an empty launch.

    for row in bench("cuda"):
        print(row.path, row.page_size, row.batch, row.microseconds)

Each round is timed as a whole with the device drained at both ends; the figure is the median over rounds. The pool is
large enough that nothing is refused, checked mode is off, and the first round, which compiles, is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..config import KVCacheConfig
from ..kernels.devices import tensor_device
from ..kernels.jit import jit
from ..manager import KVCacheManager
from ..records import Req
from ..release import release_kv_cache
from ..sizing import Speculation

if TYPE_CHECKING:
    import triton.language as tl

PAGE_SIZES = (1, 64)
BATCHES = (1, 64, 512, 4096)
CONTEXT = 4096
RESERVE = 8
"""Draft tokens of a speculative step, of which three are accepted."""

SGLANG = {
    ("decode", 1): (49, 48, 74, 230),
    ("decode", 64): (124, 135, 283, 381),
    ("spec decode", 1): (53, 84, 331, 2220),
    ("spec decode", 64): (34, 188, 391, 2114),
    ("extend", 1): (176, 243, 810, 5638),
    ("extend", 64): (334, 1005, 5561, 42148),
    ("release, per request", 1): (63, 26, 28, 69),
    ("release, per request", 64): (84, 39, 36, 38),
}
"""SGLang 0.5.23's own functions on an H200 (torch 2.11, Triton 3.6), microseconds at the batches above: recorded, not
of this run."""

SHARES = {
    ("decode", 1): (1 / 2, 1 / 2, 1 / 3, 1 / 6),
    ("decode", 64): (1 / 5, 1 / 5, 1 / 8, 1 / 8),
    ("spec decode", 1): (None, 1 / 3, 1 / 8, 1 / 20),
    ("spec decode", 64): (None, 1 / 5, 1 / 8, 1 / 20),
    ("extend", 1): (1 / 3, 1 / 4, 1 / 10, 1 / 40),
    ("extend", 64): (1 / 5, 1 / 15, 1 / 70, 1 / 300),
    ("release, per request", 1): (None, 1 / 10, None, None),
    ("release, per request", 64): (None, 1 / 10, None, None),
}
"""The share of SGLang's time that is aimed at; where it comes to under 30 us, 1.7 empty launches are enough."""


@dataclass(frozen=True)
class Row:
    """One figure: the median, and the bar it is held to on a GPU (None: none)."""

    path: str
    page_size: int
    batch: int
    microseconds: float
    bar: float | None = None
    sglang: float | None = None


@jit
def empty_kernel(x, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    pass


def bench(device: str, batches: tuple[int, ...] = BATCHES) -> Iterator[Row]:
    """The empty launch first (not on the CPU), then each path at each page size and batch."""
    floor = None
    if device != "cpu":
        floor = empty_launch(device)
        yield Row("empty launch", 0, 0, floor)
    for page_size in PAGE_SIZES:
        for batch in batches:
            for path, microseconds in _paths(device, page_size, batch):
                yield _held_to(Row(path, page_size, batch, microseconds), floor)


def empty_launch(device: str) -> float:
    """A kernel that does nothing, launched from Python as the paths launch theirs, microseconds."""
    x = torch.zeros(1, device=tensor_device(device))

    def launch() -> None:
        for _ in range(100):
            empty_kernel.launch((1,), x, 1, TILE=1)

    return _median(launch, 9, 100, device)


def _held_to(row: Row, floor: float | None) -> Row:
    if floor is None or row.batch not in BATCHES:
        return row
    at = BATCHES.index(row.batch)
    sglang, share = SGLANG[row.path, row.page_size][at], SHARES[row.path, row.page_size][at]
    if share is None:
        return Row(row.path, row.page_size, row.batch, row.microseconds, None, sglang)
    bar = sglang * share
    per_call = bar * (row.batch if row.path.startswith("release") else 1)
    if per_call < 30:
        bar = max(bar, 1.7 * floor)
    return Row(row.path, row.page_size, row.batch, row.microseconds, bar, sglang)


def _paths(device: str, page_size: int, batch: int) -> Iterator[tuple[str, float]]:
    manager = _manager(device, page_size, batch)
    reqs = [Req(number, range(CONTEXT)) for number in range(batch)]
    _, members = alloc_for_extend(manager, reqs, [17 + i % 50 for i in range(batch)])
    steps = 50 if batch <= 512 else 10

    def decode() -> None:
        for _ in range(steps):
            alloc_for_decode(manager, members)

    yield "decode", _median(decode, 7, steps, device)
    accepted = [3] * batch

    def spec_decode() -> None:
        for _ in range(steps):
            alloc_for_spec_decode(manager, members, RESERVE)
            commit(manager, members, accepted)

    yield "spec decode", _median(spec_decode, 5, steps, device)
    yield from _extend_and_release(device, page_size, batch)


def _extend_and_release(device: str, page_size: int, batch: int) -> Iterator[tuple[str, float]]:
    lens = [200 + i % 150 for i in range(batch)]
    manager = _manager(device, page_size, batch)
    extends, releases = [], []
    for _ in range(7):
        fresh = [Req(number, range(CONTEXT)) for number in range(batch)]
        _drain(device)
        started = time.perf_counter()
        alloc_for_extend(manager, fresh, lens)
        _drain(device)
        extended = time.perf_counter()
        release_kv_cache(manager, fresh, checkpoint=False)
        _drain(device)
        extends.append((extended - started) * 1e6)
        releases.append((time.perf_counter() - extended) / batch * 1e6)
    yield "extend", statistics.median(extends[1:])
    yield "release, per request", statistics.median(releases[1:])


def _manager(device: str, page_size: int, batch: int) -> KVCacheManager:
    pages = batch * (CONTEXT // page_size + 1) + 64
    speculation = Speculation("eagle", steps=3, topk=1, draft_tokens=4)
    return KVCacheManager(
        KVCacheConfig(page_size, pages, batch, CONTEXT, device, speculation=speculation, checked=False)
    )


def _median(run: Callable[[], None], rounds: int, calls: int, device: str) -> float:
    """Microseconds a call over `rounds` rounds of `run`, which makes `calls` calls; one round more goes first."""
    run()
    times = []
    for _ in range(rounds):
        _drain(device)
        started = time.perf_counter()
        run()
        _drain(device)
        times.append((time.perf_counter() - started) / calls * 1e6)
    return statistics.median(times)


def _drain(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
