"""How an operation of the slot level is put to a subject: numbers become the slots that the ledger knows them to hold.

value = call_slots(subject, ledger, operation)
"""

from __future__ import annotations

from typing import Any

from .operations import (
    Alloc,
    AllocDecode,
    AllocDeviceBuffer,
    AllocDraft,
    AllocExtend,
    AllocExtendTail,
    AllocLogicalOnly,
    Clear,
    Free,
    FreeGroupBegin,
    FreeGroupEnd,
    FreeSegment,
    FreeWindow,
    Operation,
    RawCall,
)
from .slot_ledger import SlotLedger


def call_slots(subject: Any, ledger: SlotLedger, operation: Operation) -> Any:
    """What the subject returns; raises what it raises."""
    match operation:
        case Alloc(_, tokens):
            return subject.alloc(tokens)
        case AllocExtend(requests, seq_lens):
            prefix_lens = [ledger.get(number).allocated for number in requests]
            return subject.alloc_extend(prefix_lens, seq_lens, [ledger.last_loc(number) for number in requests])
        case AllocDraft(requests, seq_lens):
            prefix_lens = [ledger.get(number).allocated for number in requests]
            return subject.alloc_draft(prefix_lens, seq_lens, [ledger.last_loc(number) for number in requests])
        case AllocLogicalOnly(requests, seq_lens):
            prefix_lens = [ledger.get(number).allocated for number in requests]
            return subject.alloc_logical_only(prefix_lens, seq_lens, [ledger.last_loc(number) for number in requests])
        case AllocExtendTail(_, seq_len, tail):
            return subject.alloc_extend_tail(seq_len, tail)
        case AllocDecode(requests):
            lens = [ledger.get(number).allocated + 1 for number in requests]
            return subject.alloc_decode(lens, [ledger.last_loc(number) for number in requests])
        case AllocDeviceBuffer(request, tokens):
            return subject.alloc_device_buffer(ledger.slots_of(request), tokens)
        case Free(requests, rotate):
            _free_buffers(subject, ledger, requests)
            named = [slot for number in requests for slot in ledger.slots_of(number)]
            at = rotate % max(len(named), 1)
            return subject.free(named[at:] + named[:at])
        case FreeSegment(request, start):
            if start == 0:
                _free_buffers(subject, ledger, (request,))
            return subject.free_segment(ledger.slots_of(request, max(start, 0)), start)
        case FreeWindow(request, end):
            start = ledger.second.first_page(ledger.get(request)) if ledger.second else 0
            return subject.free_window(ledger.slots_of(request, start, end), start)
        case Clear():
            return subject.clear()
        case FreeGroupBegin():
            return subject.free_group_begin()
        case FreeGroupEnd():
            return subject.free_group_end()
        case RawCall(method, arguments):
            return getattr(subject, method)(*arguments)
    raise TypeError(f"the slot level has no operation {operation.name}")


def _free_buffers(subject: Any, ledger: SlotLedger, requests: tuple[int, ...]) -> None:
    """What leaves gives its device buffer back first, as an engine's coordinator does."""
    for number in requests:
        if slots := ledger.buffer_slots(number):
            subject.free_device_buffer(slots)
