"""From three small draws to an operation that means something now: resolved against the ledger.

    if possible["decode"](ledger):
        operation = pick["decode"](ledger, who=3, many=0, much=7)

`who` says which request (newest first), `many` how large the batch is, `much` how far it goes, counted from the edges:
the next page edge and one before and behind it, what is left in the pool and one more. Uniform draws would take effect
in 15 % of the steps; these do in nine of ten. Smaller draws are simpler operations, so they shrink well.
"""

from __future__ import annotations

from .draws import (
    SIZES,
    Pick,
    Possible,
    free_group_begin,
    free_group_end,
    group_is_open,
    kept,
    members,
    new_number,
    target,
)
from .ledger import Ledger
from .offload_choices import (
    admitted,
    backed_up,
    bind_newest,
    device_buffer,
    drop_backup,
    on_host,
    prealloc_hisparse,
    resident,
    swap_out,
)
from .operations import (
    Checkpoint,
    Commit,
    Decode,
    Evict,
    Extend,
    FillHole,
    LateResult,
    Lease,
    Operation,
    Prealloc,
    Release,
    ReleaseOverallocated,
    Retire,
    Retract,
    SpecReserve,
    WindowEvict,
)
from .texts import Prompt

KNOWN = (1, 1, 0, 5, 1, -1, 40, -3)
"""How many tokens more than committed a request has when it is published."""

LEASES = 3
"""Leases that are active at once, at most: steps overlap, they do not pile up."""


def settled(ledger: Ledger) -> list[int]:
    """Live requests without an over-allocated tail and without a hole."""
    return [n for n, held in ledger.live.items() if held.committed == held.allocated and not held.hole[1]]


def whole(ledger: Ledger) -> list[int]:
    """Live requests without a hole."""
    return [n for n, held in ledger.live.items() if not held.hole[1]]


def with_hole(ledger: Ledger) -> list[int]:
    """Live requests with an open hole."""
    return [n for n, held in ledger.live.items() if held.hole[1]]


def _can_decode(ledger: Ledger) -> list[int]:
    limit = ledger.config.context_len
    return [n for n in admitted(ledger, settled(ledger)) if ledger.live[n].allocated < limit]


def _can_extend(ledger: Ledger) -> list[int]:
    """Settled requests and retracted ones; with HiSparse, those that are resident, and no back-ups."""
    old = [*settled(ledger), *ledger.retracted]
    if ledger.config.hisparse is None:
        return old
    return [n for n in old if (held := ledger.get(n)).backup is None and held.resident == held.allocated]


def drafted(ledger: Ledger) -> list[int]:
    """Live requests with an over-allocated tail."""
    return [n for n, held in ledger.live.items() if held.committed < held.allocated]


def _has_draft(ledger: Ledger) -> bool:
    return any(held.committed < held.allocated for held in ledger.live.values())


def prompt_of(ledger: Ledger, draw: int) -> tuple[Prompt, int]:
    """A prompt and its extra key for a new request: its own, or what a request of late has said, cut at an edge."""
    if not ledger.cache.on or draw % 4 == 0:
        return (), 0
    said = [(held.text, held.committed) for held in ledger.live.values()][-4:] + list(ledger.told)
    if not said:
        return (), int(draw // 4 % 8 == 7)
    text, length = said[-1 - draw // 4 % len(said)]
    size = ledger.config.page_size
    edge = length // size * size
    cut = (length, edge, edge + 1, edge - 1, length // 2, ledger.config.context_len, edge - size, size)[draw // 16 % 8]
    if cut <= 0:
        return (), text.salt
    return text.prompt(cut), (text.salt + 1) % 2 if draw % 64 == 63 else text.salt


def _room(ledger: Ledger) -> int:
    """Pages that a call can have, hits aside."""
    return ledger.pages.free + ledger.cache.unlocked


def _extend(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    count = SIZES[many % len(SIZES)]
    old = _can_extend(ledger)
    fresh = new_number(ledger)
    new = min(count, ledger.free_rows) if much % 32 != 31 else count
    # Newest first: new requests are the newest of all.
    numbers = members([*old, *range(fresh + new - 1, fresh - 1, -1)], who, many) if old or new else (fresh,)
    rows = ledger.free_rows + (much % 32 == 31)
    size, limit = ledger.config.page_size, ledger.config.context_len
    chosen, seq_lens, prompts, salts, room = [], [], [], [], _room(ledger)
    for i, number in enumerate(numbers):
        held, start = ledger.get(number), ledger.get(number).allocated
        prompt: Prompt = ()
        salt = 0
        if not held.bound:
            if rows <= 0:
                continue
            rows -= 1
            if number >= fresh:  # Every other one says what its neighbour says.
                prompt, salt = prompt_of(ledger, many * 7 + who * 5 + much * 3 + i // 2)
            start = len(ledger.cache.find(ledger.text_of(number, prompt, salt), limit - 1)) * size
        seq = target(start, size, limit, room, much + 5 * i, bound=held.bound)
        room = max(room - ledger.pages.needed(start, max(seq, start)), 0)
        chosen.append(number)
        seq_lens.append(seq)
        prompts.append(prompt)
        salts.append(salt)
    if not chosen:  # Every candidate needs a row, and none is free: that is a shortage to be refused.
        return Extend((numbers[0],), (1,))
    return Extend(tuple(chosen), tuple(seq_lens), prompts=tuple(prompts) if any(prompts) else (), salts=_salts(salts))


def _salts(salts: list[int]) -> tuple[int, ...]:
    return tuple(map(int, salts)) if any(salts) else ()


def _prealloc(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    old = list(ledger.retracted)
    number = members(old, who, 0)[0] if old and who % 4 == 3 else new_number(ledger)
    prompt, salt = prompt_of(ledger, who + many) if number not in ledger.retracted else ((), 0)
    size, limit = ledger.config.page_size, ledger.config.context_len
    text = ledger.text_of(number, prompt, salt)
    hit = len(ledger.cache.find(text, limit - 1)) * size
    fill = target(hit, size, limit, _room(ledger), much, bound=False)
    hit = len(ledger.cache.find(text, fill - 1)) * size
    holes = (-1, hit + size, fill // size * size, hit + 2 * size, hit, (hit + fill) // 2 // size * size)
    total = holes[many % len(holes)]
    tail = -1
    if ledger.pools.window is not None and who % 3:
        pages = (0, 1, fill // size, fill // size - 1)[much // 16 % 4]
        tail = min(max(pages, 0) * size + fill % size, fill)
    return Prealloc(number, fill, total if hit <= total <= fill else -1, -1, tail, prompt=prompt, salt=int(salt))


def _fill_hole(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    return FillHole(members(with_hole(ledger), who, 0)[0])


def _checkpoint(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    # Those first that have something to publish.
    size, ready = ledger.config.page_size, whole(ledger)
    unpublished = [n for n in ready if ledger.live[n].committed - ledger.live[n].protected > size]
    return Checkpoint(members(unpublished or ready, who, 0)[0], KNOWN[much % len(KNOWN)])


def _evict(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    size, unlocked = ledger.config.page_size, ledger.cache.unlocked
    pages = (1, 2, 0, unlocked, unlocked + 1, 3, unlocked - 1, unlocked // 2)[much % 8]
    return Evict(max(max(pages, 0) * size - (size // 2 if much // 8 % 2 else 0), 0))


def _decode(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    requests = members(_can_decode(ledger), who, many)
    return Decode(requests, kept(ledger, requests, much))


def _spec_reserve(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    size, most = ledger.config.page_size, ledger.reserve
    reserve = (1, size, size + 1, most, most // 2, size - 1, 2 * size, most - 1)[much % 8]
    requests = members(admitted(ledger, whole(ledger)), who, many)
    return SpecReserve(requests, max(1, min(reserve, most)), kept(ledger, requests, much // 8))


def _commit(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    requests = members(drafted(ledger), who, many)
    accepted = []
    for i, held in enumerate(ledger.live[number] for number in requests):
        most = max(min(held.allocated, ledger.config.context_len) - held.committed, 0)
        edge = -held.committed % ledger.config.page_size
        accepted.append(min((1, most, 0, edge, most // 2, edge + 1, max(most - 1, 0), 2)[(much + i) % 8], most))
    return Commit(requests, tuple(accepted), kept(ledger, requests, much // 8))


def _release_overallocated(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    return ReleaseOverallocated(members(drafted(ledger), who, 0)[0])


def _release(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    return Release(members(list(ledger.live), who, many // 4), much % 4 != 0, KNOWN[much // 4 % len(KNOWN)])


def _retract(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    backup = ledger.config.hisparse is not None and much % 4 != 0
    return Retract(members(list(ledger.live), who, many // 4), backup)


def _window_evict(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    requests = members(whole(ledger), who, many)
    return WindowEvict(requests, kept(ledger, requests, much))


def _lease(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    requests = members(list(ledger.live), who, many)
    return Lease(ledger.last_lease + 1, requests, kept(ledger, requests, much))


def _retire(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    return Retire(members(list(ledger.pools.leases), who, 0)[0])


def _late_result(ledger: Ledger, who: int, many: int, much: int) -> Operation:
    (number,) = members(list(ledger.pools.leases), who, 0)
    lease, accepted = ledger.pools.leases[number], []
    for i, one in enumerate(lease.requests):
        held = ledger.live.get(one)
        most = 3  # of one that is gone anything may be said
        if held is not None and held.binding == lease.bindings[one]:
            most = max(min(held.allocated, ledger.config.context_len) - held.committed, 0)
        accepted.append(min((1, most, 0, 2, most // 2)[(much + i) % 5], most))
    return LateResult(number, tuple(accepted))


ENGINE_POSSIBLE: Possible = {
    "extend": lambda ledger: True,
    "decode": _can_decode,
    "spec_reserve": lambda ledger: ledger.reserve and admitted(ledger, whole(ledger)),
    "commit": _has_draft,
    "release_overallocated": _has_draft,
    "release": lambda ledger: ledger.live,
    "retract": lambda ledger: ledger.live,
    "prealloc": lambda ledger: ledger.config.hisparse is None,
    "fill_hole": with_hole,
    "checkpoint": lambda ledger: ledger.cache.on and whole(ledger),
    "evict": lambda ledger: ledger.cache.on,
    "window_evict": lambda ledger: ledger.config.window and whole(ledger),
    "lease": lambda ledger: ledger.live and len(ledger.pools.leases) < LEASES,
    "retire": lambda ledger: ledger.pools.leases,
    "late_result": lambda ledger: ledger.pools.leases,
    "free_group_begin": lambda ledger: not ledger.pages.group_open,
    "free_group_end": group_is_open,
    "prealloc_hisparse": lambda ledger: ledger.config.hisparse,
    "swap_out": resident,
    "device_buffer": on_host,
    "bind_newest": lambda ledger: ledger.config.hisparse and admitted(ledger, list(ledger.live)),
    "drop_backup": backed_up,
    "bad_call": lambda ledger: True,
}
ENGINE_PICK: Pick = {
    "extend": _extend,
    "decode": _decode,
    "spec_reserve": _spec_reserve,
    "commit": _commit,
    "release_overallocated": _release_overallocated,
    "release": _release,
    "retract": _retract,
    "prealloc": _prealloc,
    "fill_hole": _fill_hole,
    "checkpoint": _checkpoint,
    "evict": _evict,
    "window_evict": _window_evict,
    "lease": _lease,
    "retire": _retire,
    "late_result": _late_result,
    "free_group_begin": free_group_begin,
    "free_group_end": free_group_end,
    "prealloc_hisparse": prealloc_hisparse,
    "swap_out": swap_out,
    "device_buffer": device_buffer,
    "bind_newest": bind_newest,
    "drop_backup": drop_backup,
}
