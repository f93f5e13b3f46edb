"""What is legal of HiSparse: pre-allocation on the host, back-up, admission, the newest token.

A request that is resident extends and is backed up; one that is on the host is admitted; one that is admitted decodes.
"""

from __future__ import annotations

from ..errors import BadArgument, RowOverflow, StaleRow
from .operations import PreallocHisparse
from .prefixes import CachedPage
from .room import Room
from .texts import Text
from .verdicts import Bad, Growth, Held, Short, Verdict


class OffloadLedger(Room):
    """What may come next between logical, device and host pool."""

    def _prealloc_hisparse(self, op: PreallocHisparse) -> Verdict:
        size = self.config.page_size
        if self.config.hisparse is None:
            return Bad(BadArgument, "req")
        held = self.get(op.request)
        if held.bound:
            return Bad(StaleRow, "req")
        if op.fill_len < 1 or op.fill_len > (op.fill_len if op.tokens < 0 else op.tokens):
            return Bad(BadArgument, "fill_len")
        if op.fill_len > self.config.context_len:
            return Bad(RowOverflow, "fill_len", "KV-4")
        window_from = None
        if op.swa_tail_len != -1:
            tail = op.fill_len - op.swa_tail_len
            if self.pools.window is None or not 0 <= op.swa_tail_len <= op.fill_len or tail % size:
                return Bad(BadArgument, "swa_tail_len")
            window_from = tail or None
        if held.backup is not None and op.fill_len < held.hosted:
            return Bad(BadArgument, "fill_len")
        if not self.free_rows:
            return Short("rows", 1, 0)
        growth = (Growth(op.request, 0, op.fill_len, op.fill_len),)
        hits: tuple[tuple[Text, list[CachedPage]], ...] = ((self.text_of(op.request), []),)
        host = -(-op.fill_len // size) - len(held.backup or ())
        return self._room_for(growth, returns=None, hits=hits, window_from=window_from, host_pages=host)

    def _swap_out(self, held: Held) -> Verdict:
        if not held.resident:
            return Bad(BadArgument, "req")
        pages = -(-held.committed // self.config.page_size) - len(held.host)
        return self._room_for((), returns=None, host_pages=pages, touched=(held.number,))

    def _device_buffer(self, held: Held) -> Verdict:
        if held.buffer or not held.hosted == held.committed == held.allocated:
            return Bad(BadArgument, "req")
        resident = -(-held.resident // self.config.page_size)
        pages = max(self.wanted_buffer(held, held.allocated) - resident, 0)
        return self._room_for((), returns=None, device_pages=pages, touched=(held.number,))

    def _bind_newest(self, requests: tuple[int, ...]) -> Verdict:
        members = [self.live[number] for number in requests]
        if self.config.hisparse is None or not all(held.buffer for held in members):
            return Bad(BadArgument, "batch")
        size = self.config.page_size
        device = sum(self.wanted_buffer(held, held.committed) - len(held.buffer) for held in members)
        host = sum(-(-max(held.hosted, held.committed - 1) // size) - len(held.host) for held in members)
        return self._room_for((), returns=None, device_pages=device, host_pages=host, touched=requests)
