"""SGLang's slot allocators as subjects, of the releases 0.5.5, 0.5.12 and 0.5.23, by what is found in them.

    kvcore check --subject kvcore.stateful.subjects.sglang:paged --device cuda

`token`, `paged`, `swa` and `hisparse` are the factories. In the kernel lanes the engine's Triton kernels run, in the
lane cpu its torch path. Checked mode is its debug mode.
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
from .sglang_release import PAGED, fake_pool, find, has, hisparse_page_sizes, page_sizes, paged_class

_SAME = ("alloc", "alloc_extend", "alloc_decode", "free", "free_segment", "clear", "free_group_begin", "free_group_end")
SWA, HISPARSE = "SWATokenToKVPoolAllocator", "HiSparseTokenToKVPoolAllocator"


class _Slots:
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
        return [(name, name) for name in _SAME]

    def alloc(self, need_size: int) -> Any:
        return self.slots(self.allocator.alloc(need_size))

    def alloc_extend(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        return self.slots(self.allocator.alloc_extend(*self.lengths(prefix_lens, seq_lens, last_loc)))

    def alloc_decode(self, seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        return self.slots(self.allocator.alloc_decode(*self.both(seq_lens), self.tensor(last_loc)))

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


class token(_Slots):
    """TokenToKVPoolAllocator: slots one by one."""

    capabilities = replace(_Slots.capabilities, page_sizes=(1,))

    def make(self, size: int, page_size: int) -> Any:
        kind = find("TokenToKVPoolAllocator")
        return kind(size, torch.float16, self.device, fake_pool(object), self.config.need_sort)

    def offers(self) -> list[tuple[str, str]]:
        return [offer for offer in super().offers() if offer[0] not in ("alloc_extend", "alloc_decode")]


class paged(_Slots):
    """PagedTokenToKVPoolAllocator, at every page size."""


class _Composite(_Slots):
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


class swa(_Composite):
    """SWATokenToKVPoolAllocator: full attention and sliding window. With pages of one token it has no extend."""

    capabilities = replace(_Slots.capabilities, asked=(), why_not={}, pools=("window",), page_sizes=page_sizes(SWA))
    names, fields = ("full", "window"), ("full_attn_allocator", "swa_attn_allocator")
    kind, base, mapping = SWA, "BaseSWAKVPool" if has("BaseSWAKVPool") else "SWAKVPool", "full_to_swa_index_mapping"

    def sizes(self, page_size: int) -> dict[str, Any]:
        assert self.config.window is not None
        return {"size_swa": self.config.window.num_pages * page_size}

    def offers(self) -> list[tuple[str, str]]:
        if self.config.page_size == 1:
            one = [offer for offer in super().offers() if offer[0] not in ("alloc_extend", "alloc_decode")]
            return [*one, ("free_window", "free_swa")]
        more = [offer for offer in super().offers() if offer[0] != "alloc"]
        return [*more, ("free_window", "free_swa"), ("alloc_extend_tail", "alloc_extend_swa_tail")]

    def alloc_extend_tail(self, seq_len: int, tail: int) -> Any:
        return self.slots(self.allocator.alloc_extend_swa_tail(*self.lengths([0], [seq_len], [-1]), tail))

    def free_window(self, slots: Sequence[int], start_pos: int) -> None:
        if hasattr(self.allocator, "free_swa_segment"):
            self.allocator.free_swa_segment(self.in_row(slots), start_pos=start_pos)
        else:
            self.allocator.free_swa(self.in_row(slots))


class hisparse(_Composite):
    """HiSparseTokenToKVPoolAllocator: logical slots, of which some lie on the device. It has no free groups."""

    capabilities = replace(
        _Slots.capabilities,
        asked=(),
        why_not={"KV-11": "it has no free groups"},
        pools=("hisparse",),
        page_sizes=hisparse_page_sizes(HISPARSE),
    )
    names, fields = ("logical", "device"), ("logical_attn_allocator", "hisparse_attn_allocator")
    kind, mapping = HISPARSE, "full_to_hisparse_device_index_mapping"

    def sizes(self, page_size: int) -> dict[str, Any]:
        assert self.config.hisparse is not None
        return {
            "size": self.config.hisparse.device_pages * page_size,
            "host_to_device_ratio": _Ratio(self.config.num_pages * page_size),
        }

    def offers(self) -> list[tuple[str, str]]:
        left_out = ("free_group_begin", "free_group_end", *(() if self.config.page_size == 1 else ("alloc",)))
        more = ("alloc_logical_only", "alloc_device_buffer")
        return [*(offer for offer in super().offers() if offer[0] not in left_out), *((name, name) for name in more)]

    def alloc_logical_only(self, prefix_lens: Sequence[int], seq_lens: Sequence[int], last_loc: Sequence[int]) -> Any:
        return self.slots(self.allocator.alloc_logical_only(*self.lengths(prefix_lens, seq_lens, last_loc)))

    def alloc_device_buffer(self, slots: Sequence[int], need_size: int) -> Any:
        return self.slots(self.allocator.alloc_device_buffer(self.tensor(slots), need_size))

    def free_device_buffer(self, slots: Sequence[int]) -> None:
        self.allocator.free_hisparse_indices(self.tensor(slots))


class _Ratio(int):
    """The engine's logical size is a multiple of that of the device; here it is any size."""

    def __rmul__(self, size: int) -> int:
        return int(self)
