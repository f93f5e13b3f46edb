"""SGLang's slot allocators as subjects, of the releases 0.5.5, 0.5.12 and 0.5.23, by what is found in them.

    kvcore check --subject kvcore.stateful.subjects.sglang:paged --device cuda

`token`, `paged`, `swa` and `hisparse` are the factories. In the kernel lanes the engine's Triton kernels run, in the
lane cpu its torch path. Checked mode is its debug mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from .sglang_release import fake_pool, find, has, hisparse_page_sizes, page_sizes
from .sglang_slots import Slots, TwoPools

EXTENDS = ("alloc_extend", "alloc_decode", "alloc_draft")
SWA, HISPARSE = "SWATokenToKVPoolAllocator", "HiSparseTokenToKVPoolAllocator"


class token(Slots):
    """TokenToKVPoolAllocator: slots one by one."""

    capabilities = replace(Slots.capabilities, page_sizes=(1,))

    def make(self, size: int, page_size: int) -> Any:
        kind = find("TokenToKVPoolAllocator")
        return kind(size, torch.float16, self.device, fake_pool(object), self.config.need_sort)

    def offers(self) -> list[tuple[str, str]]:
        return [offer for offer in super().offers() if offer[0] not in EXTENDS]


class paged(Slots):
    """PagedTokenToKVPoolAllocator, at every page size."""


class swa(TwoPools):
    """SWATokenToKVPoolAllocator: full attention and sliding window. With pages of one token it has no extend."""

    capabilities = replace(Slots.capabilities, asked=(), why_not={}, pools=("window",), page_sizes=page_sizes(SWA))
    names, fields = ("full", "window"), ("full_attn_allocator", "swa_attn_allocator")
    kind, base, mapping = SWA, "BaseSWAKVPool" if has("BaseSWAKVPool") else "SWAKVPool", "full_to_swa_index_mapping"

    def sizes(self, page_size: int) -> dict[str, Any]:
        assert self.config.window is not None
        return {"size_swa": self.config.window.num_pages * page_size}

    def offers(self) -> list[tuple[str, str]]:
        if self.config.page_size == 1:
            one = [offer for offer in super().offers() if offer[0] not in EXTENDS]
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


class hisparse(TwoPools):
    """HiSparseTokenToKVPoolAllocator: logical slots, of which some lie on the device. It has no free groups."""

    capabilities = replace(
        Slots.capabilities,
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
        with_pages = () if self.config.page_size == 1 else ("alloc",)
        left_out = ("alloc_draft", "free_group_begin", "free_group_end", *with_pages)
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
