"""kvcore's own allocator as a subject, on both levels.

kvcore check --subject kvcore
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ... import allocation, caching, leases, offload, preallocation, release, window_eviction
from ...manager import Batch, KVCacheManager
from ...records import Req
from ...snapshots import Snapshot, snapshot
from ..books import Recent
from ..configuration import Configuration
from .kvcore_slots import KvcoreSlots as KvcoreSlots
from .protocol import Capabilities, Tokens

Int64 = NDArray[np.int64]
Guard = Callable[[], AbstractContextManager[Any]]


class KvcoreEngine:
    """The paths of a KVCacheManager, with requests by number."""

    capabilities = Capabilities("engine")

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.guard: Guard = nullcontext  # what is around every call of a path
        self.manager = KVCacheManager(config)
        self.reqs: dict[int, Req] = {}
        self.batches: Recent[Batch] = Recent()
        # A number that is none gives None, which is no lease, and the core says so.
        self.leases: defaultdict[int, Any] = defaultdict(lambda: None)

    def extend(
        self, requests: Sequence[int], seq_lens: Sequence[int], tokens: Sequence[Tokens], salts: Sequence[int]
    ) -> Int64:
        said: Any = zip_longest(requests, tokens, salts, fillvalue=0)
        reqs = [self._told(*one) for one in said]
        with self.guard():
            slots, batch = allocation.alloc_for_extend(self.manager, reqs, seq_lens)
        self.batches.remember(requests, batch)
        return slots.cpu().numpy()

    def decode(self, requests: Sequence[int], kept: bool) -> Int64:
        batch = self._batch(requests, kept)
        with self.guard():
            slots = allocation.alloc_for_decode(self.manager, batch)
        self.batches.remember(requests, batch)
        return slots.cpu().numpy()

    def spec_reserve(self, requests: Sequence[int], reserve: int, kept: bool) -> None:
        batch = self._batch(requests, kept)
        with self.guard():
            allocation.alloc_for_spec_decode(self.manager, batch, reserve)
        self.batches.remember(requests, batch)

    def commit(self, requests: Sequence[int], accepted: Sequence[int], kept: bool) -> None:
        batch = self._batch(requests, kept)
        allocation.commit(self.manager, batch, accepted)
        self.batches.remember(requests, batch)

    def release_overallocated(self, request: int) -> int:
        with self.guard():
            return release.release_overallocated(self.manager, self._req(request))

    def release(self, requests: Sequence[int], checkpoint: bool, tokens: Sequence[Tokens]) -> None:
        reqs = [self._req(number) for number in requests]
        for req, known in zip(reqs, tokens, strict=True):
            req.token_ids = known
        with self.guard():
            release.release_kv_cache(self.manager, reqs, checkpoint=checkpoint)
        for req in reqs:
            req.token_ids = ()  # those of a whole trace would fill the memory

    def retract(self, requests: Sequence[int], backup: bool) -> None:
        with self.guard():
            release.retract(self.manager, [self._req(number) for number in requests], backup=backup)

    def prealloc(
        self, request: int, fill_len: int, total_prefix_len: int, swa_tail_len: int, tokens: Tokens, salt: int
    ) -> Int64:
        req = self._told(request, tokens, salt)
        total, tail = (None if given == -1 else given for given in (total_prefix_len, swa_tail_len))
        with self.guard():
            slots = preallocation.alloc_for_decode_prealloc(
                self.manager, req, fill_len=fill_len, total_prefix_len=total, swa_tail_len=tail
            )
        return slots.cpu().numpy()

    def fill_hole(self, request: int) -> Int64:
        with self.guard():
            slots = preallocation.fill_hole(self.manager, self._req(request))
        return slots.cpu().numpy()

    def checkpoint(self, request: int, tokens: Tokens) -> None:
        req = self._req(request)
        req.token_ids = tokens
        with self.guard():
            caching.checkpoint_kv_cache(self.manager, req)

    def evict(self, num_tokens: int) -> int:
        with self.guard():
            return caching.evict_from_tree_cache(self.manager, num_tokens)

    def peek(self, request: int, tokens: Tokens, salt: int) -> int:
        req = self._told(request, tokens, salt)
        return caching.peek_prefix(self.manager, req)

    def window_evict(self, requests: Sequence[int], kept: bool) -> int:
        batch = self._batch(requests, kept)
        with self.guard():
            return window_eviction.evict_window(self.manager, batch)

    def lease(self, lease: int, requests: Sequence[int], kept: bool) -> None:
        batch = self._batch(requests, kept)
        with self.guard():
            self.leases[lease] = leases.begin_lease(self.manager, batch)

    def retire(self, lease: int) -> None:
        with self.guard():
            leases.retire(self.manager, self.leases[lease])

    def late_result(self, lease: int, accepted: Sequence[int]) -> list[bool]:
        settled: list[bool] = leases.late_result(self.manager, self.leases[lease], accepted).tolist()
        return settled

    def prealloc_hisparse(self, request: int, fill_len: int, swa_tail_len: int, tokens: Tokens) -> Int64:
        req = self._told(request, tokens)
        with self.guard():
            slots = offload.alloc_for_decode_prealloc_hisparse(
                self.manager, req, fill_len=fill_len, swa_tail_len=None if swa_tail_len == -1 else swa_tail_len
            )
        return slots.cpu().numpy()

    def swap_out(self, request: int) -> Int64:
        with self.guard():
            slots = offload.swap_out(self.manager, self._req(request))
        return slots.cpu().numpy()

    def device_buffer(self, request: int) -> Int64:
        with self.guard():
            slots = offload.device_buffer(self.manager, self._req(request))
        return slots.cpu().numpy()

    def bind_newest(self, requests: Sequence[int], kept: bool) -> Int64:
        batch = self._batch(requests, kept)
        with self.guard():
            slots = offload.bind_newest(self.manager, batch)
        return slots.cpu().numpy()

    def drop_backup(self, request: int) -> None:
        with self.guard():
            offload.drop_backup(self.manager, self._req(request))

    def free_group_begin(self) -> None:
        self.manager.free_group_begin()

    def free_group_end(self) -> None:
        with self.guard():
            self.manager.free_group_end()

    def row_of(self, request: int) -> int:
        return self._req(request).kv.req_pool_idx or 0

    def row(self, request: int, start: int, end: int) -> Int64:
        table = self.manager.req_to_token_pool.req_to_token
        return table[self.row_of(request), start:end].cpu().numpy().astype(np.int64)

    def lengths(self, request: int) -> tuple[int, int, int]:
        records, row = self.manager.req_to_token_pool.records, self._req(request)._row
        protected, committed, allocated = records.table[:3, row].tolist()
        return protected, committed, allocated

    def window_pages(self, pages: Sequence[int]) -> list[int]:
        found: list[int] = self.manager.window_map[torch.tensor(pages, dtype=torch.int64)].cpu().tolist()
        return found

    def device_pages(self, pages: Sequence[int]) -> list[int]:
        assert self.manager.offload is not None
        found: list[int] = self.manager.offload.map[torch.tensor(pages, dtype=torch.int64)].cpu().tolist()
        return found

    def held(self, what: str, request: int) -> list[int]:
        there, row = self.manager.offload, self._req(request)._row
        assert there is not None
        records = self.manager.req_to_token_pool.records
        if what == "buffer":
            pages = there.buffers[row, : int(records.buffered[row])].cpu()
        else:
            pages = there.host_pages[row, : -(-int(records.hosted[row]) // self.manager.page_size)]
        found: list[int] = pages.tolist()
        return found

    def available(self) -> list[int]:
        return [allocator.available_size() for allocator in self.manager.allocators.values()]

    def snapshot(self) -> Snapshot:
        return snapshot(self.manager)

    def _told(self, number: int, tokens: Any = (), salt: int = 0) -> Req:
        """The request, which has these tokens now; its extra key is given to it when it is made."""
        req = self.reqs.get(number)
        if req is None or req.extra_key != (salt or None):
            req = self.reqs[number] = Req(number, (), salt or None)
        req.token_ids = tokens
        return req

    def _req(self, number: int) -> Req:
        req = self.reqs.get(number)
        if req is None:
            req = self.reqs[number] = Req(number, ())
        return req

    def _batch(self, requests: Sequence[int], kept: bool) -> Batch:
        batch = self.batches.get(requests)
        if batch is None or not kept:
            # A real engine makes a batch when its composition changes; the generation tells.
            batch = Batch(self.manager, [self._req(number) for number in requests])
        return batch


def kvcore(config: Configuration) -> Any:
    """kvcore's own allocator, on the level that the configuration names; in a kernel lane in lockstep with the CPU."""
    if config.device != "cpu":
        from .lockstep import lockstep

        return lockstep(config)
    return KvcoreSlots(config) if config.level == "slots" else KvcoreEngine(config)
