"""Checks of what callers pass in: each refusal names its argument (KV-15) and comes before any change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import BadArgument


def lengths(name: str, values: Any, count: int | None = None) -> NDArray[np.int64]:
    """Host integers, one a request, as a new int64 array; refuses tensors, floats, booleans, negatives and nesting.

    `count` is the number of requests they have to agree with.
    """
    if isinstance(values, torch.Tensor):
        raise BadArgument("KV-15", name, "is a tensor; lengths live on the host")
    if isinstance(values, (list, tuple)) and bool in set(map(type, values)):  # numpy would count it in
        raise BadArgument("KV-15", name, f"holds a boolean: {values!r}")
    try:
        array = np.array(values)
    except (ValueError, TypeError, OverflowError):
        raise BadArgument("KV-15", name, f"is not a sequence of integers: {values!r}") from None
    if array.ndim != 1:
        raise BadArgument("KV-15", name, f"has {array.ndim} dimensions; it has to be a sequence of integers")
    if array.dtype.kind not in "iu" and len(array):
        raise BadArgument("KV-15", name, f"holds {array.dtype}; it has to hold integers")
    if count is not None and len(array) != count:
        raise BadArgument("KV-15", name, f"has {len(array)} entries for {count} requests")
    array = array.astype(np.int64, copy=False)
    # Read without a sign, a negative number lies past every other one: one comparison for both ends.
    if (array.view(np.uint64) > 2**62).any():
        raise BadArgument("KV-15", name, f"has an entry out of range: {array.tolist()}")
    return array


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """One integer between `low` and `high`, both included."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise BadArgument("KV-15", name, f"is {value!r}; it has to be an integer")
    if value < low or (high is not None and value > high):
        raise BadArgument(
            "KV-15", name, f"is {value}; it has to be {f'{low}..{high}' if high is not None else f'at least {low}'}"
        )
    return int(value)


def slots(name: str, values: Any, count: int | None = None, where: torch.Tensor | None = None) -> torch.Tensor:
    """A 1-D tensor of slot numbers as int64; refuses other types and shapes. Their values are not looked at.

    `where`: a tensor on whose device they have to be.
    """
    if not isinstance(values, torch.Tensor):
        raise BadArgument("KV-15", name, f"is a {type(values).__name__}; slots are a 1-D integer tensor")
    if values.ndim != 1 or values.dtype not in (torch.int64, torch.int32):
        raise BadArgument(
            "KV-15", name, f"is {values.dtype}{list(values.shape)}; slots are a 1-D int64 or int32 tensor"
        )
    if count is not None and len(values) != count:
        raise BadArgument("KV-15", name, f"has {len(values)} entries for {count} requests")
    if where is not None and values.device != where.device:
        raise BadArgument("KV-15", name, f"is on {values.device}; the allocator's tensors are on {where.device}")
    return values.to(torch.int64)


def requests(name: str, reqs: Any, kind: type) -> list[Any]:
    """A non-empty list of distinct requests."""
    if not isinstance(reqs, Sequence) or isinstance(reqs, (str, bytes)):
        raise BadArgument("KV-15", name, f"is a {type(reqs).__name__}; it has to be a sequence of requests")
    members = list(reqs)
    if not members:
        raise BadArgument("KV-15", name, "is empty; a batch holds at least one request")
    for found in set(map(type, members)):
        if not issubclass(found, kind):
            raise BadArgument("KV-15", name, f"holds a {found.__name__}; it has to hold requests")
    if len(members) > 1 and len(set(map(id, members))) != len(members):
        raise BadArgument("KV-15", name, "names a request twice")
    return members
