"""Request traces: how long the prompts and outputs of real requests were, in the order of their arrival.

    trace = read_trace("mooncake_conversation.jsonl", limit=1000)
    trace.prompt_tokens, trace.output_tokens        # what a workload has to find a slot for

Two formats, told by the file's suffix or else by its first line: Mooncake JSONL (`timestamp`, `input_length`,
`output_length`, `hash_ids`) and the Azure LLM CSV (`TIMESTAMP`, `ContextTokens`, `GeneratedTokens`). Every line is
checked, and MalformedTrace names the one that is wrong: a number read past a slip would be a workload that nobody had.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

BLOCK = 512
"""Prompt tokens that one hash id of a Mooncake trace stands for; equal ids are equal prefixes."""

LONGEST = 2**24
"""Tokens of a prompt or an output that no model reaches: a line that says more is a slip, not a request."""


MOST_BLOCKS = 2**30
"""Hash ids lie below: each is a writer of tokens, beside the requests."""


class MalformedTrace(ValueError):
    """The file is no trace; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. timestamp: milliseconds after the first one's arrival. hash_ids: None where none are recorded."""

    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] | None = None
    timestamp: float = 0.0

    @property
    def total_len(self) -> int:
        """Prompt and output together."""
        return self.prompt_len + self.output_len


@dataclass(frozen=True)
class Trace:
    """Requests by arrival, at least one. `whole`: no limit cut any off."""

    requests: tuple[TraceRequest, ...]
    whole: bool = True

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def prompt_tokens(self) -> int:
        """The prompts' tokens, over all requests."""
        return sum(request.prompt_len for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """The outputs' tokens, over all requests."""
        return sum(request.output_len for request in self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the largest request, prompt and output."""
        return max(request.total_len for request in self.requests)

    @property
    def repeats(self) -> bool:
        """Whether two prompts begin with the same block."""
        first = [request.hash_ids[0] for request in self.requests if request.hash_ids]
        return len(set(first)) < len(first)


def read_trace(path: str | Path, limit: int | None = None) -> Trace:
    """The trace in a file, or its first `limit` requests. Raises MalformedTrace, also where the file cannot be read."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as lines:
            requests = tuple(islice(_requests(Path(path).suffix, lines), limit))
            whole = not any(line.strip() for line in lines)
    except OSError as error:
        raise MalformedTrace(str(error.strerror)) from None
    except UnicodeDecodeError:
        raise MalformedTrace("is no text file") from None
    if not requests:
        raise MalformedTrace("holds no request")
    return Trace(requests, whole)


def _requests(suffix: str, lines: Iterable[str]) -> Iterator[TraceRequest]:
    """The requests of a file's lines; blank lines are skipped."""
    parse: Callable[[str], TraceRequest | None] | None = None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                parse = parse or _parser(suffix, line)
                request = parse(line)
            except ValueError as error:
                raise MalformedTrace(f"line {number}: {error}") from None
            if request is not None:
                yield request


def _parser(suffix: str, first: str) -> Callable[[str], TraceRequest | None]:
    if suffix in (".jsonl", ".json") or (suffix != ".csv" and first.lstrip().startswith("{")):
        return _mooncake
    if suffix == ".csv" or "ContextTokens" in first:
        return _Azure()
    raise ValueError("neither a JSON object (Mooncake) nor a header with ContextTokens (Azure)")


def _mooncake(line: str) -> TraceRequest:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        if name not in fields:
            raise ValueError(f"lacks {name!r}")
    timestamp, hash_ids = fields["timestamp"], fields["hash_ids"]
    prompt_len = _length("input_length", fields["input_length"], 1)
    output_len = _length("output_length", fields["output_length"], 0)
    if type(timestamp) not in (int, float) or not 0 <= timestamp < float("inf"):
        raise ValueError(f"'timestamp' is {timestamp!r}; it has to be milliseconds")
    if type(hash_ids) is not list or not all(type(block) is int and 0 <= block < MOST_BLOCKS for block in hash_ids):
        raise ValueError(f"'hash_ids' has to be a list of integers from 0 to {MOST_BLOCKS - 1}")
    blocks = -(-prompt_len // BLOCK)
    if len(hash_ids) != blocks:
        raise ValueError(f"'hash_ids' has {len(hash_ids)} entries; {prompt_len} tokens are {blocks} blocks of {BLOCK}")
    return TraceRequest(prompt_len, output_len, tuple(hash_ids), float(timestamp))


class _Azure:
    """One line of an Azure CSV at a time; the first is the header."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.begin: datetime | None = None

    def __call__(self, line: str) -> TraceRequest | None:
        try:
            (row,) = csv.reader([line], strict=True)
        except csv.Error as error:
            raise ValueError(f"no CSV: {error}") from None
        if not self.columns:
            for name in ("TIMESTAMP", "ContextTokens", "GeneratedTokens"):
                if name not in row:
                    raise ValueError(f"the header lacks {name!r}")
            self.columns = row
            return None
        if len(row) != len(self.columns):
            raise ValueError(f"has {len(row)} fields, the header has {len(self.columns)}")
        fields = dict(zip(self.columns, row, strict=True))
        prompt_len = _length("ContextTokens", _integer(fields["ContextTokens"]), 1)
        output_len = _length("GeneratedTokens", _integer(fields["GeneratedTokens"]), 0)
        arrival = _time(fields["TIMESTAMP"])
        self.begin = self.begin or arrival
        return TraceRequest(prompt_len, output_len, None, (arrival - self.begin) / timedelta(milliseconds=1))


def _integer(text: str) -> Any:
    """The integer written in a CSV field, or else the field itself."""
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text


def _time(text: str) -> datetime:
    """A date and time, with seven decimals in these files: more than Python reads. Newer ones say that it is UTC."""
    whole, point, decimals = text.removesuffix("+00:00").partition(".")
    try:
        return datetime.fromisoformat(whole).replace(tzinfo=None) + timedelta(seconds=float(point + decimals or 0))
    except (ValueError, OverflowError):
        raise ValueError(f"'TIMESTAMP' is {text!r}; it has to be a date and time") from None


def _length(name: str, value: Any, low: int) -> int:
    """A number of tokens. A prompt has at least one: nothing can be computed from none."""
    if type(value) is not int or not low <= value <= LONGEST:
        raise ValueError(f"{name!r} is {value!r}; it has to be an integer from {low} to {LONGEST}")
    return value


# The project's own tests run on traces of these: the real files stay where they are.


def generate_trace(count: int, seed: int, *, prompt: int = 200, output: int = 30) -> Trace:
    """`count` requests with prompts of about `prompt` tokens (at most 4 times that) and outputs of about `output`.

    As in real ones, many prompts begin with one system prompt, whose block ids they share.
    """
    random = Random(seed)
    requests = []
    for number in range(count):
        prompt_len = min(1 + int(random.expovariate(1 / prompt)), 4 * prompt)
        output_len = min(1 + int(random.expovariate(1 / output)), 4 * output)
        blocks = -(-prompt_len // BLOCK)
        hash_ids = tuple(0 if block == 0 and number % 2 else number * 1000 + block for block in range(blocks))
        requests.append(TraceRequest(prompt_len, output_len, hash_ids, 250.0 * number))
    return Trace(tuple(requests))


def mooncake_text(trace: Trace) -> str:
    """The trace as a Mooncake file."""
    return "".join(
        json.dumps(
            {
                "timestamp": int(request.timestamp),
                "input_length": request.prompt_len,
                "output_length": request.output_len,
                "hash_ids": list(request.hash_ids or ()),
            }
        )
        + "\n"
        for request in trace.requests
    )


def azure_text(trace: Trace) -> str:
    """The trace as an Azure file, which has no hash ids."""
    begin = datetime(2023, 11, 16, 18, 15)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for request in trace.requests:
        arrival = begin + timedelta(milliseconds=request.timestamp)
        lines.append(f"{arrival:%Y-%m-%d %H:%M:%S.%f}0,{request.prompt_len},{request.output_len}")
    return "\n".join(lines) + "\n"
