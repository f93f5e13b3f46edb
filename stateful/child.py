"""A sequence run in a process of its own, for subjects whose calls can end the process.

failure = run_in_child(config, operations, factory)

The child tells the number of each operation before it launches it, and at the end what it has found. If it dies, the
last number says in which operation.
"""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from typing import Any

from .configuration import Configuration
from .operations import Operation
from .reach import Reach
from .refusals import name_of
from .replay import Failure, run
from .subjects import offered_by
from .verdicts import Broken

SECONDS = 60
"""A child that takes longer hangs, which is a way to die."""


def can_die(factory: Callable[[Configuration], Any], level: str, device: str) -> bool:
    """Whether a call of the subject can end the process, in the lane of the device."""
    said = offered_by(factory, level, device)
    return said is not None and device.partition(":")[0] in said.dies_in


def run_safely(
    config: Configuration,
    operations: Sequence[Operation],
    factory: Callable[[Configuration], Any],
    reach: Reach | None = None,
) -> Failure | None:
    """As `replay.run`, in a process of its own where it could end this one. Then `reach` stays as it is."""
    if can_die(factory, config.level, config.device):
        return run_in_child(config, operations, factory)
    return run(config, operations, factory, reach=reach)


def run_in_child(
    config: Configuration, operations: Sequence[Operation], factory: Callable[[Configuration], Any]
) -> Failure | None:
    """As `replay.run`; a process that dies has broken KV-13. Forks: not for a process that has used a GPU."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(writer, config, operations, factory)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return _understood(told, status, config, operations)


def _in_child(
    writer: int, config: Configuration, operations: Sequence[Operation], factory: Callable[[Configuration], Any]
) -> None:
    try:
        faulthandler.disable()  # pytest has it on, and minimising can end hundreds of children
        signal.alarm(SECONDS)

        def tell(what: Any) -> None:
            os.write(writer, pickle.dumps(what))

        def watch(runner: Any, index: int, operation: Operation) -> None:
            tell((index, runner.situation(operation)))

        try:
            tell(("end", run(config, operations, factory, watch=watch)))
        except Exception as error:
            tell(("raised", error))
    finally:
        os._exit(0)  # nothing of the parent's is cleaned up, flushed or reported here


def _understood(told: bytes, status: int, config: Configuration, operations: Sequence[Operation]) -> Failure | None:
    """What a child has told, and its status, say."""
    done, situation, pipe = 0, "", io.BytesIO(told)
    while pipe.tell() < len(told):
        try:
            first, second = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):
            break  # it died while it spoke
        if first == "raised":
            raise second
        if first == "end":
            failure: Failure | None = second
            return failure
        done, situation = first + 1, second
    return died(config, operations[:done], situation, status)


def died(config: Configuration, operations: Sequence[Operation], situation: str, status: int | None) -> Failure:
    """The failure of a process that died in the last of these operations. status: as waitpid gives it, if known."""
    name = name_of(operations[-1]) if operations else "making the subject"
    how = ""
    if status is not None:
        number = os.waitstatus_to_exitcode(status)
        how = f": {signal.Signals(-number).name}" if number < 0 else f" with status {number}"
    broken = Broken("KV-13", f"the process died in {name}{how}")
    broken.operation, broken.situation = name, situation
    return Failure(config, tuple(operations), broken)
