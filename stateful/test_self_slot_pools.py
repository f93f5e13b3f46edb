"""Small faults in the second pool of a slot allocator: the soak finds each, and names the call and the right clause.

    pytest kvcore/stateful/test_self_slot_pools.py

The gallery has public bugs; these are the slips that a composite of two pools invites, one line each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ..allocators.mapped import HiSparseAllocator, MappedAllocator, WindowedAllocator
from .findings import Findings
from .reach import Reach
from .soak import soak
from .subjects.kvcore_slots import KvcoreSlots

STEPS = 1_500
"""The slowest of them was found in half of it, from each of three seeds."""

TAIL, BUFFER = WindowedAllocator.alloc_extend_tail, HiSparseAllocator.alloc_device_buffer
DRAFT = KvcoreSlots.alloc_draft


class Windowed(KvcoreSlots):
    capabilities = replace(KvcoreSlots.capabilities, pools=("window",))


class Hisparse(KvcoreSlots):
    capabilities = replace(KvcoreSlots.capabilities, pools=("hisparse",))


def decode_asks_the_second_pool_after_it_took(self: Any, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
    growth = self.first.plan_decode(seq_lens, last_loc)
    self.first.require(growth.pages)
    slots = self.first.decode(growth)
    self.second.require(growth.pages)
    return self._mapped(slots, growth.pages, growth.pages)  # type: ignore[no-any-return]


def extend_takes_from_the_second_pool_before_it_asks_the_first(
    self: Any, prefix_lens: Any, seq_lens: Any, last_loc: torch.Tensor
) -> torch.Tensor:
    growth = self.first.plan_extend(prefix_lens, seq_lens, last_loc)
    self.second.require(growth.pages)
    peers = self._take(growth.pages)
    self.first.require(growth.pages)
    slots = self.first.extend(growth)
    ids, head = self.first.free_list.ids, self.first.free_list.head
    self.map[ids[head - growth.pages : head]] = peers
    return slots  # type: ignore[no-any-return]


def the_map_is_not_cleared_on_free(self: Any, pages: torch.Tensor) -> None:
    self.first.give_back(pages)
    peers = self.map[pages]
    self.second.give_back(peers[peers > 0])


def the_second_pool_is_forgotten_on_free(self: Any, pages: torch.Tensor) -> None:
    self.first.give_back(pages)
    self._unmap(pages)


def the_map_outlives_a_clear(self: Any) -> None:
    self.first.clear()
    self.second.clear()


def a_clear_of_the_first_pool_alone(self: Any) -> None:
    self.first.clear()
    self.map.zero_()


def a_group_of_the_first_pool_alone(self: Any) -> None:
    self.first.free_group_begin()


def a_tail_that_maps_a_page_too_many(
    self: Any, prefix_len: int, seq_len: int, last_loc: torch.Tensor, tail: int
) -> torch.Tensor:
    longer = min(tail + self.page_size, seq_len) if tail and (seq_len - tail) >= self.page_size else tail
    return TAIL(self, prefix_len, seq_len, last_loc, longer)


def a_window_that_keeps_its_entries(self: Any, slots: torch.Tensor) -> None:
    peers = self.map[self.first.pages_of_set(slots)]
    self.second.give_back(peers[peers > 0])


def a_window_that_keeps_its_pages(self: Any, slots: torch.Tensor) -> None:
    self._unmap(self.first.pages_of_set(slots))


def a_hisparse_decode_that_takes_device_pages(self: Any, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
    growth = self.first.plan_decode(seq_lens, last_loc)
    self.first.require(growth.pages)
    mapped = min(growth.pages, self.second.free_list.count)
    return self._mapped(self.first.decode(growth), growth.pages, mapped)  # type: ignore[no-any-return]


def logical_only_is_not(self: Any, prefix_lens: Any, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
    return self.alloc_extend(prefix_lens, seq_lens, last_loc)  # type: ignore[no-any-return]


def a_buffer_that_clears_the_map_before_it_can_fail(self: Any, slots: torch.Tensor, need_size: int) -> torch.Tensor:
    count, pages = self.second.pages_for(need_size), self.first.pages_of_set(slots)
    resident = self._unmap(pages)
    more = max(count - len(resident), 0)
    self.second.require(more)
    self.second.give_back(resident[count:])
    return self.second.slots_of(torch.cat((resident[:count], self._take(more))))  # type: ignore[no-any-return]


def a_buffer_that_keeps_what_does_not_fit(self: Any, slots: torch.Tensor, need_size: int) -> torch.Tensor:
    count, pages = self.second.pages_for(need_size), self.first.pages_of_set(slots)
    resident = self.map[pages]
    resident = resident[resident > 0]
    more = max(count - len(resident), 0)
    self.second.require(more)
    self.map[pages] = 0
    return self.second.slots_of(torch.cat((resident[:count], self._take(more))))  # type: ignore[no-any-return]


def a_buffer_whose_pages_stay_mapped(self: Any, slots: torch.Tensor, need_size: int) -> torch.Tensor:
    before = self.map.clone()
    out = BUFFER(self, slots, need_size)
    self.map.copy_(before)
    return out


def a_draft_that_leaves_its_map(self: KvcoreSlots, *call: Any) -> Any:
    out = DRAFT(self, *call)
    pages = out // self.config.page_size
    self.allocator.map[pages] = self.allocator.map[pages].clamp(min=1)
    return out


def a_draft_that_keeps_a_page(self: KvcoreSlots, *call: Any) -> Any:
    out = DRAFT(self, *call)
    if min(self.available()) >= self.config.page_size:
        KvcoreSlots.alloc(self, self.config.page_size)
    return out


def a_draft_on_pages_that_are_held(self: KvcoreSlots, *call: Any) -> Any:
    return DRAFT(self, *call) % self.config.page_size + self.config.page_size


Fault = Callable[..., Any]
FAULTS: list[tuple[type[KvcoreSlots], type[Any], str, Fault, str, str]] = [
    (Windowed, KvcoreSlots, "alloc_draft", a_draft_that_leaves_its_map, "KV-10", "alloc_draft"),
    (Windowed, KvcoreSlots, "alloc_draft", a_draft_that_keeps_a_page, "KV-5", "alloc_draft"),
    (Windowed, KvcoreSlots, "alloc_draft", a_draft_on_pages_that_are_held, "KV-1", "alloc_draft"),
    (Windowed, WindowedAllocator, "alloc_decode", decode_asks_the_second_pool_after_it_took, "KV-7", "alloc_decode"),
    (
        Windowed,
        MappedAllocator,
        "alloc_extend",
        extend_takes_from_the_second_pool_before_it_asks_the_first,
        "KV-7",
        "alloc_extend",
    ),
    (Windowed, MappedAllocator, "_give_back", the_map_is_not_cleared_on_free, "KV-10", "free"),
    (Hisparse, MappedAllocator, "_give_back", the_second_pool_is_forgotten_on_free, "KV-8", "free"),
    (Windowed, MappedAllocator, "clear", the_map_outlives_a_clear, "KV-10", "clear"),
    (Hisparse, MappedAllocator, "clear", a_clear_of_the_first_pool_alone, "KV-8", "clear"),
    (Windowed, MappedAllocator, "free_group_begin", a_group_of_the_first_pool_alone, "KV-11", "free_window"),
    (Windowed, WindowedAllocator, "alloc_extend_tail", a_tail_that_maps_a_page_too_many, "KV-5", "alloc_extend_tail"),
    (Windowed, WindowedAllocator, "free_window", a_window_that_keeps_its_entries, "KV-10", "free_window"),
    (Windowed, WindowedAllocator, "free_window", a_window_that_keeps_its_pages, "KV-8", "free_window"),
    (Hisparse, HiSparseAllocator, "alloc_decode", a_hisparse_decode_that_takes_device_pages, "KV-5", "alloc_decode"),
    (Hisparse, HiSparseAllocator, "alloc_logical_only", logical_only_is_not, "KV-5", "alloc_logical_only"),
    (
        Hisparse,
        HiSparseAllocator,
        "alloc_device_buffer",
        a_buffer_that_clears_the_map_before_it_can_fail,
        "KV-7",
        "alloc_device_buffer",
    ),
    (
        Hisparse,
        HiSparseAllocator,
        "alloc_device_buffer",
        a_buffer_that_keeps_what_does_not_fit,
        "KV-5",
        "alloc_device_buffer",
    ),
    (
        Hisparse,
        HiSparseAllocator,
        "alloc_device_buffer",
        a_buffer_whose_pages_stay_mapped,
        "KV-10",
        "alloc_device_buffer",
    ),
]


@pytest.mark.parametrize(
    ("subject", "where", "method", "fault", "clause", "operation"),
    FAULTS,
    ids=[fault.__name__ for *_, fault, _, _ in FAULTS],
)
def test_the_soak_finds_it_and_names_clause_and_call(
    subject: type[KvcoreSlots],
    where: type[Any],
    method: str,
    fault: Fault,
    clause: str,
    operation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, method, fault)
    found: set[tuple[str, str]] = set()
    for seed in range(4):  # what fails first in an operation may leave it out before the rest is met
        findings = Findings()
        soak("slots", subject, steps=STEPS, seed=seed, reach=Reach(), findings=findings)
        found |= {key[:2] for key in findings.new}
        if (clause, operation) in found:
            return
    assert (clause, operation) in found


@pytest.mark.parametrize("subject", [Windowed, Hisparse])
def test_without_a_fault_it_finds_nothing(subject: type[KvcoreSlots]) -> None:
    findings = Findings()
    soak("slots", subject, steps=STEPS, seed=0, reach=Reach(), findings=findings)
    assert not findings.new
