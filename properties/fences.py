"""Tensors whose surroundings tell whether a call kept to them (KV-13).

    fence = fenced(array, "cuda")
    kernel(fence.tensor)
    fence.intact, fence.values()

Around every fenced tensor lie canaries, entries that nobody may change; a value read from there is negative and shows
in the result. `walled` tensors (CPU only) end at a memory page without any access right: one entry read past the end,
even if its value is never used, ends the process. So what works on them runs `in_child`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels.jit import launches
from .cases import CANARY

BEFORE = AFTER = 8
"""Canaries on either side of a fenced tensor. A wall takes the place of those behind it."""

CHILD_SECONDS = 120
"""A call in a child that takes longer hangs. The slowest known take 60: 8,192 requests one by one, interpreted."""

PROT_NONE = 0  # The mmap module does not export it.


class Fence:
    """`tensor` with its surroundings: `storage` holds `before` canaries, the tensor, and canaries behind."""

    def __init__(self, tensor: torch.Tensor, storage: torch.Tensor, before: NDArray[Any], inside: NDArray[Any]) -> None:
        self.tensor, self.storage = tensor, storage
        self._original, self._inside = before, inside

    def values(self) -> NDArray[Any]:
        """The tensor as it is now, on the host."""
        return self.tensor.cpu().numpy().copy()

    @property
    def intact(self) -> bool:
        """Whether everything around the tensor is as it was."""
        now = self.storage.cpu().numpy()
        return bool((now == self._original)[~self._inside].all())


def fenced(values: NDArray[Any], device: str, *, walled: bool = False, before: int = BEFORE, gap: int = 0) -> Fence:
    """A copy of `values` (one- or two-dimensional) on `device`, between fences. gap: canaries from row to row."""
    rows, width = values.shape if values.ndim == 2 else (1, values.size)
    stride = width + gap
    size = max(rows * stride - gap, 0)
    canary = np.array(CANARY).astype(values.dtype)
    host = np.full(before + size + (0 if walled else AFTER), canary)
    inside = np.zeros(len(host), dtype=bool)
    for part, content in ((host, values), (inside, True)):
        view = np.lib.stride_tricks.as_strided(part[before:], (rows, width), (stride * part.itemsize, part.itemsize))
        view[...] = content.reshape(rows, width) if isinstance(content, np.ndarray) else content
    storage = _walled(host) if walled else torch.from_numpy(host.copy()).to(device)
    shape, strides = ((rows, width), (stride, 1)) if values.ndim == 2 else ((width,), (1,))
    return Fence(storage.as_strided(shape, strides, before), storage, host, inside)


def _walled(host: NDArray[Any]) -> torch.Tensor:
    """A copy of `host`, its last byte the last before a page without access."""
    page = mmap.PAGESIZE
    room = -(-host.nbytes // page) * page
    memory = mmap.mmap(-1, room + page)
    tensor: torch.Tensor = torch.frombuffer(
        memory, dtype=torch.from_numpy(host[:0]).dtype, count=len(host), offset=room - host.nbytes
    )
    tensor.numpy()[:] = host
    wall = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + room
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(wall), ctypes.c_size_t(page), PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    return tensor


class Crashed(Exception):
    """A child did not come back: the message says how it ended, `step` what it was at."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


def in_child(work: Callable[[Callable[[int], None]], Any]) -> Any:
    """What `work` returns in a forked process. It is given a function to say which step it begins; Crashed tells it.

    What `work` raises comes back as a RuntimeError with the text. A step may take CHILD_SECONDS. Kernels that the child
    launched count as launched here.
    """
    reading, writing = os.pipe()
    at = mmap.mmap(-1, 8)
    with warnings.catch_warnings():
        # Python warns of forking beside threads. The child runs no other thread's code and leaves by _exit.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_a_child(work, writing, at)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) or not answer:
        ended_by = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
        hangs = f"does not end within {CHILD_SECONDS} s"
        message = hangs if ended_by == signal.SIGALRM else f"ends the process ({ended_by.name if ended_by else status})"
        raise Crashed(message, int.from_bytes(at[:8], "little"))
    raised, value, launched = pickle.loads(answer)
    launches.update(launched)
    if raised:
        raise RuntimeError(value)
    return value


def _be_a_child(work: Callable[[Callable[[int], None]], Any], writing: int, at: mmap.mmap) -> None:
    import resource  # not on every platform that imports this module

    def begin(step: int) -> None:
        at[:8] = step.to_bytes(8, "little")
        signal.alarm(CHILD_SECONDS)

    try:
        faulthandler.disable()  # A crash is an answer here, and no news.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)  # The parent's worker threads are not here.
        launches.clear()
        try:
            begin(0)
            answer = (False, work(begin), launches)
        except BaseException as error:
            answer = (True, "".join(traceback.format_exception_only(error)).strip(), launches)
        with os.fdopen(writing, "wb") as stream:
            pickle.dump(answer, stream)
    finally:
        os._exit(0)
