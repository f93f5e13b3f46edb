"""What an allocator under test offers: a factory, its capabilities, one method per operation.

    def factory(config: Configuration) -> Engine | SlotAllocator: ...

A factory may look at `config.level` and return a subject of that level, or always return the one level it has.
Methods raise KVCacheOutOfMemory and ContractError to refuse; anything else that they raise is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...snapshots import Snapshot
from ..configuration import Configuration

Int64 = NDArray[np.int64]
Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Capabilities:
    """What a subject says of itself, one sentence each.

    level: which of the two levels it is driven on, "engine" or "slots".
    page_sizes: the page sizes that it can be made with.
    asked: the clauses that are asked of it; the others are listed as not asked, with `why_not`.
    """

    level: str
    page_sizes: tuple[int, ...]
    asked: tuple[str, ...]
    why_not: dict[str, str]


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
    """The slot allocator alone; slots are lists of integers here, tensors inside."""

    def alloc(self, need_size: int) -> Int64: ...
    def alloc_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64: ...
    def alloc_decode(self, seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64: ...
    def free(self, slots: Sequence[int]) -> None: ...
    def free_segment(self, slots: Sequence[int], start_pos: int) -> None: ...
    def clear(self) -> None: ...
    def free_group_begin(self) -> None: ...
    def free_group_end(self) -> None: ...


Factory = Callable[[Configuration], Any]
