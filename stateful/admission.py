"""Who may start: a request that waits, and the room that is left beside what is promised to those that run.

    room = Room(ledger, reserve=8, chunk=8192)
    room.promise(one)       # whether it still fits, in every pool

A request is promised room for the tokens that it has and for its next step, not for its output: an engine cannot know
how long that will be. What is cached of it it does not lack, but while it holds that, nobody can have it evicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import Ledger
from .prefixes import CachedPage
from .texts import Prompt
from .window_prefixes import WindowPrefixes


@dataclass(slots=True, eq=False)
class Request:
    """One that waits or runs. Of its tokens, `generated` are output so far, `computed` have KV, and `lost` had it
    before a retraction."""

    number: int
    prompt_len: int
    output_len: int
    prompt: Prompt = ()
    generated: int = 0
    computed: int = 0
    lost: int = 0

    @property
    def known(self) -> int:
        """Tokens there are: the prompt and what was generated."""
        return self.prompt_len + self.generated

    @property
    def left(self) -> int:
        """Output tokens to come."""
        return self.output_len - self.generated


class Room:
    """Pages that are free or can be evicted, in each pool, less what is promised. `reserve`: tokens of a step."""

    def __init__(self, ledger: Ledger, reserve: int, chunk: int) -> None:
        self.ledger, self.reserve = ledger, reserve
        self.free = ledger.pages.free + ledger.cache.unlocked
        self.pinned: set[int] = set()
        self.window_free = self.most = self.at_once = self.for_a_while = 0
        self.device_free = self.host_free = 0
        if ledger.pools.device is not None and ledger.pools.host is not None:
            self.device_free, self.host_free = ledger.pools.device.free, ledger.pools.host.free
        self.window_pinned: set[int] = set()
        window = ledger.pools.window
        if window is not None:
            assert ledger.config.window is not None
            size = ledger.config.page_size
            whole, cached = -(-ledger.config.window.size // size), isinstance(ledger.cache, WindowPrefixes)
            # A window may begin and end inside a page; where prefixes are shared, the one before the last publication
            # stays, too. While a chunk is computed, what it leaves behind the window is still there.
            self.most = whole + 1 + -(-reserve // size) + whole * cached
            self.at_once = whole + 1 + -(-chunk // size) + 1
            self.window_free = window.free
            if isinstance(ledger.cache, WindowPrefixes):
                self.window_free += ledger.cache.live_unlocked

    def promise(self, one: Request) -> bool:
        """Promise a request its room. Whether there is so much."""
        path = [] if one.computed else cached_of(self.ledger, one)
        self.pinned.update([cached.page for cached in path if not cached.locks])
        allocated = self.ledger.get(one.number).allocated
        to = max(allocated, one.known + (self.reserve if one.left else 0))
        lacks = self.ledger.pages.needed(allocated, to) - len(path)
        self.free -= lacks
        if self.ledger.pools.device is not None:
            self._promise_offloaded(one)
        if self.ledger.pools.window is None:
            return not self.lacks
        if isinstance(self.ledger.cache, WindowPrefixes):
            held = path[-self.ledger.cache.window_pages :]
            self.window_pinned.update([cached.page for cached in held if not cached.window_locks])
        self.window_free -= min(lacks, self.most)
        self.for_a_while = max(self.for_a_while, min(lacks, self.at_once) - min(lacks, self.most))
        return not self.lacks

    @property
    def lacks(self) -> list[str]:
        """The pools in which more is promised than there is."""
        pools, while_computed = self.ledger.pools, self.for_a_while
        room = {
            pools.name: self.free - len(self.pinned),
            "window": self.window_free - len(self.window_pinned) - while_computed if pools.window is not None else 0,
            "device": self.device_free - while_computed if pools.device is not None else 0,
            "host": self.host_free,
        }
        return [name for name, left in room.items() if left < 0]

    def _promise_offloaded(self, one: Request) -> None:
        """On the device its buffer, and all that is computed until it is admitted, one request after the other; on the
        host its tokens, but those that are there."""
        held = self.ledger.get(one.number)
        whole = self.ledger.pages.needed(0, one.known)
        resident, buffer = self.ledger.pages.needed(0, held.resident), self.ledger.wanted_buffer(held, one.known)
        self.device_free -= max(buffer - resident, 0) - len(held.buffer)
        self.host_free -= max(whole - len(held.host) - len(held.backup or ()), 0)
        if not held.buffer and held.backup is None:
            self.for_a_while = max(self.for_a_while, whole - max(resident, buffer))


def cached_of(ledger: Ledger, one: Request) -> list[CachedPage]:
    """What the cache has of a request without a row."""
    return ledger.cache.find(ledger.text_of(one.number, one.prompt), one.known - 1)
