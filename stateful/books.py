"""What has happened on the engine level: who holds what, as plain Python integers, one request at a time.

    books.apply(operation, verdict, read)       # enter a call that succeeded

It repeats no line of the core, accepts whatever pages the subject chose and checks that they were free. It does not
cover which page was chosen (any policy may pass), nor the bits of state that no clause speaks about (the order of the
free list, stale row entries).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .configuration import Configuration
from .operations import (
    BadCall,
    Checkpoint,
    Commit,
    Decode,
    Evict,
    Extend,
    FillHole,
    FreeGroupBegin,
    FreeGroupEnd,
    LateResult,
    Lease,
    Operation,
    Release,
    ReleaseOverallocated,
    Retire,
    Retract,
    SpecReserve,
)
from .pools import LeaseLedger, Pools
from .prefixes import CachedPage, Prefixes
from .texts import Prompt, Text, Texts
from .verdicts import Growth, Held, Legal
from .window_prefixes import WindowPrefixes

Kept = TypeVar("Kept")


class Read(Protocol):
    """Where the subject's choices are read from, as last observed."""

    def read_row(self, request: int, start: int, end: int) -> NDArray[np.int64]:
        """The slots of [start, end) in the request's row."""

    def read_map(self, pages: Sequence[int]) -> Sequence[int]:
        """The window page of each page, 0 for none."""

    def read_device_map(self, pages: Sequence[int]) -> Sequence[int]:
        """The device page of each page, 0 for none."""

    def read_held(self, what: str, request: int) -> Sequence[int]:
        """The pages of a request's "buffer", or its "host" pages."""


class Recent(Generic[Kept]):
    """What is remembered of the last batches, by their requests. Ledger and subject forget by the same rule."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], Kept] = {}

    def remember(self, requests: Sequence[int], value: Kept) -> None:
        self.kept[tuple(requests)] = value
        if len(self.kept) > 64:
            del self.kept[next(iter(self.kept))]

    def get(self, requests: Sequence[int]) -> Kept | None:
        return self.kept.get(tuple(requests))


class Books:
    """Requests by number; `live` are those with a row, oldest binding first, `retracted` those that may resume, `told`
    the last texts and how far they went: what a new request may say again."""

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.pools = Pools(config)
        self.pages = self.pools.main
        self.cache = Prefixes(config)
        if self.cache.on and self.pools.window is not None:
            self.cache = WindowPrefixes(config)
        self.texts = Texts()
        self.live: dict[int, Held] = {}
        self.retracted: dict[int, Held] = {}
        self.told: deque[tuple[Text, int]] = deque(maxlen=12)
        self.highest = 0  # the highest number that any request has had
        self.last_gone = 0  # the request released last
        self.last_lease = 0
        self.retired: set[int] = set()  # leases
        self.binds = 0
        self.batches: Recent[tuple[int, ...]] = Recent()  # requests -> which binding each of them had
        # What the last operation has done besides lengthening: (request, start, end) whose row entries are the cache's
        # pages now, pages that are the cache's from now on, how many it had already, and the tokens that were given
        # up.
        self.shared_now: list[tuple[int, int, int]] = []
        self.published: list[int] = []
        self.duplicates = 0
        self.gave = 0
        self.returned: list[int] | None = None  # the slots that a HiSparse call has to return

    @property
    def free_rows(self) -> int:
        return self.config.max_requests - len(self.live)

    def get(self, number: int) -> Held:
        """What is known of a request; nothing yet is also known."""
        return self.live.get(number) or self.retracted.get(number) or Held(number)

    def text_of(self, number: int, prompt: Prompt = (), salt: int = 0) -> Text:
        """What a request says: the text it has, or for a new one its prompt and then its own."""
        held = self.live.get(number) or self.retracted.get(number)
        return held.text if held else self.texts.make(number, prompt, salt)

    def texts_of(self, operation: Extend) -> list[Text]:
        """The texts of an extend's requests, in their order."""
        prompts, salts = operation.prompts, operation.salts
        return [
            self.text_of(number, prompts[i] if i < len(prompts) else (), salts[i] if i < len(salts) else 0)
            for i, number in enumerate(operation.requests)
        ]

    def bindings(self, requests: Sequence[int]) -> tuple[int, ...]:
        """Which binding each of them has now, -1 without a row: what a batch remembers, and is stale by."""
        return tuple(self.live[number].binding if number in self.live else -1 for number in requests)

    def apply(self, operation: Operation, verdict: Legal, read: Read) -> None:
        """Enter a call that succeeded."""
        self.shared_now.clear()
        self.published.clear()
        self.duplicates = self.gave = 0
        self.returned = None
        self.cache.changed.clear()
        match operation:
            case BadCall(call=call):
                return self.apply(call, verdict, read)
            case Release(requests=requests) | Retract(requests=requests):
                for number in requests:
                    if isinstance(operation, Release) and operation.checkpoint:
                        self._publish(self.live[number], operation.known)
                    backup = isinstance(operation, Retract) and operation.backup
                    self._unbind(number, retracted=isinstance(operation, Retract), backup=backup)
            case ReleaseOverallocated(request=number):
                held = self.live[number]
                self._free(held, -(-held.committed // self.config.page_size))
                held.allocated = held.committed
                held.drafted = False
            case Checkpoint(request=number, known=known):
                self._publish(self.live[number], known)
            case Evict(tokens=tokens):
                pages = min(-(-tokens // self.config.page_size), self.cache.unlocked)
                self._evict(pages)
                self.gave = pages * self.config.page_size
            case FillHole(request=number):
                self.live[number].hole = (0, 0)
            case Lease(lease=number, requests=requests):
                self._lease(number, requests)
            case Retire(lease=number):
                self._retire(number)
            case FreeGroupBegin():
                for pool in self.pools.all():
                    pool.group_open = True
            case FreeGroupEnd():
                for pool in self.pools.all():
                    pool.close_group()
        self._grow(operation, verdict, read)
        if self.config.hisparse is not None:
            self._offload(operation, verdict, read)
        if isinstance(operation, (Extend, Decode, SpecReserve, Commit)):
            self.batches.remember(operation.requests, self.bindings(operation.requests))

    def _grow(self, operation: Operation, verdict: Legal, read: Read) -> None:
        """Bind, let the windows go, evict what is short, and take what the subject chose."""
        new = iter(verdict.hits)
        for growth in verdict.growth:
            if growth.request not in self.live:
                self._bind(growth, *next(new), verdict.window_from)
        for number, begin, end in verdict.gives_up:
            self._give_up(self.live[number], begin, end)
        if verdict.pages > self.pages.free:
            self._evict(verdict.pages - self.pages.free)
        window = self.pools.window
        if window is not None and verdict.window_pages > window.free:
            assert isinstance(self.cache, WindowPrefixes)
            self.pools.drop_window(self.cache.evict_window(verdict.window_pages - window.free))
        size, drafted = self.config.page_size, isinstance(operation, (SpecReserve, Commit, LateResult))
        for growth in verdict.growth:
            number, start, end, committed = growth
            held = self.live[number]
            if end > start:
                self.pages.grow(held, start, end, read.read_row(number, start, end))
            held.committed, held.allocated, held.drafted = committed, max(held.allocated, end), drafted
            if window is not None:
                begin = max(growth.start, verdict.window_from or 0)
                pages = held.pages[-(-begin // size) : -(-growth.end // size)]
                self.pools.take_window(held, pages, read.read_map(pages))

    def _bind(self, growth: Growth, text: Text, path: list[CachedPage], window_from: int | None) -> None:
        """A row for a new request, or for a retracted one, with what the cache holds of it; behind that a hole, if the
        call begins to lengthen it further on."""
        number = growth.request
        held = self.retracted.pop(number) if number in self.retracted else Held(number, text=text)
        self.live[number] = held
        self.binds += 1
        held.bound, held.retracted, held.binding = True, False, self.binds
        held.floor = self.config.window.floor if self.config.window and window_from is None else 0
        held.cursor = window_from or 0
        self.highest = max(self.highest, number)
        self.cache.claim(held, path)
        if path:
            self.shared_now.append((number, 0, held.protected))
        if growth.start > held.protected:
            held.hole = (held.protected, growth.start)
            held.pages += [0] * ((growth.start - held.protected) // self.config.page_size)

    def _unbind(self, number: int, *, retracted: bool, backup: bool = False) -> None:
        held = self.live[number]
        self.told.append((held.text, held.committed))
        if self.config.hisparse is not None:
            self._free_offloaded(held, backup=backup)
        self._free(held, max(held.protected, held.hole[1]) // self.config.page_size)
        del self.live[number]
        self.cache.release(held)
        held.pages.clear()
        held.committed = held.allocated = held.cursor = held.floor = 0
        held.hole = (0, 0)
        held.bound, held.retracted, held.drafted = False, retracted, False
        self.last_gone = number
        if retracted:
            self.retracted[number] = held

    def _offload(self, operation: Operation, verdict: Legal, read: Read) -> None:
        """See `offload_books`."""

    def _free_offloaded(self, held: Held, *, backup: bool) -> None:
        """See `offload_books`."""

    def _free(self, held: Held, keep: int) -> None:
        """Give up the request's pages past the first `keep`, those that are gone already excepted."""
        if self.config.window is None and not self.pools.leases:
            self.pages.give_back(held.pages[keep:])
        else:
            self._free_each(held, keep)
        self.gave = (len(held.pages) - keep) * self.config.page_size
        del held.pages[keep:]

    def _free_each(self, held: Held, keep: int) -> None:
        for index, page in enumerate(held.pages[keep:], start=keep):
            if page:
                if page in self.pools.map:
                    self.pools.free_window(held, index, page)
                self.pools.free(held, index, page)

    def _publish(self, held: Held, known: int) -> None:
        """`known`: how many tokens more than committed are known; fewer where it is negative."""
        begin, size = held.protected, self.config.page_size
        mine, tokens = list(held.pages), held.hole[0] if held.hole[1] else min(held.committed, held.committed + known)
        if self.pools.is_pure and held.cursor > held.protected:
            return  # there is a gap in it
        if isinstance(self.cache, WindowPrefixes):
            live_from = max(held.cursor, held.protected) // size
            duplicates, new, orphans, moved = self.cache.publish_live(held, tokens, live_from)
            for own, cached in moved:
                self.pools.map[cached] = self.pools.map.pop(own)
            for index, page in orphans:
                self.pools.free_window(held, index, page)
        else:
            duplicates, new = self.cache.publish(held, tokens)
        for index in range(begin // size, begin // size + len(duplicates)):
            self.pools.free(held, index, mine[index])
        self.pages.publish(new)
        self.published += new
        self.duplicates += len(duplicates)
        if held.protected > begin:
            self.shared_now.append((held.number, begin, held.protected))
            for lease in self.pools.leases.values():
                if lease.bindings.get(held.number) == held.binding:
                    self._hold(lease, held)

    def _evict(self, pages: int) -> None:
        gone = self.cache.evict(pages)
        self.pools.drop_window(gone)
        self.pages.give_back(gone)

    def _give_up(self, held: Held, begin: int, end: int) -> None:
        """The window of [begin, end) goes, and in a pure window the pages themselves."""
        size = self.config.page_size
        for index in range(begin // size, end // size):
            page = held.pages[index]
            if self.pools.is_pure:
                self.pools.free(held, index, page)
                held.pages[index] = 0
            else:
                self.pools.free_window(held, index, page)
        held.cursor = end
        self.gave += end - begin

    def _lease(self, number: int, requests: Sequence[int]) -> None:
        members = {one: self.live[one] for one in requests}
        bindings = {one: held.binding for one, held in members.items()}
        lease = LeaseLedger(tuple(requests), bindings, {one: held.allocated for one, held in members.items()})
        self.pools.leases[number] = lease
        self.last_lease = max(self.last_lease, number)
        for held in members.values():
            if isinstance(self.cache, WindowPrefixes):
                # What the next query looks at, and every page that has a window: a step may still be writing there.
                size, own = self.config.page_size, max(held.cursor, held.protected)
                looks = max(held.allocated - self.cache.window_size, 0)
                lease.window_first[held.number] = (
                    min(held.window_first, looks // size, own // size) if held.shared else min(looks, own) // size
                )
            self._hold(lease, held)

    def _hold(self, lease: LeaseLedger, held: Held) -> None:
        """The lease holds what is cached of the positions that it covers; once more where more of it was published."""
        one, length, size = held.number, lease.lens[held.number], self.config.page_size
        path = held.shared[: -(-length // size)]
        before = lease.shared.get(one)
        if not path:
            return
        lease.shared[one] = path
        self.cache.lock(path)
        if isinstance(self.cache, WindowPrefixes):
            first = lease.window_first[one]
            self.cache.hold_window(path[first:])
            if before is not None:
                self.cache.let_window_go(before[first:])
        if before is not None:
            self.cache.unlock(before)

    def _retire(self, number: int) -> None:
        lease = self.pools.leases[number]
        self.pools.retire(number)
        self.retired.add(number)
        for one, path in lease.shared.items():
            if isinstance(self.cache, WindowPrefixes):
                self.cache.let_window_go(path[lease.window_first[one] :])
            self.cache.unlock(path)
