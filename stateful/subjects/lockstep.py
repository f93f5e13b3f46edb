"""A device and the CPU reference, driven in lockstep and compared after every step (KV-12).

    kvcore check --device cuda          # --subject kvcore in a kernel lane is this

Both do every operation. What the device exports, each slot, row, record and the live part of the free list, has to be
the reference's byte for byte, and so has what it refuses. While a path of the device runs, reading anything back is an
error, and so is a compilation after the first call of a page size (KV-14).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import KVCacheError
from ...kernels import jit
from ...kernels.device_reads import DeviceRead, no_device_reads
from ...kernels.dispatch import OPERATIONS
from ...properties.cases import WITH_WINDOW
from ...snapshots import Snapshot
from ..configuration import Configuration
from ..verdicts import Broken
from .kvcore import KvcoreEngine
from .kvcore_slots import KvcoreSlots
from .protocol import Capabilities

Int64 = NDArray[np.int64]

_compiled: Counter[tuple[str, int]] = Counter()
"""How many variants of a kernel the paths have compiled in this process, by page size."""

_windowed: set[int] = set()
"""Page sizes at which there was a window: from then on a kernel that may be given one has two variants, since a path
calls it with the window or, for a part that has no window, without."""


class _Lockstep:
    """What both levels share: the two subjects, the comparison of outcomes and of states."""

    device: Any
    reference: Any

    def _pair(self, config: Configuration, kind: Callable[[Configuration], Any]) -> None:
        self.device, self.reference = kind(config), kind(replace(config, device="cpu"))
        self.guarded = not config.is_checked
        self.device.guard = self._guard if self.guarded else self.device.guard
        one: Capabilities = self.reference.capabilities
        why = {clause: said for clause, said in one.why_not.items() if clause not in ("KV-12", "KV-14")}
        self.capabilities = replace(one, asked=(*one.asked, "KV-12", "KV-14"), why_not=why)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        before = jit.compilations()
        try:
            with no_device_reads(self.device.config.device):
                yield
        except DeviceRead as error:
            raise Broken("KV-14", str(error)) from error
        page_size = self.device.config.page_size
        if self.device.config.window is not None or self.device.config.hisparse is not None:
            _windowed.add(page_size)
        for name, count in (jit.compilations() - before).items():
            _compiled[name, page_size] += count
            variants = 2 if name in WITH_WINDOW and page_size in _windowed else 1
            if name in OPERATIONS and _compiled[name, page_size] > variants:
                raise Broken("KV-14", f"kernel {name} was compiled anew for page size {page_size}")

    def _both(self, name: str, *arguments: Any) -> Any:
        """Do it on the device, then on the reference; the same has to come of it."""
        mine, theirs = _outcome(self.device, name, arguments), _outcome(self.reference, name, arguments)
        if isinstance(mine, Broken):
            raise mine
        if isinstance(mine, KVCacheError) or isinstance(theirs, KVCacheError):
            if _told(mine) != _told(theirs):
                raise Broken("KV-12", f"{name}: the device gives {_told(mine)}, the reference {_told(theirs)}")
            raise mine
        if isinstance(mine, Exception):
            raise mine
        if not _same(mine, theirs):
            raise Broken("KV-12", f"{name}: the device returned {_short(mine)}, the reference {_short(theirs)}")
        return mine

    def snapshot(self) -> Snapshot:
        """The device's state, which has to be the reference's."""
        mine, theirs = self.device.snapshot(), self.reference.snapshot()
        if differences := mine.differences(theirs):
            raise Broken("KV-12", f"the device's state is not the reference's: {_where(mine, theirs, differences)}")
        state: Snapshot = mine
        return state

    def available(self) -> list[int]:
        free: list[int] = self._both("available")
        return free


class LockstepEngine(_Lockstep):
    """The paths, on the device and on the CPU."""

    def __init__(self, config: Configuration) -> None:
        self._pair(config, KvcoreEngine)

    def extend(self, *call: Any) -> Int64:
        out: Int64 = self._both("extend", *call)
        return out

    def decode(self, *call: Any) -> Int64:
        out: Int64 = self._both("decode", *call)
        return out

    def spec_reserve(self, *call: Any) -> None:
        self._both("spec_reserve", *call)

    def commit(self, *call: Any) -> None:
        self._both("commit", *call)

    def release_overallocated(self, *call: Any) -> int:
        slots: int = self._both("release_overallocated", *call)
        return slots

    def release(self, *call: Any) -> None:
        self._both("release", *call)

    def retract(self, *call: Any) -> None:
        self._both("retract", *call)

    def prealloc(self, *call: Any) -> Int64:
        out: Int64 = self._both("prealloc", *call)
        return out

    def fill_hole(self, request: int) -> Int64:
        out: Int64 = self._both("fill_hole", request)
        return out

    def checkpoint(self, *call: Any) -> None:
        self._both("checkpoint", *call)

    def evict(self, num_tokens: int) -> int:
        freed: int = self._both("evict", num_tokens)
        return freed

    def peek(self, *call: Any) -> int:
        hit: int = self._both("peek", *call)
        return hit

    def window_evict(self, *call: Any) -> int:
        gave: int = self._both("window_evict", *call)
        return gave

    def lease(self, *call: Any) -> None:
        self._both("lease", *call)

    def retire(self, lease: int) -> None:
        self._both("retire", lease)

    def late_result(self, *call: Any) -> list[bool]:
        settled: list[bool] = self._both("late_result", *call)
        return settled

    def free_group_begin(self) -> None:
        self._both("free_group_begin")

    def free_group_end(self) -> None:
        self._both("free_group_end")

    def prealloc_hisparse(self, *call: Any) -> Int64:
        out: Int64 = self._both("prealloc_hisparse", *call)
        return out

    def swap_out(self, request: int) -> Int64:
        out: Int64 = self._both("swap_out", request)
        return out

    def device_buffer(self, request: int) -> Int64:
        out: Int64 = self._both("device_buffer", request)
        return out

    def bind_newest(self, *call: Any) -> Int64:
        out: Int64 = self._both("bind_newest", *call)
        return out

    def drop_backup(self, request: int) -> None:
        self._both("drop_backup", request)

    def device_pages(self, pages: Any) -> list[int]:
        found: list[int] = self._both("device_pages", pages)
        return found

    def held(self, *call: Any) -> list[int]:
        found: list[int] = self._both("held", *call)
        return found

    def window_pages(self, pages: Any) -> list[int]:
        found: list[int] = self._both("window_pages", pages)
        return found

    def row_of(self, request: int) -> int:
        row: int = self._both("row_of", request)
        return row

    def row(self, request: int, start: int, end: int) -> Int64:
        slots: Int64 = self._both("row", request, start, end)
        return slots

    def lengths(self, request: int) -> tuple[int, int, int]:
        lens: tuple[int, int, int] = self._both("lengths", request)
        return lens


class LockstepSlots(_Lockstep):
    """The slot allocator, on the device and on the CPU."""

    def __init__(self, config: Configuration) -> None:
        self._pair(config, KvcoreSlots)

    def alloc(self, *call: Any) -> Int64:
        out: Int64 = self._both("alloc", *call)
        return out

    def alloc_extend(self, *call: Any) -> Int64:
        out: Int64 = self._both("alloc_extend", *call)
        return out

    def alloc_decode(self, *call: Any) -> Int64:
        out: Int64 = self._both("alloc_decode", *call)
        return out

    def alloc_draft(self, *call: Any) -> Int64:
        out: Int64 = self._both("alloc_draft", *call)
        return out

    def alloc_extend_tail(self, *call: Any) -> Int64:
        out: Int64 = self._both("alloc_extend_tail", *call)
        return out

    def alloc_logical_only(self, *call: Any) -> Int64:
        out: Int64 = self._both("alloc_logical_only", *call)
        return out

    def alloc_device_buffer(self, *call: Any) -> Int64:
        out: Int64 = self._both("alloc_device_buffer", *call)
        return out

    def free_window(self, *call: Any) -> None:
        self._both("free_window", *call)

    def free_device_buffer(self, *call: Any) -> None:
        self._both("free_device_buffer", *call)

    def free(self, *call: Any) -> None:
        self._both("free", *call)

    def free_segment(self, *call: Any) -> None:
        self._both("free_segment", *call)

    def clear(self) -> None:
        self._both("clear")

    def free_group_begin(self) -> None:
        self._both("free_group_begin")

    def free_group_end(self) -> None:
        self._both("free_group_end")


def lockstep(config: Configuration) -> LockstepEngine | LockstepSlots:
    """The device that the configuration names beside the CPU, on its level."""
    return LockstepSlots(config) if config.level == "slots" else LockstepEngine(config)


def _outcome(subject: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(subject, name)(*arguments)
    except Exception as error:
        return error


def _told(outcome: Any) -> str:
    if isinstance(outcome, KVCacheError):
        return f"{type(outcome).__name__}: {outcome}"
    return f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else f"success, {_short(outcome)}"


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, np.ndarray):
        return bool(mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes())
    return bool(mine == theirs)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value[:12].tolist()}{'...' if len(value) > 12 else ''}"
    return str(value)


def _where(mine: Snapshot, theirs: Snapshot, differences: list[str]) -> str:
    if "slots" in differences:
        row, position = (int(i[0]) for i in np.nonzero(mine.slots != theirs.slots))
        found, right = mine.slots[row, position], theirs.slots[row, position]
        return f"row {row}, position {position} is slot {found}, on the CPU {right}"
    return ", ".join(differences)
