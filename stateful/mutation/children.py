"""A process for each mutant, forked from one that has the heavy libraries loaded and nothing of kvcore.

    with Lane("cpu", workers=2) as lane:
        for result in lane.results(mutants):
            result.mutant, result.verdict, result.by

On entry the unmutated code passes every check, which also tells how long each one takes. A mutant is `killed` by the
first check that fails, or `timed out` where a check takes five times as long as it should; what is left after a minute
has `survived`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .checks import checks_of
from .loading import load_as
from .mutants import Mutant
from .sample import path_of

SECONDS = 60
"""For one mutant."""

CANARY_SECONDS = 1800
"""For the code as it is, in pieces: a busy machine is no reason to call it broken."""
PATIENCE, LEAST_PATIENCE = 5, 10
"""A check hangs after so many times what it takes, and not before so many seconds."""

MOST_MEMORY = 8 << 30
"""Bytes of a child: a mutant may ask for all there are."""


class Unsound(Exception):
    """The unmutated code does not pass: there is nothing to learn from mutants."""


@dataclass(frozen=True)
class Result:
    """What came of a mutant. verdict: killed, timed out or survived. by: the check that ended it, and what it said."""

    mutant: Mutant | None
    lane: str
    verdict: str
    by: str
    seconds: float


@dataclass
class Child:
    """A running child. taken: seconds of each check that has ended."""

    mutant: Mutant | None
    process: int
    folder: Path
    started: float
    check: str = "fork"
    check_started: float = 0.0
    taken: dict[str, float] = field(default_factory=dict)
    unread: bytes = b""
    outcome: tuple[str, str] | None = None
    printed: str = ""

    def hear(self, message: dict[str, str], now: float) -> None:
        self.taken[self.check] = self.taken.get(self.check, 0.0) + now - self.check_started
        self.check_started = now
        if "begin" in message:
            self.check = message["begin"]
        else:
            self.outcome = message["verdict"], message["by"]


class Lane:
    """A process that forks a lane's children. Unsound on entry if the code as it is does not pass."""

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self.pipe, self._theirs = multiprocessing.Pipe()
        # spawn: this process may have a thread that draws a progress bar, and Triton not yet decided what it is.
        context = multiprocessing.get_context("spawn")
        self._server = context.Process(target=_serve, args=(name, workers, self._theirs))

    def __enter__(self) -> Lane:
        self._server.start()
        self._theirs.close()
        try:
            self._hear()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._server.terminate()
        self._server.join()

    def results(self, mutants: Sequence[Mutant]) -> Iterator[Result]:
        """What comes of the mutants, in the order in which they end."""
        self.pipe.send([(mutant, mutant.apply(path_of(mutant.module).read_text()), (0, 1)) for mutant in mutants])
        for _ in mutants:
            yield self._hear()

    def _hear(self) -> Any:
        try:
            heard = self.pipe.recv()
        except EOFError:
            raise Unsound(f"lane {self.name}: the process that forks the mutants has died") from None
        if isinstance(heard, str):
            raise Unsound(f"lane {self.name}: without a mutant {heard}")
        return heard


def _serve(lane: str, workers: int, pipe: Connection[Any, Any]) -> None:
    if lane == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"  # Triton is not imported yet
    signal.signal(signal.SIGTERM, _stop)
    load_libraries(lane)
    usual: dict[str, float] = {}
    for child, result in watch(lane, [(None, "", (k, workers)) for k in range(workers)], workers, CANARY_SECONDS, {}):
        if result.verdict != "survived":
            pipe.send(f"'{result.by}' ends as '{result.verdict}'\n{child.printed}")
            return
        usual.update(child.taken)
    pipe.send(usual)
    while True:
        for _, result in watch(lane, pipe.recv(), workers, SECONDS, usual):
            pipe.send(result)


def _stop(*_: object) -> None:
    """Once, so that the children can be ended too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def load_libraries(lane: str) -> None:
    import hypothesis.stateful  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    if lane == "interpret":
        import triton.language  # noqa: F401
    import_module("_hypothesis_pytestplugin")  # It refuses to be loaded after the first draw.
    torch.set_num_threads(1)


def watch(
    lane: str, jobs: list[Any], workers: int, seconds: float, usual: dict[str, float]
) -> Iterator[tuple[Child, Result]]:
    """`workers` children at a time, each watched until it says what came of it, dies or takes too long."""
    waiting, selector = list(reversed(jobs)), selectors.DefaultSelector()
    try:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < workers:
                pipe, child = _fork(lane, *waiting.pop())
                selector.register(pipe, selectors.EVENT_READ, child)
            ready = {key.fd for key, _ in selector.select(timeout=0.2)}
            now = time.monotonic()
            for pipe, child in [(key.fd, key.data) for key in selector.get_map().values()]:
                if pipe in ready:
                    _read(pipe, child, now)
                result = _judge(lane, child, now, seconds, usual)
                if result is not None:
                    selector.unregister(pipe)
                    os.close(pipe)
                    _end(child)
                    yield child, result
    finally:
        for key in list(selector.get_map().values()):
            _end(key.data)


def _read(pipe: int, child: Child, now: float) -> None:
    data = os.read(pipe, 65536)
    *lines, child.unread = (child.unread + data).split(b"\n")
    for line in lines:
        child.hear(json.loads(line), now)
    if not data and child.outcome is None:
        child.outcome = "killed", f"{child.check}: the process died"


def _judge(lane: str, child: Child, now: float, seconds: float, usual: dict[str, float]) -> Result | None:
    verdict = child.outcome
    patience = max(PATIENCE * usual.get(child.check, 0.0), LEAST_PATIENCE)
    if verdict is None and child.mutant is not None and now - child.check_started > patience:
        verdict = "timed out", child.check
    if verdict is None and now - child.started > seconds:
        # The next check would have ended it, perhaps; nobody knows.
        verdict = ("survived", f"up to {child.check}") if child.mutant else ("timed out", child.check)
    return verdict and Result(child.mutant, lane, *verdict, round(now - child.started, 2))


def _end(child: Child) -> None:
    """The child and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.process, signal.SIGKILL)
    os.waitpid(child.process, 0)
    with suppress(OSError):
        child.printed = (child.folder / "output").read_text(errors="replace")[-2000:]
    shutil.rmtree(child.folder, ignore_errors=True)


def _fork(lane: str, mutant: Mutant | None, text: str, part: tuple[int, int]) -> tuple[int, Child]:
    folder = Path(tempfile.mkdtemp(prefix="kvcore-mutant-"))
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _be_a_child(lane, mutant, text, part, writing, folder)
    os.close(writing)
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(process, process)  # Both do it: whoever comes first.
    now = time.monotonic()
    return reading, Child(mutant, process, folder, now, check_started=now)


def _be_a_child(lane: str, mutant: Mutant | None, text: str, part: tuple[int, int], pipe: int, folder: Path) -> None:
    """Never returns."""

    def say(**message: str) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    check = "fork"

    def begin(name: str) -> None:
        nonlocal check
        check = name
        say(begin=name)

    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _shut_in(folder)
        load_as(mutant.module if mutant else None, text)
        for name, run in checks_of(lane, mutant.module if mutant else "", part):
            begin(name)
            run(begin)
        say(verdict="survived", by="")
    except BaseException as error:  # whatever it is, it has been noticed
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        say(verdict="killed", by=f"{check}: {said}")
    finally:
        os._exit(0)


def _shut_in(folder: Path) -> None:
    """A folder of its own, nothing to be seen of it, no more memory than there is."""
    import resource

    os.chdir(folder)
    quiet = os.open("output", os.O_RDWR | os.O_CREAT)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
