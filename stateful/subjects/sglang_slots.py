"""What all of SGLang's slot allocators share as subjects; `sglang` has the four factories.

class paged(Slots): ...
class swa(TwoPools): ...
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...kernels.devices import tensor_device
from ..configuration import Configuration
from .protocol import Capabilities
from .sglang_release import PAGED, fake_pool, find, paged_class

_SAME = ("alloc", "alloc_extend", "alloc_decode", "free", "free_segment", "clear", "free_group_begin", "free_group_end")


class Slots:
    """What all share. `parts`: by pool, the allocators that have a free list."""

    capabilities = Capabilities("slots", refuses="none", dies_in=("interpret",))
    names: tuple[str, ...] = ("full",)
    fields: tuple[str, ...] = ()
    mapping = ""

    def __init__(self, config: Configuration) -> None:
        self.config, self.device = config, tensor_device(config.device)
        # An engine frees parts of its rows, which it goes on using.
        self.row = torch.zeros(2 * (config.num_pages + 1) * config.page_size, dtype=torch.int64, device=self.device)
        self.allocator: Any = self.make(config.num_pages * config.page_size, config.page_size)
        parts = [getattr(self.allocator, name) for name in self.fields] or [self.allocator]
        self.parts: dict[str, Any] = dict(zip(self.names, parts, strict=True))
        for part in parts:
            part.debug_mode, part.use_triton_kernels = config.is_checked, config.device != "cpu"
        there = [ours for ours, theirs in self.offers() if hasattr(self.allocator, theirs)]
        self.capabilities = replace(type(self).capabilities, asked=(), operations=tuple(there))

    def make(self, size: int, page_size: int) -> Any:
        kind, pool = paged_class(self.config.device), fake_pool(object)
        return kind(size, page_size, torch.float16, self.device, pool, self.config.need_sort)

    def offers(self) -> list[tuple[str, str]]:
        """Our operations, and the method of the engine that each is."""
        return [*((name, name) for name in _SAME), ("alloc_draft", "backup_state")]

    def alloc(self, need_size: int) -> Any:
        return self.slots(self.allocator.alloc(need_size))

    def alloc_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        return self.slots(self.allocator.alloc_extend(*self.lengths(prefix_lens, seq_lens, last_loc)))

    def alloc_decode(self, seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        return self.slots(self.allocator.alloc_decode(*self.both(seq_lens), self.tensor(last_loc)))

    def alloc_draft(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        before = self.allocator.backup_state()
        out = self.alloc_extend(prefix_lens, seq_lens, last_loc)
        if out is not None:
            self.allocator.restore_state(before)
        return out

    def free(self, slots: Sequence[int]) -> None:
        self.allocator.free(self.in_row(slots))

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        self.allocator.free_segment(self.in_row(slots), start_pos=start_pos)

    def clear(self) -> None:
        self.allocator.clear()

    def free_group_begin(self) -> None:
        self.allocator.free_group_begin()

    def free_group_end(self) -> None:
        self.allocator.free_group_end()

    def available(self) -> list[int]:
        return [part.available_size() for part in self.parts.values()]

    def free_pages(self) -> dict[str, Any]:
        return {name: self.listed(part).cpu().numpy() for name, part in self.parts.items()}

    def listed(self, part: Any) -> Any:
        if hasattr(part, "get_all_free_pages"):
            return part.get_all_free_pages()
        return torch.cat((part.free_pages, part.release_pages))

    def mapped(self) -> dict[str, Any]:
        if not self.mapping:
            return {}
        slots = (self.config.num_pages + 1) * self.config.page_size
        target = getattr(self.allocator, self.mapping)[:slots].cpu()
        source = target.nonzero().reshape(-1)
        return {self.names[1]: torch.stack((source, target[source])).numpy()}

    def slots(self, out: Any) -> Any:
        return None if out is None else out.cpu().numpy()

    def tensor(self, values: Sequence[int]) -> Any:
        return torch.from_numpy(np.array(values, dtype=np.int64)).to(self.device)

    def both(self, values: Sequence[int]) -> tuple[Any, Any]:
        return self.tensor(values), torch.from_numpy(np.array(values, dtype=np.int64))

    def lengths(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> tuple[Any, ...]:
        count = sum(seq_lens) - sum(prefix_lens)
        return (*self.both(prefix_lens), *self.both(seq_lens), self.tensor(last_loc), count)

    def in_row(self, slots: Sequence[int]) -> Any:
        self.row[: len(slots)] = self.tensor(slots)
        return self.row[: len(slots)]


class TwoPools(Slots):
    """Two pools and a map; `kind` is the engine's class, `ours` the capability."""

    kind, base, ours = "", "", ""

    def make(self, size: int, page_size: int) -> Any:
        kind = find(self.kind)
        sys.modules[kind.__module__].__dict__[PAGED] = paged_class(self.config.device)
        given = {"size": size, "size_swa": size, "page_size": page_size, "dtype": torch.float16, "device": self.device,
                 "kvcache": fake_pool(find(self.base) if self.base else object),
                 "need_sort": self.config.need_sort} | self.sizes(page_size)  # fmt: skip
        return kind(**{name: given[name] for name in inspect.signature(kind).parameters if name in given})

    def sizes(self, page_size: int) -> dict[str, Any]:
        raise NotImplementedError
