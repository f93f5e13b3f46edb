"""What the ledger expects of a call, and what the subject made of it.

verdict = ledger.expected(operation)       # Legal | Short | Bad
outcome = Done(value) | Refused("shortage" | "bad_call", error) | Crashed(error)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import ContractError
from .texts import NO_TEXT, Text


class Growth(NamedTuple):
    """A request that a call lengthens over [start, end) and whose committed length becomes `committed`. Tokens."""

    request: int
    start: int
    end: int
    committed: int


class Legal(NamedTuple):
    """The call has to succeed. `pages` is its exact demand, `returns` the number of slots it returns (None: nothing);
    `touched` are requests that it changes without lengthening them; `hits` the cached pages that each new one hits.
    window_pages: its demand on the window pool, from position `window_from` on where that is said; `gives_up`: what
    lies behind the windows of its requests and goes first, as (request, from, to)."""

    growth: tuple[Growth, ...] = ()
    pages: int = 0
    returns: int | None = None
    touched: tuple[int, ...] = ()
    hits: tuple[tuple[Text, list[Any]], ...] = ()
    window_pages: int = 0
    window_from: int | None = None
    gives_up: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Short:
    """The call has to be refused for lack of room, with exactly these numbers (KV-6)."""

    pool: str
    need: int
    free: int
    reclaimable: int = 0


@dataclass(frozen=True, slots=True)
class Bad:
    """The call has to be refused as wrong: by this kind of error, for this clause and argument (KV-15)."""

    error: type[ContractError]
    argument: str
    clause: str = "KV-15"


Verdict = Legal | Short | Bad


@dataclass(frozen=True, slots=True)
class Done:
    """The call returned."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The call raised one of the errors that the contract knows: "shortage" or "bad_call"."""

    how: str
    error: Any


@dataclass(frozen=True, slots=True)
class Crashed:
    """The call ended in an exception from the depths."""

    error: BaseException


Outcome = Done | Refused | Crashed


class Broken(AssertionError):
    """A clause does not hold: the one way in which the suite says so."""

    def __init__(self, clause: str, message: str, pages: tuple[int, ...] = (), rows: tuple[int, ...] = ()) -> None:
        self.clause, self.message, self.pages, self.rows = clause, message, pages, rows
        self.failure: Any = None  # the sequence, where a machine has raised it
        self.operation = self.situation = ""  # in which operation, and what was expected of it, in words
        self.refusal = ""  # of a call that cannot be right: how it has to be refused
        self.asked = True  # of this subject; what is not asked of it is no finding
        super().__init__(f"{clause}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        told = ("operation", "situation", "refusal", "asked")
        return (
            type(self),
            (self.clause, self.message, self.pages, self.rows),
            {name: getattr(self, name) for name in told},
        )

    @property
    def key(self) -> tuple[str, str, str]:
        """Two failures with the same key are the same finding."""
        return self.clause, self.operation, self.situation


@dataclass(slots=True)
class Held:
    """What the ledger knows of a request: its text, lengths in tokens, its page at each page index (0 in an open
    hole and for what a pure window has given up), and the cached pages that it holds, whose window from `window_first`
    on. With HiSparse: `resident` tokens have device pages by the map, `hosted` tokens lie on the `host` pages, `buffer`
    are the pages of its device buffer, `backup` those on the host that a retraction has kept, `former` the bindings
    under which it had these before. At the slot level `peers` are its pages in the second pool."""

    number: int
    protected: int = 0
    committed: int = 0
    allocated: int = 0
    hole: tuple[int, int] = (0, 0)
    cursor: int = 0
    floor: int = 0
    window_first: int = 0
    resident: int = 0
    hosted: int = 0
    newest: int = 0
    buffer: list[int] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    backup: list[int] | None = None
    former: tuple[int, ...] = ()
    pages: list[int] = field(default_factory=list)
    shared: list[Any] = field(default_factory=list)
    text: Text = NO_TEXT
    bound: bool = False
    binding: int = 0
    retracted: bool = False
    drafted: bool = False
