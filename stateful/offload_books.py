"""The books of HiSparse: which device and host pages each request has, and which of its tokens lie where.

A request is resident (its logical pages have device pages by the map) until it is admitted; then it has a buffer.
"""

from __future__ import annotations

from .books import Books, Read
from .operations import BindNewest, DeviceBuffer, DropBackup, Extend, Operation, PreallocHisparse, SwapOut
from .verdicts import Broken, Held, Legal


class OffloadBooks(Books):
    """The books, device and host included."""

    def _offload(self, operation: Operation, verdict: Legal, read: Read) -> None:
        """What a HiSparse call does on device and host."""
        size, pools = self.config.page_size, self.pools
        match operation:
            case Extend():
                for growth in verdict.growth:
                    held = self.live[growth.request]
                    pages = held.pages[-(-growth.start // size) : -(-growth.end // size)]
                    pools.take_resident(held, pages, read.read_device_map(pages))
                    held.resident = growth.end
            case PreallocHisparse(request=number):
                held = self.live[number]
                held.host, held.backup = held.backup or [], None
                self._back_up(held, held.committed, read)
                self.returned = self._host_slots(held, 0)
            case SwapOut(request=number):
                held = self.live[number]
                hosted = held.hosted
                self._back_up(held, held.committed, read)
                self.returned = self._host_slots(held, hosted)
            case DeviceBuffer(request=number):
                held = self.live[number]
                own = [pools.device_map.pop(page) for page in held.pages[: -(-held.resident // size)]]
                held.buffer = self._buffer(held, held.allocated, read)
                pools.take_other("device", held, [page for page in held.buffer if page not in own])
                pools.free_other("device", held, [page for page in own if page not in held.buffer])
                held.resident = held.newest = 0
                self.returned = [page * self.a_page + i for page in held.buffer for i in range(self.a_page)]
            case BindNewest(requests=requests):
                self.returned = []
                for number in requests:
                    held = self.live[number]
                    grown = self._buffer(held, held.committed, read)
                    if grown[: len(held.buffer)] != held.buffer:
                        raise Broken("KV-10", f"request {number} had the buffer {held.buffer}, now {grown}")
                    pools.take_other("device", held, grown[len(held.buffer) :])
                    held.buffer = grown
                    self._back_up(held, max(held.hosted, held.committed - 1), read)
                    held.newest = held.committed
                    self.returned.append(held.buffer[0] * self.a_page)
            case DropBackup(request=number):
                held = self.retracted[number]
                pools.free_other("host", held, held.backup or [])
                held.backup, held.hosted, held.former = None, 0, ()

    def wanted_buffer(self, held: Held, tokens: int) -> int:
        """Pages of the device buffer of a request of so many tokens: it never shrinks."""
        hisparse, size = self.config.hisparse, self.config.page_size
        assert hisparse is not None
        return max(len(held.buffer), 1 + min(-(-tokens // size), -(-hisparse.buffer_size // size)))

    def _buffer(self, held: Held, tokens: int, read: Read) -> list[int]:
        """The buffer that the subject has given the request, of the right size and without a page twice."""
        pages, wanted = list(read.read_held("buffer", held.number)), self.wanted_buffer(held, tokens)
        if len(pages) != wanted:
            raise Broken("KV-5", f"request {held.number} has a device buffer of {len(pages)} pages, should be {wanted}")
        if len(set(pages)) != len(pages):
            raise Broken("KV-1", f"request {held.number} has the device buffer {pages}")
        return pages

    def held_by(self, row_of: dict[int, int]) -> dict[str, dict[int, tuple[int, ...]]]:
        """What a snapshot has to show: by row, buffers, host pages and newest tokens; back-ups by request."""
        held: dict[str, dict[int, tuple[int, ...]]] = {"buffer": {}, "host": {}, "newest": {}, "backup": {}}
        size = self.config.page_size
        for number, row in row_of.items():
            one = self.live[number]
            if one.buffer:
                held["buffer"][row] = tuple(one.buffer)
            if one.buffer and one.newest:
                at = one.newest - 1
                held["newest"][row] = (one.pages[at // size] * size + at % size, one.buffer[0] * self.a_page)
            if one.host:
                held["host"][row] = tuple(one.host)
        held["backup"] = {n: tuple(one.backup) for n, one in self.retracted.items() if one.backup}
        return held

    @property
    def a_page(self) -> int:
        """Slots of a device or host page."""
        return self.config.page_size // (self.config.hisparse.ratio if self.config.hisparse else 1)

    def _back_up(self, held: Held, hosted: int, read: Read) -> None:
        """The request's first `hosted` tokens lie on the host."""
        pages = list(read.read_held("host", held.number))
        if pages[: len(held.host)] != held.host or len(pages) != -(-hosted // self.config.page_size):
            raise Broken(
                "KV-3", f"request {held.number} had the host pages {held.host}, now {pages} for {hosted} tokens"
            )
        self.pools.take_other("host", held, pages[len(held.host) :])
        held.host, held.hosted = pages, hosted

    def _host_slots(self, held: Held, start: int) -> list[int]:
        """The host slots of [start, hosted), one a token or one a whole group."""
        assert self.config.hisparse is not None
        ratio, a_page = self.config.hisparse.ratio, self.a_page
        groups = range(start // ratio, held.hosted // ratio)
        return [held.host[group // a_page] * a_page + group % a_page for group in groups]

    def _free_offloaded(self, held: Held, *, backup: bool) -> None:
        resident = held.pages[: -(-held.resident // self.config.page_size)]
        self.pools.free_other("device", held, [self.pools.device_map.pop(page) for page in resident])
        self.pools.free_other("device", held, held.buffer)
        kept = backup and bool(held.host)
        if kept:
            held.backup, held.former = held.host, (*held.former, held.binding)
        else:
            self.pools.free_other("host", held, held.host)
            held.hosted, held.former = 0, ()
        held.buffer, held.host = [], []
        held.resident = held.newest = 0
