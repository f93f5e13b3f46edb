"""A sequence with its configuration, as a text file that a person can edit; and running one.

    replay = Replay.read("kvcore-KV-7-0.replay")
    failure = run(replay, load_subject(replay.subject))

The head names what it runs on; then one operation a line. Blank lines and lines that begin with # are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import KVCacheError
from .configuration import Configuration
from .operation_lines import MalformedOperation, parse
from .operations import Operation
from .reach import Reach
from .runner import Runner
from .verdicts import Broken


class MalformedReplay(ValueError):
    """The file is no replay; the message names the line."""


@dataclass(frozen=True)
class Failure:
    """A sequence whose last operation broke a clause, and how."""

    config: Configuration
    operations: tuple[Operation, ...]
    broken: Broken


@dataclass(frozen=True)
class Replay:
    """What a replay file holds. `clause` is what it broke when it was written, for the reader."""

    config: Configuration
    operations: tuple[Operation, ...]
    subject: str = "kvcore"
    device: str = "cpu"
    seed: int = 0
    clause: str = ""

    def text(self) -> str:
        """The file's content."""
        head = [
            f"# {self.clause}: `kvcore replay` shows the step that breaks it." if self.clause else "# kvcore replay",
            f"config {json.dumps(self.config.to_json(), separators=(', ', ': '))}",
            f"subject {self.subject}",
            f"device {self.device}",
            f"seed {self.seed}",
            f"clause {self.clause}",
            "",
        ]
        return "\n".join([*head, *map(str, self.operations), ""])

    @classmethod
    def parse(cls, text: str) -> Replay:
        """Raises MalformedReplay, naming the line."""
        head: dict[str, Any] = {}
        operations: list[Operation] = []
        for number, line in enumerate(text.splitlines(), start=1):
            word, _, rest = line.strip().partition(" ")
            if not word or word.startswith("#"):
                continue
            try:
                if word == "config":
                    head[word] = Configuration.from_json(json.loads(rest))
                elif word in ("subject", "device", "clause"):
                    head[word] = rest.strip()
                elif word == "seed":
                    head[word] = int(rest)
                else:
                    operations.append(parse(line))
            except (MalformedOperation, KVCacheError, ValueError) as error:
                raise MalformedReplay(f"line {number}: {error}") from None
        if "config" not in head:
            raise MalformedReplay("no line begins with 'config'")
        head["config"] = on_device(head["config"], head.get("device", "cpu"))
        return cls(operations=tuple(operations), **head)

    @classmethod
    def read(cls, path: str | Path) -> Replay:
        """Raises MalformedReplay or OSError."""
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise MalformedReplay("is no text file") from None


def on_device(config: Configuration, device: str) -> Configuration:
    """The configuration on another device. MalformedReplay if there is none of this name."""
    try:
        return replace(config, device=device)
    except KVCacheError as error:
        raise MalformedReplay(str(error)) from None


def run(
    config: Configuration,
    operations: Sequence[Operation],
    factory: Callable[[Configuration], Any],
    *,
    reach: Reach | None = None,
    watch: Callable[[Runner, int, Operation], None] = lambda runner, index, operation: None,
) -> Failure | None:
    """Run the operations; the failure, cut behind the operation that broke a clause, or None.

    `watch` is called before each operation. An operation of the wrong level is a MalformedReplay.
    """
    done = 0
    try:
        runner = Runner(config, factory, reach)
        for index, operation in enumerate(operations):
            watch(runner, index, operation)
            done = index + 1
            runner.step(operation)
        runner.finish()
    except Broken as broken:
        return Failure(config, tuple(operations[:done]), broken) if broken.asked else None
    except TypeError as error:
        if "level has no operation" in str(error):
            raise MalformedReplay(str(error)) from None
        raise
    return None


def to_replay(failure: Failure, *, subject: str, device: str, seed: int) -> Replay:
    """The replay of a failure."""
    return Replay(failure.config, failure.operations, subject, device, seed, failure.broken.clause)
