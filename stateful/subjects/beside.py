"""kvcore's slot allocator and SGLang's paged one beside each other: on legal calls the same ids, in the same order.

    kvcore check --subject kvcore.stateful.subjects.beside:beside_sglang

kvcore's free list is a stack as SGLang's is, so that one can take the place of the other and hand out the same pages.
Both do every call; what kvcore refuses as wrong the engine is not asked. The orders agree with pages of more than one
token, without `need_sort` and outside of free groups: SGLang sorts its list when an upper bound of the demand does not
fit, kvcore when the demand does not, and what a group has kept SGLang gives back sets first, kvcore in the order of the
calls. Tried with 0.5.23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config import PAGE_SIZES
from ...errors import KVCacheOutOfMemory
from ..configuration import Configuration
from ..verdicts import Broken
from .kvcore_slots import KvcoreSlots
from .protocol import Capabilities
from .sglang import paged

Int64 = NDArray[np.int64]


def _agreeing(*words: Any, **more: Any) -> Capabilities:
    """Capabilities that are asked for agreement, too."""
    one = Capabilities(*words, **more)
    why_not = {clause: why for clause, why in one.why_not.items() if clause != "KV-12"}
    return replace(one, asked=(*one.asked, "KV-12"), why_not=why_not)


class beside_sglang:
    """A KvcoreSlots that is seen, and an engine that has to do the same."""

    capabilities = _agreeing(
        "slots",
        page_sizes=tuple(size for size in PAGE_SIZES if size > 1),
        why_not={"KV-11": "behind a free group the orders differ"},
        operations=("alloc", "alloc_extend", "alloc_decode", "free", "free_segment", "clear"),
    )

    def __init__(self, config: Configuration) -> None:
        self.config = replace(config, need_sort=False)
        self.ours, self.theirs = KvcoreSlots(self.config), paged(replace(self.config, checked=False))
        self.snapshot, self.available = self.ours.snapshot, self.ours.available

    def alloc(self, need_size: int) -> Int64:
        out: Int64 = self._both("alloc", need_size)
        return out

    def alloc_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        out: Int64 = self._both("alloc_extend", prefix_lens, seq_lens, last_loc)
        return out

    def alloc_decode(self, seq_lens: Sequence[int], last_loc: Sequence[int]) -> Int64:
        out: Int64 = self._both("alloc_decode", seq_lens, last_loc)
        return out

    def free(self, slots: Sequence[int]) -> None:
        self._both("free", slots)

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        self._both("free_segment", slots, start_pos)

    def clear(self) -> None:
        self._both("clear")

    def _both(self, name: str, *arguments: Any) -> Any:
        """What kvcore returns or raises, if the engine does the same."""
        try:
            ours = getattr(self.ours, name)(*arguments)
        except KVCacheOutOfMemory as error:
            theirs = getattr(self.theirs, name)(*arguments)
            if theirs is not None:
                raise Broken("KV-12", f"kvcore refuses {name} ({error}), SGLang returns {theirs.tolist()}") from error
            raise
        theirs = getattr(self.theirs, name)(*arguments)
        if ours is not None and (theirs is None or ours.tolist() != theirs.tolist()):
            told = "refuses" if theirs is None else f"returns {theirs.tolist()}"
            raise Broken("KV-12", f"kvcore's {name} returns {ours.tolist()}, SGLang {told}")
        return ours
