"""The errors of the allocator: two kinds, each naming what went wrong.

    try:
        alloc_for_decode(manager, batch)
    except KVCacheOutOfMemory as error:      # retryable: evict, retract, wait
        print(error.pool, error.need, error.free, error.reclaimable)
    except ContractError as error:           # a bug in the caller
        print(error.clause, error.argument)

Either way the state is bit for bit what it was before the call (KV-7).
"""

from __future__ import annotations

from typing import Any


class KVCacheError(Exception):
    """Whatever an allocation path raises on purpose."""


class KVCacheOutOfMemory(KVCacheError):
    """A pool is short (KV-6). Retryable: nothing has changed, and freeing something may help.

    `pool` is the first short pool of rows, full, window, logical, device, host; `need`, `free` and
    `reclaimable` are pages of that pool (request rows for `rows`).
    """

    def __init__(self, pool: str, need: int, free: int, reclaimable: int = 0) -> None:
        self.pool, self.need, self.free, self.reclaimable = pool, need, free, reclaimable
        unit = "rows" if pool == "rows" else "pages"
        super().__init__(
            f"KV-6: pool '{pool}' is short: the call needs {need} {unit}, {free} are free and {reclaimable} reclaimable"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pool, self.need, self.free, self.reclaimable)


class ContractError(KVCacheError):
    """A call that cannot be right, refused before any change. `clause` and `argument` say which rule and where."""

    def __init__(self, clause: str, argument: str, message: str) -> None:
        self.clause, self.argument, self.message = clause, argument, message
        super().__init__(f"{clause}: {argument}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.clause, self.argument, self.message)


class BadArgument(ContractError):
    """A value of the wrong type, sign, size or shape, or a request in a state the call does not allow."""


class StaleRow(ContractError):
    """A request or batch whose row has been released, or bound anew, since."""


class RowOverflow(ContractError):
    """The target would exceed `context_len` or the row's width. Never a shortage: waiting does not help."""


class DoubleFree(ContractError):
    """Something is released that is not held: a request without a row, a page that is free already."""


class ForeignSlot(ContractError):
    """A slot that the allocator did not hand out: the padding slot, one out of range, or one not in use."""
