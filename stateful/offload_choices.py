"""From three small draws to an operation of HiSparse that means something now; see `choices`."""

from __future__ import annotations

from .draws import kept, members, new_number, target
from .ledger import Ledger
from .operations import BindNewest, DeviceBuffer, DropBackup, Operation, PreallocHisparse, SwapOut


def admitted(ledger: Ledger, numbers: list[int]) -> list[int]:
    """Those of them that may decode: with HiSparse, those with a device buffer."""
    return [n for n in numbers if ledger.live[n].buffer] if ledger.config.hisparse else numbers


def prealloc_hisparse(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    old = list(ledger.retracted)
    number = members(old, who, 0)[0] if old and who % 2 else new_number(ledger)
    size, limit, least = ledger.config.page_size, ledger.config.context_len, ledger.get(number).hosted
    fill = max(target(0, size, limit, ledger.pages.free, much, bound=False), least)
    tail = -1
    if ledger.pools.window is not None and many % 3:
        pages = (0, 1, fill // size, fill // size - 1)[much // 16 % 4]
        tail = min(max(pages, 0) * size + fill % size, fill)
    return PreallocHisparse(number, fill, tail)


def resident(ledger: Ledger) -> list[int]:
    """Live requests that lie on the device by the map."""
    return [n for n, held in ledger.live.items() if held.resident]


def swap_out(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    ready = resident(ledger)
    behind = [n for n in ready if ledger.live[n].hosted < ledger.live[n].committed]
    return SwapOut(members(behind or ready, who, 0)[0])


def on_host(ledger: Ledger) -> list[int]:
    """Live requests that can be admitted."""
    return [
        n for n, held in ledger.live.items() if not held.buffer and held.hosted == held.committed == held.allocated > 0
    ]


def device_buffer(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    return DeviceBuffer(members(on_host(ledger), who, 0)[0])


def backed_up(ledger: Ledger) -> list[int]:
    """Retracted requests with a back-up on the host."""
    return [n for n, held in ledger.retracted.items() if held.backup is not None]


def drop_backup(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    return DropBackup(members(backed_up(ledger), who, 0)[0])


def bind_newest(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    requests = members(admitted(ledger, list(ledger.live)), who, many)
    return BindNewest(requests, kept(ledger, requests, much))
