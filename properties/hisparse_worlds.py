"""A small manager with HiSparse, and what its tests do with one.

manager = sparse(device, 8)                 # sixteen pages in each pool, buffers of eight tokens
req = admitted(manager, 10)                 # prefilled, on the host, in its buffer
decode(manager, req, steps=3)
"""

from __future__ import annotations

from typing import Any

from ..allocation import alloc_for_decode
from ..hisparse import HiSparse
from ..manager import KVCacheManager
from ..offload import alloc_for_decode_prealloc_hisparse, bind_newest, device_buffer, swap_out
from ..records import Req
from .window_worlds import batch_of, begin, plain, sound, windowed


def sparse(device: str, buffer: int = 8, *, ratio: int = 1, window: bool = False, **changes: Any) -> KVCacheManager:
    """Sixteen pages in each pool."""
    hisparse = HiSparse(16, 16, buffer, ratio)
    changes = {"hisparse": hisparse} | changes
    return windowed(device, 64, **changes) if window else plain(device, **changes)


def prealloc_host(manager: KVCacheManager, req: Req, fill: int, tail: int | None = None) -> list[int]:
    slots: list[int] = alloc_for_decode_prealloc_hisparse(manager, req, fill_len=fill, swa_tail_len=tail).tolist()
    sound(manager)
    return slots


def admit(manager: KVCacheManager, req: Req) -> list[int]:
    slots: list[int] = device_buffer(manager, req).tolist()
    sound(manager)
    return slots


def admitted(manager: KVCacheManager, length: int, tokens: range = range(60)) -> Req:
    req = begin(manager, tokens, length)
    swap_out(manager, req)
    admit(manager, req)
    return req


def decode(manager: KVCacheManager, *reqs: Req, steps: int = 1) -> list[int]:
    """Decode steps, each with its newest token bound; the reserved slots."""
    batch, bound = batch_of(manager, *reqs), []
    for _ in range(steps):
        alloc_for_decode(manager, batch)
        bound = bind_newest(manager, batch).tolist()
        sound(manager)
    return bound


def held(manager: KVCacheManager, what: str, req: Req) -> tuple[int, ...]:
    return sound(manager).held[what].get(req._row, ())
