"""From three small draws to an operation of the slot level that means something now; see `choices`."""

from __future__ import annotations

from .draws import SIZES, Pick, Possible, free_group_begin, free_group_end, group_is_open, members, new_number, target
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
    FreeSegment,
    FreeWindow,
    Operation,
)
from .slot_ledger import SlotLedger


def _alloc(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    free = ledger.pages.free
    pages = (1, 2, 0, free, free + 1, 3, free - 1, 4)[much % 8]
    return Alloc(new_number(ledger), max(pages, 0) * ledger.config.page_size)


def _with_new(ledger: SlotLedger, live: list[int], many: int) -> list[int]:
    """These, and so many numbers that nobody has had that any batch can be made of them."""
    fresh = new_number(ledger)
    return [*live, *range(fresh + SIZES[many % len(SIZES)] - 1, fresh - 1, -1)]


def _resident(ledger: SlotLedger) -> list[int]:
    """What an extend may lengthen: with HiSparse, what lies on the device as a whole."""
    if ledger.config.hisparse is None:
        return [number for number, held in ledger.live.items() if ledger.goes_on(held)]
    return [number for number, held in ledger.live.items() if not held.buffer and all(held.peers)]


def _offloaded(ledger: SlotLedger) -> list[int]:
    """What may get slots without device pages."""
    return [number for number, held in ledger.live.items() if not any(held.peers)]


def _decodable(ledger: SlotLedger) -> list[int]:
    """What a decode may lengthen: with HiSparse, what has a device buffer."""
    hisparse = ledger.config.hisparse is not None
    return [number for number, held in ledger.live.items() if (held.buffer if hisparse else ledger.goes_on(held))]


def _unbuffered(ledger: SlotLedger) -> list[int]:
    return [number for number, held in ledger.live.items() if not held.buffer]


def _windowed(ledger: SlotLedger) -> list[int]:
    """What has a whole page with one in the window pool."""
    size = ledger.config.page_size
    return [number for number, held in ledger.live.items() if any(held.peers[: held.allocated // size])]


def _lengths(ledger: SlotLedger, requests: tuple[int, ...], much: int) -> tuple[int, ...]:
    seq_lens, room = [], ledger.pages.free
    for i, held in enumerate(ledger.get(number) for number in requests):
        limit = ledger.config.context_len + held.allocated
        seq = target(held.allocated, ledger.config.page_size, limit, room, much + 5 * i, bound=True)
        room = max(room - ledger.pages.needed(held.allocated, seq), 0)
        seq_lens.append(seq)
    return tuple(seq_lens)


def _alloc_extend(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    requests = members(_with_new(ledger, _resident(ledger), many), who, many)
    return AllocExtend(requests, _lengths(ledger, requests, much))


def _alloc_draft(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    requests = members(_resident(ledger), who, many)
    return AllocDraft(requests, _lengths(ledger, requests, much))


def _alloc_logical_only(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    requests = members(_with_new(ledger, _offloaded(ledger), many), who, many)
    return AllocLogicalOnly(requests, _lengths(ledger, requests, much))


def _alloc_decode(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    live = _decodable(ledger)
    new = much % 4 == 3 and ledger.config.hisparse is None
    return AllocDecode(members(_with_new(ledger, live, 0) if new else live, who, many))


def _alloc_extend_tail(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    number, size = new_number(ledger), ledger.config.page_size
    (seq,) = _lengths(ledger, (number,), who)
    pages = (0, 1, 2, seq // size)[much % 4]
    begin = max(-(-seq // size) - pages, 0) * size
    return AllocExtendTail(number, seq, max(seq - begin, 0))


def _free_window(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    (number,) = members(_windowed(ledger), who, 0)
    held, size = ledger.live[number], ledger.config.page_size
    whole = held.allocated // size
    gone = next(i for i, page in enumerate(held.peers) if page)
    return FreeWindow(number, (gone + 1 + much % max(whole - gone, 1)) * size)


def _alloc_device_buffer(ledger: SlotLedger, who: int, many: int, much: int) -> Operation:
    (number,) = members(_unbuffered(ledger), who, 0)
    resident = sum(page > 0 for page in ledger.live[number].peers)
    free = ledger.second.pages.free if ledger.second else 0
    pages = (resident, resident + 1, 1, resident - 1, 2, resident + free, resident + free + 1, 0)[much % 8]
    return AllocDeviceBuffer(number, max(pages, 0) * ledger.config.page_size)


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
    "alloc_decode": _decodable,
    "alloc_draft": lambda ledger: ledger.config.hisparse is None and not group_is_open(ledger) and _resident(ledger),
    "alloc_extend_tail": lambda ledger: ledger.config.window is not None,
    "free_window": lambda ledger: ledger.config.window is not None and _windowed(ledger),
    "alloc_logical_only": lambda ledger: ledger.config.hisparse is not None,
    "alloc_device_buffer": lambda ledger: ledger.config.hisparse is not None and _unbuffered(ledger),
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
    "alloc_draft": _alloc_draft,
    "alloc_extend_tail": _alloc_extend_tail,
    "free_window": _free_window,
    "alloc_logical_only": _alloc_logical_only,
    "alloc_device_buffer": _alloc_device_buffer,
    "free": _free,
    "free_segment": _free_segment,
    "clear": _clear,
    "free_group_begin": free_group_begin,
    "free_group_end": free_group_end,
}
