"""Operations as plain data: resolved, absolute, one line of text each.

    Extend(requests=(1, 2), seq_lens=(5, 9))     <->     extend requests=[1,2] seq_lens=[5,9]

A request is created by the first operation that names its number. A bad call is an operation too: it wraps the
call that has to be refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .texts import Prompt

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a sequence. `name` is its name in reports, in replay files and in the subject's methods."""

    name: ClassVar[str]

    def __str__(self) -> str:
        said = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join([self.name, *(f"{f.name}={_text(getattr(self, f.name))}" for f in said)])


@dataclass(frozen=True, slots=True)
class Extend(Operation):
    """Lengthen requests to seq_lens tokens each: a first prefill, a later chunk, or the resume of a retracted one."""

    name: ClassVar[str] = "extend"
    requests: Numbers
    seq_lens: Numbers
    tokens: Numbers = ()  # how many tokens each request has; as many as seq_lens where nothing is said
    prompts: tuple[
        Prompt, ...
    ] = ()  # of new requests: who wrote their tokens up to where; all their own where () is said
    salts: Numbers = ()  # of new requests: the extra key of their prefix, 0 for none


@dataclass(frozen=True, slots=True)
class Prealloc(Operation):
    """Room for `fill_len` tokens of a request without a row; those up to `total_prefix_len` come from elsewhere."""

    name: ClassVar[str] = "prealloc"
    request: int
    fill_len: int
    total_prefix_len: int = -1  # -1: what the cache hits
    tokens: int = -1  # how many tokens the request has; -1: fill_len
    swa_tail_len: int = -1  # only the last so many tokens have window pages; -1: all
    prompt: Prompt = ()
    salt: int = 0


@dataclass(frozen=True, slots=True)
class FillHole(Operation):
    """Slots for the hole that a pre-allocation has left."""

    name: ClassVar[str] = "fill_hole"
    request: int


@dataclass(frozen=True, slots=True)
class Checkpoint(Operation):
    """Publish the committed whole pages of a request that goes on. `known`: see `Release`."""

    name: ClassVar[str] = "checkpoint"
    request: int
    known: int = 1


@dataclass(frozen=True, slots=True)
class Evict(Operation):
    """Take pages for `tokens` tokens out of the prefix cache, or all that nobody holds."""

    name: ClassVar[str] = "evict"
    tokens: int


@dataclass(frozen=True, slots=True)
class Decode(Operation):
    """One more token each. `kept`: with the batch object kept from the last time these requests were a batch."""

    name: ClassVar[str] = "decode"
    requests: Numbers
    kept: bool = False


@dataclass(frozen=True, slots=True)
class SpecReserve(Operation):
    """Room for `reserve` draft tokens past committed."""

    name: ClassVar[str] = "spec_reserve"
    requests: Numbers
    reserve: int
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Commit(Operation):
    """Settle the accepted draft tokens."""

    name: ClassVar[str] = "commit"
    requests: Numbers
    accepted: Numbers
    kept: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseOverallocated(Operation):
    """Give the over-allocated tail of one request back."""

    name: ClassVar[str] = "release_overallocated"
    request: int


@dataclass(frozen=True, slots=True)
class Release(Operation):
    """Finish or abort requests. `checkpoint`: the prefix cache keeps what it can key. `known`: how many tokens more
    than committed each has, as a step's result is known before its KV is there; fewer where it is negative."""

    name: ClassVar[str] = "release"
    requests: Numbers
    checkpoint: bool = False
    known: int = 1


@dataclass(frozen=True, slots=True)
class Retract(Operation):
    """Take requests back to make room; an extend resumes them. `backup`: what is on the host stays there."""

    name: ClassVar[str] = "retract"
    requests: Numbers
    backup: bool = False


@dataclass(frozen=True, slots=True)
class WindowEvict(Operation):
    """Give up what lies behind the windows of these requests."""

    name: ClassVar[str] = "window_evict"
    requests: Numbers
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Lease(Operation):
    """A step, a copy or a remote write on the rows of these requests begins."""

    name: ClassVar[str] = "lease"
    lease: int
    requests: Numbers
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Retire(Operation):
    """It has ended."""

    name: ClassVar[str] = "retire"
    lease: int


@dataclass(frozen=True, slots=True)
class LateResult(Operation):
    """The result of a leased step: what was accepted, for those of its requests that are still what they were."""

    name: ClassVar[str] = "late_result"
    lease: int
    accepted: Numbers


@dataclass(frozen=True, slots=True)
class FreeGroupBegin(Operation):
    """From here on frees are queued."""

    name: ClassVar[str] = "free_group_begin"


@dataclass(frozen=True, slots=True)
class FreeGroupEnd(Operation):
    """What was queued is free."""

    name: ClassVar[str] = "free_group_end"


@dataclass(frozen=True, slots=True)
class PreallocHisparse(Operation):
    """Logical pages and host slots for `fill_len` tokens of a request without a row."""

    name: ClassVar[str] = "prealloc_hisparse"
    request: int
    fill_len: int
    swa_tail_len: int = -1
    tokens: int = -1


@dataclass(frozen=True, slots=True)
class SwapOut(Operation):
    """Host slots for what a resident request has committed."""

    name: ClassVar[str] = "swap_out"
    request: int


@dataclass(frozen=True, slots=True)
class DeviceBuffer(Operation):
    """Admit a request whose KV is on the host: its device buffer."""

    name: ClassVar[str] = "device_buffer"
    request: int


@dataclass(frozen=True, slots=True)
class BindNewest(Operation):
    """The last committed token of each into the reserved slot of its buffer."""

    name: ClassVar[str] = "bind_newest"
    requests: Numbers
    kept: bool = False


@dataclass(frozen=True, slots=True)
class DropBackup(Operation):
    """Give up what a retraction has kept on the host."""

    name: ClassVar[str] = "drop_backup"
    request: int


@dataclass(frozen=True, slots=True)
class Alloc(Operation):
    """Slot level: `tokens` slots in whole pages, held under the number `request`."""

    name: ClassVar[str] = "alloc"
    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class AllocExtend(Operation):
    """Slot level: lengthen each from its length to seq_lens."""

    name: ClassVar[str] = "alloc_extend"
    requests: Numbers
    seq_lens: Numbers


@dataclass(frozen=True, slots=True)
class AllocDraft(Operation):
    """Slot level: slots for a draft, from the length of each to seq_lens, all given back before the call returns."""

    name: ClassVar[str] = "alloc_draft"
    requests: Numbers
    seq_lens: Numbers


@dataclass(frozen=True, slots=True)
class AllocDecode(Operation):
    """Slot level: one more token each."""

    name: ClassVar[str] = "alloc_decode"
    requests: Numbers


@dataclass(frozen=True, slots=True)
class Free(Operation):
    """Slot level: everything these hold, as one set of slots, in the order `rotate` (a rotation of the set)."""

    name: ClassVar[str] = "free"
    requests: Numbers
    rotate: int = 0


@dataclass(frozen=True, slots=True)
class FreeSegment(Operation):
    """Slot level: what one holds from position `start` on, as a row segment."""

    name: ClassVar[str] = "free_segment"
    request: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Clear(Operation):
    """Slot level: take everything back."""

    name: ClassVar[str] = "clear"


@dataclass(frozen=True, slots=True)
class AllocExtendTail(Operation):
    """Slot level, two pools: a new number of `seq_len` tokens, with window pages for the last `tail` only."""

    name: ClassVar[str] = "alloc_extend_tail"
    request: int
    seq_len: int
    tail: int


@dataclass(frozen=True, slots=True)
class FreeWindow(Operation):
    """Slot level, two pools: the window pages of positions [.., end) that one still has; `end` on a page edge."""

    name: ClassVar[str] = "free_window"
    request: int
    end: int


@dataclass(frozen=True, slots=True)
class AllocLogicalOnly(Operation):
    """Slot level, HiSparse: lengthen each from its length to seq_lens, without device pages."""

    name: ClassVar[str] = "alloc_logical_only"
    requests: Numbers
    seq_lens: Numbers


@dataclass(frozen=True, slots=True)
class AllocDeviceBuffer(Operation):
    """Slot level, HiSparse: a device buffer of `tokens` for one, made of its resident pages first."""

    name: ClassVar[str] = "alloc_device_buffer"
    request: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RawCall(Operation):
    """Slot level: a call with its arguments written out; only bad calls need one."""

    name: ClassVar[str] = "raw"
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BadCall(Operation):
    """A call that cannot be right. `kind` is the rule it breaks, in words."""

    name: ClassVar[str] = "bad_call"
    kind: str
    call: Operation

    def __str__(self) -> str:
        return f"bad_call {self.kind}: {self.call}"


ENGINE_OPERATIONS = (
    Extend, Decode, SpecReserve, Commit, ReleaseOverallocated, Release, Retract, Prealloc, FillHole, Checkpoint, Evict,
    WindowEvict, Lease, Retire, LateResult, FreeGroupBegin, FreeGroupEnd,
    PreallocHisparse, SwapOut, DeviceBuffer, BindNewest, DropBackup,
)  # fmt: skip
SLOT_OPERATIONS = (
    Alloc, AllocExtend, AllocDecode, AllocDraft, Free, FreeSegment, Clear, FreeGroupBegin, FreeGroupEnd,
    AllocExtendTail, FreeWindow, AllocLogicalOnly, AllocDeviceBuffer,
)  # fmt: skip
BY_NAME: dict[str, type[Operation]] = {c.name: c for c in (*ENGINE_OPERATIONS, *SLOT_OPERATIONS, RawCall)}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
