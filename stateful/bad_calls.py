"""Calls that cannot be right, as rules: each kind is a sentence, built against the ledger where it applies now.

    operation = pick_bad_call(ledger, who=4, many=0, much=1)

The ledger, not this file, says with which error, argument and clause they have to be refused. Kinds whose wrongness
only the values of slots could tell are drawn in checked mode only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .choices import drafted, settled, with_hole
from .draws import new_number
from .ledger import Ledger
from .offload_choices import backed_up
from .operations import (
    Alloc,
    AllocDeviceBuffer,
    AllocExtend,
    AllocExtendTail,
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
    FreeSegment,
    LateResult,
    Lease,
    Operation,
    Prealloc,
    PreallocHisparse,
    RawCall,
    Release,
    ReleaseOverallocated,
    Retire,
    Retract,
    SpecReserve,
    SwapOut,
    WindowEvict,
)
from .refusals import name_of
from .slot_ledger import SlotLedger


def pick_bad_call(ledger: Any, who: int, many: int, much: int) -> Operation:
    """One of the kinds that apply now; `who` counts to it, `many` and `much` say how far off it is."""
    kinds = _engine(ledger, many, much) if isinstance(ledger, Ledger) else _slots(ledger, many, much)
    passed = []
    for kind, call in kinds:
        if name_of(call) not in ledger.offered:
            continue
        passed.append((kind, call))
        if len(passed) > who:
            break
    kind, call = passed[who % len(passed)]
    return BadCall(kind, call)


def _engine(ledger: Ledger, many: int, much: int) -> Iterator[tuple[str, Operation]]:
    new, limit = new_number(ledger), ledger.config.context_len
    absent = new if ledger.last_gone in ledger.live or not ledger.last_gone else ledger.last_gone
    yield "release_what_holds_no_row", Release((absent,))
    yield "retract_what_holds_no_row", Retract((absent,))
    yield "release_nothing", Release(())
    yield "trim_what_holds_no_row", ReleaseOverallocated(absent)
    yield "decode_what_holds_no_row", Decode((absent,))
    yield "reserve_for_what_holds_no_row", SpecReserve((absent,), 1)
    yield "commit_what_holds_no_row", Commit((absent,), (1,))
    yield "extend_nothing", Extend((), ())
    yield "extend_a_new_request_to_zero", Extend((new,), (0,))
    yield "extend_to_a_negative_length", Extend((new,), (-1 - many,))
    yield "extend_past_the_context", Extend((new,), (limit + 1 + many,))
    yield "extend_past_the_tokens", Extend((new,), (min(limit, 2 + many),), (1,))
    yield "extend_a_request_twice", Extend((new, new), (1, 1))
    yield "extend_with_lengths_that_disagree", Extend((new,), (1, 1) if much % 2 else ())
    yield "prealloc_nothing", Prealloc(new, -many)
    yield "prealloc_past_the_context", Prealloc(new, limit + 1 + many)
    yield "prealloc_past_the_tokens", Prealloc(new, min(limit, 2 + many), tokens=1)
    yield "prealloc_with_a_prefix_longer_than_the_request", Prealloc(new, 1, 1 + many * ledger.config.page_size + 1)
    if ledger.config.page_size > 1:
        yield "prealloc_with_a_prefix_off_the_page", Prealloc(new, min(limit, 2 + many), 1)
    yield "fill_the_hole_of_what_holds_no_row", FillHole(absent)
    yield "checkpoint_what_holds_no_row", Checkpoint(absent)
    yield "evict_a_negative_count", Evict(-1 - many)
    yield "evict_the_window_of_what_holds_no_row", WindowEvict((absent,))
    yield "lease_what_holds_no_row", Lease(ledger.last_lease + 1, (absent,))
    if ledger.pools.window is None or ledger.config.page_size > 1:
        length = min(limit, ledger.config.page_size + 1)
        yield "prealloc_with_a_tail_off_the_page", Prealloc(new, length, swa_tail_len=length - 1)
    yield "group_that_is_open_or_is_not", FreeGroupBegin() if ledger.pages.group_open else FreeGroupEnd()
    yield "swap_out_what_holds_no_row", SwapOut(absent)
    yield "buffer_for_what_holds_no_row", DeviceBuffer(absent)
    yield "bind_newest_of_what_holds_no_row", BindNewest((absent,))
    yield "drop_what_has_no_backup", DropBackup(new)
    yield "prealloc_hisparse_nothing", PreallocHisparse(new, -many)
    yield "prealloc_hisparse_past_the_context", PreallocHisparse(new, limit + 1 + many)
    if ledger.config.hisparse is None:
        yield "back_up_without_a_host", Retract((absent,), backup=True)
        yield "prealloc_hisparse_without_its_pools", PreallocHisparse(new, 1)
    else:
        yield "prealloc_that_does_not_go_to_the_host", Prealloc(new, 1)
        yield from _offload(ledger, many)
    if ledger.retired:
        gone = max(ledger.retired)
        yield "retire_twice", Retire(gone)
        yield "result_of_a_retired_lease", LateResult(gone, ())
    yield "retire_what_is_no_lease", Retire(ledger.last_lease + 1)
    for number, lease in ledger.pools.leases.items():
        yield "result_with_counts_that_disagree", LateResult(number, (*(0 for _ in lease.requests), 0))
        yield "result_with_a_negative_count", LateResult(number, tuple(-1 for _ in lease.requests))
        here = [one for one in lease.requests if one in ledger.live]
        if here and ledger.live[here[0]].binding == lease.bindings[here[0]]:
            past = tuple(limit + 2 * ledger.reserve + 1 if one == here[0] else 0 for one in lease.requests)
            yield "result_past_what_is_allocated", LateResult(number, past)
        break
    for requests, bindings in ledger.batches.kept.items():
        if bindings != ledger.bindings(requests):
            yield "decode_with_a_stale_batch", Decode(requests, kept=True)
            yield "reserve_with_a_stale_batch", SpecReserve(requests, 1, kept=True)
            yield "commit_with_a_stale_batch", Commit(requests, (0,) * len(requests), kept=True)
            break
    if not ledger.live:
        return
    live = list(ledger.live)
    one = live[many % len(live)]
    yield "prealloc_what_holds_a_row", Prealloc(one, 1)
    if holes := with_hole(ledger):
        open_one = holes[many % len(holes)]
        yield "decode_over_a_hole", Decode((open_one,))
        yield "reserve_over_a_hole", SpecReserve((open_one,), 1)
        yield "extend_over_a_hole", Extend((open_one,), (min(ledger.live[open_one].allocated + 1, limit),))
        yield "checkpoint_over_a_hole", Checkpoint(open_one)
        yield "evict_the_window_over_a_hole", WindowEvict((open_one,))
    elif not ledger.live[one].hole[1]:
        yield "fill_a_hole_that_is_not_there", FillHole(one)
    if ledger.cache.on and (told := [(text, length) for text, length in ledger.told if length > 1]):
        text, length = told[many % len(told)]
        if hit := len(ledger.cache.find(text, length - 1)) * ledger.config.page_size:
            below = Prealloc(new, length, hit - 1, prompt=text.prompt(length), salt=text.salt)
            yield "prealloc_with_a_prefix_below_the_hit", below
    yield "decode_a_request_twice", Decode((one, one))
    yield "release_a_request_twice", Release((one, one))
    yield "release_one_that_is_gone_with_one_that_is_not", Release((one, absent))
    yield "retract_one_that_is_gone_with_one_that_is_not", Retract((one, absent))
    yield "decode_one_that_is_gone_with_one_that_is_not", Decode((one, absent))
    yield "reserve_nothing", SpecReserve((one,), 0)
    yield "reserve_more_than_a_step_needs", SpecReserve((one,), ledger.reserve + 1)
    yield "commit_a_negative_count", Commit((one,), (-1,))
    yield "commit_with_counts_that_disagree", Commit((one,), ())
    yield (
        "commit_past_what_is_allocated",
        Commit((one,), (ledger.live[one].allocated - ledger.live[one].committed + 1,)),
    )
    if tails := drafted(ledger):
        tail = tails[many % len(tails)]
        held = ledger.live[tail]
        yield "decode_over_an_unsettled_tail", Decode((tail,))
        yield "extend_over_an_unsettled_tail", Extend((tail,), (min(held.allocated + 1, limit),))
        if held.allocated > limit:
            yield "commit_past_the_context", Commit((tail,), (limit + 1 - held.committed,))
    if ready := settled(ledger):
        at = ledger.live[ready[many % len(ready)]]
        if at.allocated:
            yield "extend_below_what_is_allocated", Extend((at.number,), (at.allocated - 1,))
        yield "extend_a_live_request_past_the_context", Extend((at.number,), (limit + 1,))
        if at.allocated == limit:
            yield "decode_past_the_context", Decode((at.number,))


def _offload(ledger: Ledger, many: int) -> Iterator[tuple[str, Operation]]:
    """With HiSparse: calls in a state that does not allow them."""
    for number, held in ledger.live.items():
        if held.buffer:
            yield "a_second_buffer", DeviceBuffer(number)
            yield "swap_out_what_is_not_resident", SwapOut(number)
            if held.committed == held.allocated < ledger.config.context_len:
                yield "extend_what_is_not_resident", Extend((number,), (held.allocated + 1,))
        else:
            yield "decode_without_a_buffer", Decode((number,))
            yield "bind_newest_without_a_buffer", BindNewest((number,))
            if held.hosted < held.committed:
                yield "buffer_for_what_is_not_on_the_host", DeviceBuffer(number)
        break
    for number in backed_up(ledger):
        yield "extend_what_has_a_backup", Extend((number,), (1,))
        if ledger.retracted[number].hosted > 1:
            yield "prealloc_hisparse_less_than_the_backup", PreallocHisparse(number, 1)
        break


def _slots(ledger: SlotLedger, many: int, much: int) -> Iterator[tuple[str, Operation]]:
    size, pages, new = ledger.config.page_size, ledger.config.num_pages, new_number(ledger)
    yield "alloc_a_negative_size", Alloc(new, -size)
    yield "extend_to_a_negative_length", AllocExtend((new,), (-1,))
    if not ledger.cleared_in_group:
        yield "group_that_is_open_or_is_not", FreeGroupBegin() if ledger.pages.group_open else FreeGroupEnd()
    yield "extend_with_lengths_that_disagree", RawCall("alloc_extend", ((0,), (1, 1), (-1,)))
    yield "extend_with_last_slots_that_disagree", RawCall("alloc_extend", ((0,), (1,), ()))
    yield "extend_below_the_prefix", RawCall("alloc_extend", ((2,), (1,), (-1,)))
    if size > 1:
        yield "alloc_no_page_multiple", Alloc(new, size * (1 + many % 2) + 1 + much % (size - 1))
    if ledger.config.window is not None and size > 1:
        yield "a_tail_off_the_page", AllocExtendTail(new, 2 * size, size - 1)
        yield "a_tail_longer_than_the_request", AllocExtendTail(new, size, 2 * size)
    bare = next((number for number, held in ledger.live.items() if not held.buffer), None)
    if ledger.config.hisparse is not None and size > 1 and bare is not None:
        yield "a_buffer_off_the_page", AllocDeviceBuffer(bare, size * (1 + many % 2) + 1)
    for number, held in ledger.live.items():
        if held.allocated and not held.buffer:
            yield "extend_below_what_is_held", AllocExtend((number,), (held.allocated - 1,))
            if size > 1 and held.allocated > 1:
                yield "free_a_segment_from_mid_page", FreeSegment(number, 1)
            break
    if ledger.config.is_checked:
        yield from _by_value(ledger, many, pages, size)


def _by_value(ledger: SlotLedger, many: int, pages: int, size: int) -> Iterator[tuple[str, Operation]]:
    yield "free_the_padding_slot", RawCall("free", ((many % size,),))
    yield "free_a_negative_slot", RawCall("free", ((-1,),))
    yield "free_a_slot_out_of_range", RawCall("free", (((pages + 1) * size + many,),))
    yield "extend_a_prefix_without_its_last_slot", RawCall("alloc_extend", ((1,), (2,), (-1,)))
    yield "extend_no_prefix_with_a_last_slot", RawCall("alloc_extend", ((0,), (2,), (size,)))
    free = sorted(ledger.pages.unheld)
    if free:
        page = free[many % len(free)]
        yield "free_a_page_that_is_free", RawCall("free", (tuple(range(page * size, page * size + size)),))
    for number in ledger.live:
        slots = tuple(ledger.slots_of(number))
        if not slots:
            continue
        yield "free_a_slot_twice", RawCall("free", ((*slots, slots[0]),))
        if len(slots) > 1 and size > 1 and slots[1] // size == slots[0] // size:
            yield "free_a_page_in_pieces", RawCall("free", (slots[:1],))
            yield "free_a_page_but_its_first_slot", RawCall("free", (slots[1:],))
        if len(slots) % size:
            yield "free_a_slot_not_handed_out", RawCall("free", ((*slots, slots[-1] + 1),))
            wrong = slots[-1] + 1
            yield "extend_from_the_wrong_offset", RawCall("alloc_extend", ((len(slots),), (len(slots) + 1,), (wrong,)))
        return
