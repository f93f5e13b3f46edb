"""Operations read from lines of text, as a person writes them in a replay file.

parse("extend requests=[1,2] seq_lens=[5,9]")       # the line is what str() of the operation gives
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from .operations import BY_NAME, BadCall, Operation


class MalformedOperation(ValueError):
    """A line that is no operation; the message says what is wrong with it."""


def parse(line: str) -> Operation:
    """The operation written on a line; MalformedOperation if there is none."""
    head, _, rest = line.strip().partition(" ")
    if head == BadCall.name:
        kind, colon, call = rest.partition(": ")
        if not colon:
            raise MalformedOperation(f"a bad call reads 'bad_call KIND: OPERATION', not {line.strip()!r}")
        return BadCall(kind, parse(call))
    if head not in BY_NAME:
        raise MalformedOperation(f"unknown operation {head!r}; known are {', '.join([*BY_NAME, BadCall.name])}")
    cls = BY_NAME[head]
    known = {f.name: str(f.type) for f in fields(cls)}
    values: dict[str, Any] = {}
    for word in rest.split():
        key, equals, text = word.partition("=")
        if not equals or key not in known:
            raise MalformedOperation(f"{word!r} is no field of {head}; it has {', '.join(sorted(known))}")
        try:
            values[key] = _frozen(json.loads(text))
        except ValueError:
            raise MalformedOperation(f"{word!r} holds no JSON value") from None
        if not _fits(known[key], values[key]):
            raise MalformedOperation(f"{word!r}: {key} of {head} is {_WORDS.get(known[key], known[key])}")
    try:
        return cls(**values)
    except TypeError as error:
        raise MalformedOperation(f"{head}: {str(error).partition(') ')[2] or error}") from None


_WORDS = {
    "Numbers": "a list of integers, as in [1,2]",
    "Prompt": "a list of [end, writer], as in [[8,1],[12,2]]",
    "tuple[Prompt, ...]": "a list of prompts, one a request, as in [[],[[8,1]]]",
    "int": "an integer",
    "bool": "true or false",
}


def _fits(kind: str, value: Any) -> bool:
    """Whether a value read from a line is of the field's kind."""
    if kind == "Numbers":
        return isinstance(value, tuple) and all(type(number) is int for number in value)
    if kind == "Prompt":
        return isinstance(value, tuple) and all(_fits("Numbers", pair) and len(pair) == 2 for pair in value)
    if kind == "tuple[Prompt, ...]":
        return isinstance(value, tuple) and all(_fits("Prompt", prompt) for prompt in value)
    return {"int": type(value) is int, "bool": type(value) is bool}.get(kind, True)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
