"""What an allocator under test offers: a factory, its capabilities, one method per operation.

    def factory(config: Configuration) -> Engine | SlotAllocator: ...

A factory may look at `config.level` and return a subject of that level, or always return the one level it has. The
methods that a subject lacks are not asked of it. How it refuses, it says in its capabilities; anything else that its
methods raise is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...config import PAGE_SIZES
from ...contract import CONTRACT
from ...snapshots import Snapshot
from ..configuration import LEVELS, Configuration
from ..operations import ENGINE_OPERATIONS, SLOT_OPERATIONS
from ..options import DEVICES

Int64 = NDArray[np.int64]
Tokens = NDArray[np.int32]

_NOT_ASKED = {
    "KV-12": "asked of lockstep subjects only",
    "KV-14": "asked in kernel lanes only",
}
_NOT_ASKED_OF_SLOTS = {
    "KV-4": "records are asked at the engine level",
    "KV-9": "the prefix cache is asked at the engine level",
    "KV-13": "rows are asked at the engine level",
    "KV-16": "leases are asked at the engine level",
}


@dataclass(frozen=True)
class Capabilities:
    """What a subject says of itself; every property with the sentence that it stands for.

    level: it is driven as an "engine" (requests, rows, records) or as "slots" (the slot allocator alone).
    page_sizes: it can be made with pages of so many tokens.
    pools: it can be made with one pool, "paged", with a "window" pool beside it, or as "hisparse"; asked at the level
        "slots" only, an engine finds its pools in the configuration.
    refuses: a shortage it answers with kvcore's "typed" errors, with "none" instead of slots, or it "raises" one of
        `shortage`. A bad call may end in any exception unless it is "typed".
    shortage: it raises these where there is no room.
    operations: it offers these; not given: those whose methods are there.
    dies_in: in these lanes a call that goes wrong can end the process, so that it is driven in a child process.
    why_not: these clauses are not asked of it, for this reason each; those that its level or what it offers excludes
        are added. Without KV-15 no bad call is made, without KV-11 no free group opened; what breaks another one of
        them is no finding.
    asked: the clauses that are asked of it: all others, if not given.
    """

    level: str
    page_sizes: tuple[int, ...] = PAGE_SIZES
    asked: tuple[str, ...] = ()
    why_not: dict[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ("paged",)
    refuses: str = "typed"
    shortage: tuple[type[Exception], ...] = ()
    operations: tuple[str, ...] | None = None
    dies_in: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("level", self.level, LEVELS)
        _one_of("refuses", self.refuses, REFUSALS)
        _some_of("page_sizes", self.page_sizes, PAGE_SIZES)
        _some_of("pools", self.pools, POOLS)
        _some_of("dies_in", self.dies_in, DEVICES, may_be_empty=True)
        _some_of("asked", self.asked, tuple(CONTRACT), may_be_empty=True)
        _some_of("why_not", tuple(self.why_not), tuple(CONTRACT), may_be_empty=True)
        if self.operations is not None:
            known = SLOT_OPERATIONS if self.level == "slots" else ENGINE_OPERATIONS
            _some_of("operations", self.operations, tuple(operation.name for operation in known))
        errors = self.shortage if isinstance(self.shortage, tuple) else (None,)
        if not all(isinstance(error, type) and issubclass(error, Exception) for error in errors):
            raise ValueError(f"shortage is {self.shortage!r}; it has to be a tuple of exception classes")
        if self.refuses == "raises" and not self.shortage:
            raise ValueError("refuses is 'raises', and shortage does not say what")
        given = dict(self.why_not)
        if not self.asked:
            why = _NOT_ASKED | (_NOT_ASKED_OF_SLOTS if self.level == "slots" else {})
            if self.level == "slots" and self.pools == ("paged",):
                why["KV-10"] = "it has one pool, and so no map"
            given = why | given
            object.__setattr__(self, "asked", tuple(clause for clause in CONTRACT if clause not in given))
        object.__setattr__(self, "why_not", given)


REFUSALS = ("typed", "none", "raises")
POOLS = ("paged", "window", "hisparse")


def _one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it has to be one of {', '.join(map(str, known))}")


def _some_of(name: str, values: Any, known: tuple[Any, ...], *, may_be_empty: bool = False) -> None:
    if not isinstance(values, tuple):
        raise ValueError(f"{name} is {values!r}; it has to be a tuple, as in {known[:2]}")
    for value in values:
        if value not in known:
            raise ValueError(f"{name} holds {value!r}; known are {', '.join(map(str, known))}")
    if not values and not may_be_empty:
        raise ValueError(f"{name} is empty; known are {', '.join(map(str, known))}")


class Subject(Protocol):
    """What both levels share."""

    capabilities: Capabilities

    def snapshot(self) -> Snapshot: ...

    def available(self) -> list[int]:
        """Free tokens of each pool as the allocator counts them, in the order of the snapshot's pools."""


class Engine(Subject, Protocol):
    """Requests by number; the subject keeps what belongs to each. `kept`: with the batch object of the last call.

    `tokens` are a request's tokens as far as it has any; `salt` is its extra key, 0 for none. A subject whose
    configuration says prefix_cache="none" is never asked to peek, and its checkpoints publish nothing.
    """

    def extend(
        self, requests: Sequence[int], seq_lens: Sequence[int], tokens: Sequence[Tokens], salts: Sequence[int]
    ) -> Int64: ...
    def decode(self, requests: Sequence[int], kept: bool) -> Int64: ...
    def spec_reserve(self, requests: Sequence[int], reserve: int, kept: bool) -> None: ...
    def commit(self, requests: Sequence[int], accepted: Sequence[int], kept: bool) -> None: ...
    def release_overallocated(self, request: int) -> int: ...
    def release(self, requests: Sequence[int], checkpoint: bool, tokens: Sequence[Tokens]) -> None: ...
    def retract(self, requests: Sequence[int], backup: bool) -> None: ...
    def prealloc(
        self, request: int, fill_len: int, total_prefix_len: int, swa_tail_len: int, tokens: Tokens, salt: int
    ) -> Int64:
        """total_prefix_len -1: what the prefix cache hits; swa_tail_len -1: window pages for all."""

    def fill_hole(self, request: int) -> Int64: ...
    def checkpoint(self, request: int, tokens: Tokens) -> None: ...
    def evict(self, num_tokens: int) -> int:
        """The tokens that were freed."""

    def peek(self, request: int, tokens: Tokens, salt: int) -> int:
        """Tokens that an extend of the request, which holds no row, would hit now."""

    def window_evict(self, requests: Sequence[int], kept: bool) -> int:
        """The tokens that the windows gave up."""

    def lease(self, lease: int, requests: Sequence[int], kept: bool) -> None:
        """`lease` is a number that the subject keeps the lease under, also once it is retired."""

    def retire(self, lease: int) -> None: ...
    def late_result(self, lease: int, accepted: Sequence[int]) -> list[bool]:
        """Whose tokens were settled."""

    def free_group_begin(self) -> None: ...
    def free_group_end(self) -> None: ...

    # With config.hisparse only; the four that return slots return int64.
    def prealloc_hisparse(self, request: int, fill_len: int, swa_tail_len: int, tokens: Tokens) -> Int64:
        """The host slots of [0, fill_len), one a token or one a whole group; swa_tail_len -1: window pages for all."""

    def swap_out(self, request: int) -> Int64:
        """The host slots of what was not on the host yet."""

    def device_buffer(self, request: int) -> Int64:
        """The device slots of the buffer, its reserved page first."""

    def bind_newest(self, requests: Sequence[int], kept: bool) -> Int64:
        """The reserved device slot of each."""

    def drop_backup(self, request: int) -> None: ...

    def row_of(self, request: int) -> int:
        """The request's row, 0 without one."""

    def row(self, request: int, start: int, end: int) -> Int64:
        """The slots of positions [start, end) as they stand in the request's row."""

    def lengths(self, request: int) -> tuple[int, int, int]:
        """Protected, committed and allocated tokens of the request, as the subject's record says."""

    def window_pages(self, pages: Sequence[int]) -> list[int]:
        """The window page of each page, 0 for none."""

    def device_pages(self, pages: Sequence[int]) -> list[int]:
        """The device page of each page, 0 for none."""

    def held(self, what: str, request: int) -> list[int]:
        """The pages of the request's "buffer" on the device, or its "host" pages."""


class SlotAllocator(Subject, Protocol):
    """The slot allocator alone; slots are lists of integers here, tensors inside.

    A method that returns slots returns int64, as many as the lengths ask for, request by request. Once a call has
    returned, the caller may overwrite whatever it has passed.
    """

    def alloc(self, need_size: int) -> Int64:
        """`need_size` tokens in whole pages."""

    def alloc_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        """Positions [prefix, seq) of each; last_loc: the slot of position prefix - 1, or -1."""

    def alloc_decode(self, seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        """Position seq - 1 of each."""

    def alloc_draft(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        """As alloc_extend, for a speculative draft: all of it is given back before this returns."""

    def free(self, slots: Sequence[int]) -> None:
        """All slots of some requests, in any order."""

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        """What a request holds from position start_pos, a page edge, on."""

    def clear(self) -> None: ...
    def free_group_begin(self) -> None: ...
    def free_group_end(self) -> None: ...

    # With config.window only, a pool of window pages in step with the full one.
    def alloc_extend_tail(self, seq_len: int, tail: int) -> Int64:
        """A new request of seq_len tokens, the last `tail` of them, from a page edge on, with window pages."""

    def free_window(self, slots: Sequence[int], start_pos: int) -> None:
        """The window pages of these slots of one request, whole pages from position start_pos on; the slots stay."""

    # With config.hisparse only: a logical pool and a device pool.
    def alloc_logical_only(
        self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]
    ) -> Int64: ...

    def alloc_device_buffer(self, slots: Sequence[int], need_size: int) -> Int64:
        """need_size device slots, whole pages; slots: all that the request holds, none of it mapped from now on."""

    def free_device_buffer(self, slots: Sequence[int]) -> None:
        """All device slots of a buffer."""


Factory = Callable[[Configuration], Any]
"""Makes a subject. Where it has the attribute `capabilities` (a class has), nothing is made to read them."""
