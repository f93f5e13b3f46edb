"""The ledger of the engine level: what is legal, what must be refused, and how.

    verdict = ledger.expected(operation)
    ledger.apply(operation, verdict, read)      # see `books`

Plain Python integers, one request at a time; it repeats no line of the core.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadArgument, ContractError, DoubleFree, RowOverflow, StaleRow
from .configuration import Configuration
from .offload_ledger import OffloadLedger
from .operations import (
    ENGINE_OPERATIONS,
    BadCall,
    BindNewest,
    Checkpoint,
    Commit,
    Decode,
    DeviceBuffer,
    DropBackup,
    Evict,
    Extend,
    FillHole,
    FreeGroupBegin,
    FreeGroupEnd,
    LateResult,
    Lease,
    Operation,
    Prealloc,
    PreallocHisparse,
    Release,
    ReleaseOverallocated,
    Retire,
    Retract,
    SpecReserve,
    SwapOut,
    WindowEvict,
)
from .verdicts import Bad, Growth, Legal, Short, Verdict


class Ledger(OffloadLedger):
    """The books, and what may come next. `offered`: the operations of the subject."""

    def __init__(self, config: Configuration) -> None:
        super().__init__(config)
        self.offered = frozenset(operation.name for operation in (*ENGINE_OPERATIONS, BadCall))
        self.reserve = _largest_reserve(config)
        self.near_the_limit = config.context_len - max(self.reserve, 1)  # a row committed past it is nearly full

    def expected(self, operation: Operation) -> Verdict:
        """Legal, Short or Bad, in the order in which a call is validated: arguments, states, rows, pages."""
        match operation:
            case BadCall(call=call):
                return self.expected(call)
            case Extend():
                return self._extend(operation)
            case Decode(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._decode(requests)
            case SpecReserve(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._spec_reserve(operation)
            case Commit(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._commit(operation)
            case ReleaseOverallocated(request=number):
                return Legal(touched=(number,)) if self.get(number).bound else Bad(StaleRow, "reqs")
            case Retract(backup=True) if self.config.hisparse is None:
                return Bad(BadArgument, "backup")
            case Release(requests=requests) | Retract(requests=requests):
                bad = self._bad_requests(requests)
                unbound = not all(self.get(number).bound for number in requests)
                return bad or (Bad(DoubleFree, "reqs", "KV-8") if unbound else Legal())
            case Prealloc():
                return self._prealloc(operation)
            case FillHole(request=number):
                held = self.get(number)
                if not held.bound:
                    return Bad(StaleRow, "reqs")
                low, high = held.hole
                if not high:
                    return Bad(BadArgument, "req")
                # A hole that lies before a tail-only start has no window.
                window_from = high if high <= held.cursor else None
                growth = (Growth(number, low, high, held.committed),)
                return self._room_for(growth, returns=high - low, window_from=window_from)
            case Checkpoint(request=number):
                held = self.get(number)
                if not held.bound:
                    return Bad(StaleRow, "reqs")
                return Bad(BadArgument, "req") if held.hole[1] else Legal(touched=(number,))
            case Evict(tokens=tokens):
                return Legal() if tokens >= 0 else Bad(BadArgument, "num_tokens")
            case WindowEvict(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._window_evict(requests)
            case Lease(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or Legal()
            case Retire(lease=number):
                return Legal() if number in self.pools.leases else self._no_lease(number, DoubleFree)
            case LateResult():
                return self._late_result(operation)
            case PreallocHisparse():
                return self._prealloc_hisparse(operation)
            case SwapOut(request=number) | DeviceBuffer(request=number):
                held = self.get(number)
                if not held.bound:
                    return Bad(StaleRow, "reqs")
                if self.config.hisparse is None:
                    return Bad(BadArgument, "req")
                return self._swap_out(held) if isinstance(operation, SwapOut) else self._device_buffer(held)
            case BindNewest(requests=requests, kept=kept):
                return self._bad_batch(requests, kept) or self._bind_newest(requests)
            case DropBackup(request=number):
                return Bad(BadArgument, "req") if self.get(number).backup is None else Legal()
            case FreeGroupBegin():
                return Bad(BadArgument, "free_group", "KV-11") if self.pools.group_open else Legal()
            case FreeGroupEnd():
                return Legal() if self.pools.group_open else Bad(BadArgument, "free_group", "KV-11")
        raise TypeError(f"the engine level has no operation {operation.name}")

    def _bad_requests(self, requests: Sequence[int]) -> Bad | None:
        if not requests or len(set(requests)) != len(requests):
            return Bad(BadArgument, "reqs")
        return None

    def _bad_batch(self, requests: tuple[int, ...], kept: bool) -> Bad | None:
        if kept and (bindings := self.batches.get(requests)):
            return None if self.bindings(requests) == bindings else Bad(StaleRow, "batch")
        if bad := self._bad_requests(requests):
            return bad
        return None if all(self.get(number).bound for number in requests) else Bad(StaleRow, "reqs")

    def _extend(self, op: Extend) -> Verdict:
        members = [self.get(number) for number in op.requests]
        if bad := self._bad_requests(op.requests):
            return bad
        if len(op.seq_lens) != len(members) or any(seq < 0 for seq in op.seq_lens):
            return Bad(BadArgument, "seq_lens")
        if any(held.hole[1] or held.committed != held.allocated for held in members):
            return Bad(BadArgument, "reqs")
        if self.config.hisparse and any(h.backup is not None or h.resident != h.allocated for h in members):
            return Bad(BadArgument, "reqs")
        for held, seq in zip(members, op.seq_lens, strict=True):
            if seq < held.allocated or (seq == 0 and not held.bound):
                return Bad(BadArgument, "seq_lens")
        if any(seq > tokens for seq, tokens in zip(op.seq_lens, op.tokens, strict=False)):
            return Bad(BadArgument, "seq_lens")
        if any(seq > self.config.context_len for seq in op.seq_lens):
            return Bad(RowOverflow, "seq_lens", "KV-4")
        growth, hits = [], []
        for held, seq, text in zip(members, op.seq_lens, self.texts_of(op), strict=True):
            start = held.allocated
            if not held.bound:
                path = self.cache.find(text, seq - 1)
                hits.append((text, path))
                start = len(path) * self.config.page_size
            growth.append(Growth(held.number, start, seq, seq))
        if len(hits) > self.free_rows:
            return Short("rows", len(hits), self.free_rows)
        evicting = () if self.cache.on else tuple(held.number for held in members if held.bound)
        returns = sum(g.end - g.start for g in growth)
        device = sum(self.pages.needed(g.start, g.end) for g in growth) if self.config.hisparse else 0
        return self._room_for(tuple(growth), returns=returns, hits=tuple(hits), evicting=evicting, device_pages=device)

    def _prealloc(self, op: Prealloc) -> Verdict:
        size, limit = self.config.page_size, self.config.context_len
        if self.config.hisparse is not None:
            return Bad(BadArgument, "req")
        if self.get(op.request).bound:
            return Bad(StaleRow, "req")
        if op.fill_len < 1 or op.fill_len > (op.fill_len if op.tokens < 0 else op.tokens):
            return Bad(BadArgument, "fill_len")
        if op.fill_len > limit:
            return Bad(RowOverflow, "fill_len", "KV-4")
        text = self.text_of(op.request, op.prompt, op.salt)
        path = self.cache.find(text, op.fill_len - 1)
        hit = len(path) * size
        total = hit if op.total_prefix_len == -1 else op.total_prefix_len
        if not hit <= total <= op.fill_len or (total > hit and total % size):
            return Bad(BadArgument, "total_prefix_len")
        window_from = None
        if op.swa_tail_len != -1:
            tail = op.fill_len - op.swa_tail_len
            if self.pools.window is None or not 0 <= op.swa_tail_len <= op.fill_len or tail % size:
                return Bad(BadArgument, "swa_tail_len")
            window_from = tail if tail > total else None
        if not self.free_rows:
            return Short("rows", 1, 0)
        growth = Growth(op.request, total, op.fill_len, op.fill_len)
        returns = op.fill_len - total
        return self._room_for((growth,), returns=returns, hits=((text, path),), window_from=window_from)

    def _decode(self, requests: Sequence[int]) -> Verdict:
        members = [self.live[number] for number in requests]
        if any(held.hole[1] or held.committed != held.allocated for held in members):
            return Bad(BadArgument, "batch")
        if self.config.hisparse and not all(held.buffer for held in members):
            return Bad(BadArgument, "batch")
        if any(held.allocated + 1 > self.config.context_len for held in members):
            return Bad(RowOverflow, "batch", "KV-4")
        growth = tuple(Growth(h.number, h.allocated, h.allocated + 1, h.allocated + 1) for h in members)
        return self._room_for(growth, returns=len(growth), evicting=tuple(requests))

    def _spec_reserve(self, op: SpecReserve) -> Verdict:
        if any(self.live[number].hole[1] for number in op.requests):
            return Bad(BadArgument, "batch")
        if self.config.hisparse and not all(self.live[number].buffer for number in op.requests):
            return Bad(BadArgument, "batch")
        if not self.reserve or not 1 <= op.reserve <= self.reserve:
            return Bad(BadArgument, "reserve")
        size = self.config.page_size
        growth = []
        for held in (self.live[number] for number in op.requests):
            pages = -(-(held.committed + op.reserve) // size)
            growth.append(Growth(held.number, held.allocated, max(held.allocated, pages * size), held.committed))
        return self._room_for(tuple(growth), returns=None, evicting=op.requests)

    def _commit(self, op: Commit) -> Verdict:
        members = [self.live[number] for number in op.requests]
        if len(op.accepted) != len(members) or any(n < 0 for n in op.accepted):
            return Bad(BadArgument, "accepted")
        settled = [held.committed + n for held, n in zip(members, op.accepted, strict=True)]
        if any(to > held.allocated for held, to in zip(members, settled, strict=True)):
            return Bad(BadArgument, "accepted")
        if any(to > self.config.context_len for to in settled):
            return Bad(RowOverflow, "accepted", "KV-4")
        return Legal(
            tuple(Growth(h.number, h.allocated, h.allocated, to) for h, to in zip(members, settled, strict=True))
        )

    def _late_result(self, op: LateResult) -> Verdict:
        lease = self.pools.leases.get(op.lease)
        if lease is None:
            return self._no_lease(op.lease, BadArgument)
        if len(op.accepted) != len(lease.requests) or any(n < 0 for n in op.accepted):
            return Bad(BadArgument, "accepted")
        growth = []
        for number, accepted in zip(lease.requests, op.accepted, strict=True):
            held = self.get(number)
            if held.bound and held.binding == lease.bindings[number]:
                growth.append(Growth(number, held.allocated, held.allocated, held.committed + accepted))
        if any(to > self.live[number].allocated for number, _, _, to in growth):
            return Bad(BadArgument, "accepted")
        if any(to > self.config.context_len for _, _, _, to in growth):
            return Bad(RowOverflow, "accepted", "KV-4")
        return Legal(tuple(growth))

    def _no_lease(self, number: int, retired: type[ContractError]) -> Bad:
        """A lease that was retired, or none at all."""
        return Bad(retired, "lease", "KV-16") if number in self.retired else Bad(BadArgument, "lease")

    def _window_evict(self, requests: Sequence[int]) -> Verdict:
        if any(self.live[number].hole[1] for number in requests):
            return Bad(BadArgument, "batch")
        return Legal(touched=tuple(requests), gives_up=self._behind_window(requests))


def _largest_reserve(config: Configuration) -> int:
    """R, from the sizing rule as allocation.md words it: twice the slots that one step drafts."""
    spec = config.speculation
    if spec is None:
        return 0
    if spec.algorithm == "dflash":
        return 2 * spec.draft_tokens
    branch = spec.steps
    if config.page_size > 1 and spec.topk > 1:
        # Each branch may begin on the last offset of a page and ends on a page edge.
        branch = (config.page_size - 1 + spec.steps + config.page_size - 1) // config.page_size * config.page_size
    return 2 * max(branch * spec.topk, spec.draft_tokens)
