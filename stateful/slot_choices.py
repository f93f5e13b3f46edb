"""From three small draws to an operation of the slot level that means something now; see `choices`."""

from __future__ import annotations

from .draws import SIZES, Pick, Possible, free_group_begin, free_group_end, group_is_open, members, new_number, target
from .operations import Alloc, AllocDecode, AllocExtend, Clear, Free, FreeSegment, Operation
from .slot_ledger import SlotLedger


def _alloc(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    free = ledger.pages.free
    pages = (1, 2, 0, free, free + 1, 3, free - 1, 4)[much % 8]
    return Alloc(new_number(ledger), max(pages, 0) * ledger.config.page_size)


def _extendable(ledger: SlotLedger, many: int) -> list[int]:
    fresh = new_number(ledger)
    return [*ledger.live, *range(fresh + SIZES[many % len(SIZES)] - 1, fresh - 1, -1)]


def _alloc_extend(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    requests = members(_extendable(ledger, many), who, many)
    seq_lens, room = [], ledger.pages.free
    for i, held in enumerate(ledger.get(number) for number in requests):
        limit = ledger.config.context_len + held.allocated
        seq = target(held.allocated, ledger.config.page_size, limit, room, much + 5 * i, bound=True)
        room = max(room - ledger.pages.needed(held.allocated, seq), 0)
        seq_lens.append(seq)
    return AllocExtend(requests, tuple(seq_lens))


def _alloc_decode(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    return AllocDecode(members(_extendable(ledger, 0) if much % 4 == 3 else list(ledger.live), who, many))


def _free(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    return Free(members(list(ledger.live), who, many // 4), much % 4)


def _free_segment(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    (number,) = members(list(ledger.live), who, 0)
    pages = len(ledger.live[number].pages)
    return FreeSegment(number, (much % pages if much % 3 else 0) * ledger.config.page_size)


def _clear(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    return Clear()


SLOT_POSSIBLE: Possible = {
    "alloc": lambda ledger: True,
    "alloc_extend": lambda ledger: True,
    "alloc_decode": lambda ledger: ledger.live,
    "free": lambda ledger: ledger.live,
    "free_segment": lambda ledger: ledger.live,
    "clear": lambda ledger: ledger.live,
    "free_group_begin": lambda ledger: not ledger.pages.group_open,
    "free_group_end": group_is_open,
    "bad_call": lambda ledger: True,
}
SLOT_PICK: Pick = {
    "alloc": _alloc,
    "alloc_extend": _alloc_extend,
    "alloc_decode": _alloc_decode,
    "free": _free,
    "free_segment": _free_segment,
    "clear": _clear,
    "free_group_begin": free_group_begin,
    "free_group_end": free_group_end,
}
