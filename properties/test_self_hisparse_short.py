"""HiSparse: each pool made short alone, at every path, in any state: the refusal names it and leaves no trace.

The demand is counted here, from the lengths in the record, and is also what the call takes once there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..errors import KVCacheError, KVCacheOutOfMemory
from ..hisparse import HiSparse
from ..leases import Lease, begin_lease, retire
from ..manager import Batch, KVCacheManager
from ..offload import alloc_for_decode_prealloc_hisparse, bind_newest, device_buffer, drop_backup, swap_out
from ..records import Req
from ..release import release_kv_cache, release_overallocated, retract
from ..sizing import Speculation
from ..snapshots import snapshot
from ..window import Window
from ..window_eviction import behind_window
from .window_worlds import counts, plain, sound

Need = dict[str, int]
PAIRS = [
    *[("extend", pool) for pool in ("rows", "logical", "window", "device")],
    *[(path, pool) for path in ("decode", "spec_decode") for pool in ("logical", "window")],
    *[("prealloc_hisparse", pool) for pool in ("rows", "logical", "window", "host")],
    *[("swap_out", "host"), ("device_buffer", "device"), ("bind_newest", "device"), ("bind_newest", "host")],
]


@dataclass
class World:
    """A manager and what has become of its requests."""

    manager: KVCacheManager
    live: list[Req] = field(default_factory=list)
    gone: list[Req] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    made: int = 0

    def new(self) -> Req:
        self.made += 1
        return Req(self.made, range(64))

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.manager.page_size)

    def field(self, name: str, req: Req) -> int:
        return int(getattr(self.manager.req_to_token_pool.records, name)[req._row])

    def enter(self, req: Req) -> None:
        if req not in self.live:
            self.live.append(req)
        self.gone = [one for one in self.gone if one is not req]

    def leave(self, req: Req, call: Callable[[], object], *, resumes: bool) -> None:
        call()
        self.live.remove(req)
        self.gone += [req] if resumes else []


def step(world: World, kind: int, who: int, much: int) -> None:
    """One operation, if it may be and there is room for it."""
    manager, live, gone = world.manager, world.live, world.gone
    if not live and kind > 4:
        kind %= 3
    req = live[who % len(live)] if live else world.new()
    back = gone[who % len(gone)] if gone else world.new()
    one = [req]
    try:
        match kind:
            case 0 | 1 | 2:
                fresh = world.new() if kind else back
                if kind == 2:
                    alloc_for_decode_prealloc_hisparse(manager, back, fill_len=much + 1)
                    return world.enter(back)
                alloc_for_extend(manager, [fresh], [much + 1])
                world.enter(fresh)
            case 3 | 4 if live:
                alloc_for_extend(manager, one, [req.kv.kv_allocated_len + much % 6])
            case 5 | 6:
                swap_out(manager, req)
            case 7 | 8:
                device_buffer(manager, req)
            case 9 | 10:
                alloc_for_decode(manager, Batch(manager, one))
            case 11:
                alloc_for_spec_decode(manager, Batch(manager, one), 1 + much % 8)
                commit(manager, Batch(manager, one), [much % 4])
            case 12:
                release_overallocated(manager, req)
            case 13 | 14:
                bind_newest(manager, Batch(manager, one))
            case 15:
                world.leave(req, lambda: release_kv_cache(manager, one, checkpoint=False), resumes=False)
            case 16:
                world.leave(req, lambda: retract(manager, one, backup=much % 3 > 0), resumes=True)
            case 17 if gone:
                drop_backup(manager, back)
            case 18:
                world.leases.append(begin_lease(manager, Batch(manager, one)))
            case 19 if world.leases:
                retire(manager, world.leases.pop())
    except KVCacheError:
        pass


def lead_to(world: World, path: str, pool: str, length: int, *, came: bool) -> Req:
    """A request with which that path has a demand on that pool, mostly."""
    manager, req, size = world.manager, world.new(), world.manager.page_size
    if path in ("decode", "spec_decode", "bind_newest"):
        length = world.pages(length) * size  # the next token begins a page
    if path == "bind_newest" and pool == "device":
        length = size
    if came and path not in ("extend", "swap_out"):
        alloc_for_decode_prealloc_hisparse(manager, req, fill_len=length)
    else:
        alloc_for_extend(manager, [req], [length])
    if path in ("decode", "spec_decode", "bind_newest"):
        if not came:
            swap_out(manager, req)
        device_buffer(manager, req)
        for _ in range(2 if path == "bind_newest" else 0):
            alloc_for_decode(manager, Batch(manager, [req]))
    elif path == "device_buffer" and not came:
        swap_out(manager, req)
    return req


def asked(world: World, path: str, req: Req, others: Sequence[Req], much: int) -> tuple[Callable[[], object], Need]:
    """A call of that path and its demand on each pool."""
    manager, pages, hisparse = world.manager, world.pages, world.manager.config.hisparse
    assert hisparse is not None
    members = [req, *others]
    allocated = [one.kv.kv_allocated_len for one in members]
    committed = [one.kv.kv_committed_len for one in members]
    hosted = [world.field("hosted", one) for one in members]

    def buffers(tokens: int) -> int:
        return 1 + min(pages(tokens), pages(hisparse.buffer_size))

    match path:
        case "extend":
            fresh, to = world.new(), [length + much % 7 for length in allocated]
            need = pages(much + 1) + sum(pages(b) - pages(a) for a, b in zip(allocated, to, strict=True))
            demand = {"rows": 1, "logical": need, "window": need, "device": need}
            return lambda: alloc_for_extend(manager, [*members, fresh], [*to, much + 1]), demand
        case "decode":
            need = sum(pages(length + 1) - pages(length) for length in allocated)
            return lambda: alloc_for_decode(manager, Batch(manager, members)), {"logical": need, "window": need}
        case "spec_decode":
            reserve = 1 + much % 8
            ends = [max(pages(a), pages(c + reserve)) for a, c in zip(allocated, committed, strict=True)]
            need = sum(ends) - sum(map(pages, allocated))
            batch = Batch(manager, members)
            return lambda: alloc_for_spec_decode(manager, batch, reserve), {"logical": need, "window": need}
        case "prealloc_hisparse":
            back = next((one for one in world.gone if manager.offload and one in manager.offload.backups), world.new())
            kept = manager.offload.backups.get(back) if manager.offload else None
            fill = min((kept.hosted if kept else 0) + much + 1, 64)
            demand = {"rows": 1, "logical": pages(fill), "window": pages(fill), "host": pages(fill)}
            demand["host"] -= len(kept.pages) if kept else 0
            tail = None
            if manager.window_allocator is not None and much % 2:
                demand["window"] = 1
                tail = fill - (pages(fill) - 1) * manager.page_size
            call = alloc_for_decode_prealloc_hisparse
            return lambda: call(manager, back, fill_len=fill, swa_tail_len=tail), demand
        case "swap_out":
            return lambda: swap_out(manager, req), {"host": pages(committed[0]) - pages(hosted[0])}
        case "device_buffer":
            need = max(buffers(allocated[0]) - pages(world.field("resident", req)), 0)
            return lambda: device_buffer(manager, req), {"device": need}
    grown = sum(max(buffers(c) - world.field("buffered", m), 0) for c, m in zip(committed, members, strict=True))
    need = sum(pages(max(h, c - 1)) - pages(h) for h, c in zip(hosted, committed, strict=True))
    return lambda: bind_newest(manager, Batch(manager, members)), {"device": grown, "host": need}


def fit_for(world: World, path: str) -> list[Req]:
    """The requests that a batch of that path may have beside the one that it is about."""
    if path in ("extend", "decode"):
        which = "resident" if path == "extend" else "buffered"
        settled = [one for one in world.live if one.kv.kv_committed_len == one.kv.kv_allocated_len < 57]
        return [one for one in settled if world.field(which, one)]
    if path in ("spec_decode", "bind_newest"):
        return [one for one in world.live if world.field("buffered", one)]
    return []


@contextmanager
def drained(manager: KVCacheManager, pool: str, rest: int) -> Iterator[None]:
    """All but `rest` of a pool is taken, through its own allocator, and comes back as it was."""
    if pool == "rows":
        table = manager.req_to_token_pool
        rows = table.bind([Req(f"x{i}", ()) for i in range(len(table.free_rows) - rest)])
        yield
        table.unbind(rows)
        return
    allocator = manager.allocators[pool]
    count = allocator.free_list.count - rest
    head = allocator.take(count)
    taken = allocator.free_list.ids[head : head + count].clone()
    yield
    allocator.give_back(taken)


@pytest.mark.parametrize(("path", "pool"), PAIRS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_a_pool_that_is_short_alone_is_named_and_nothing_has_changed(
    device: str, path: str, pool: str, data: st.DataObject
) -> None:
    draw = data.draw
    size, ratio = draw(st.sampled_from([(4, 1), (4, 4), (1, 1), (8, 4)]))
    hisparse = HiSparse(96, 96, draw(st.sampled_from([2 * size, 3 * size + 1])), ratio)
    window = None
    if pool == "window" or draw(st.booleans()):
        window = Window(draw(st.sampled_from([64, size + 1])), 96, interval=draw(st.sampled_from([0, 4])))
    manager = plain(
        device, page_size=size, num_pages=96, max_requests=6, hisparse=hisparse, window=window,
        speculation=Speculation("dflash", 1, 1, 4), need_sort=draw(st.booleans()),
    )  # fmt: skip
    world = World(manager)
    for operation in draw(st.lists(st.tuples(*map(st.integers, (0, 0, 0), (19, 5, 24))), max_size=16)):
        step(world, *operation)
    sound(manager)
    length, much = draw(st.integers(1, 20)), draw(st.integers(0, 20))
    try:
        req = lead_to(world, path, pool, length, came=draw(st.booleans()))
    except KVCacheOutOfMemory:
        assume(False)
    others = fit_for(world, path)[: draw(st.integers(0, 3))]
    call, demand = asked(world, path, req, others, much)
    # What the windows of the batch give up comes first.
    rows = [one._row for one in (req, *others)] if path in ("extend", "decode", "spec_decode") else []
    gives = behind_window(manager, Batch(manager, [req, *others]).rows).pages if rows and window else 0
    free = {"rows": len(manager.req_to_token_pool.free_rows)} | {
        name: allocator.free_list.count for name, allocator in manager.allocators.items()
    }
    need, back = demand[pool], gives if pool == "window" else 0
    assume(need - back > 0)
    assume(all(wants <= free.get(name, wants) for name, wants in demand.items()))
    rest = draw(st.integers(0, min(need - back - 1, free[pool])))
    with drained(manager, pool, rest):
        before = snapshot(manager)
        with pytest.raises(KVCacheOutOfMemory) as caught:
            call()
        error = caught.value
        assert (error.pool, error.need, error.free, error.reclaimable) == (pool, need, rest, back)
        assert snapshot(manager).differences(before) == []
    # With room it takes what was counted. A buffer may give device pages back as well.
    call()
    sound(manager)
    after = dict(zip(manager.allocators, counts(manager), strict=True))
    for name, count in after.items():
        assert count == free[name] - demand.get(name, 0) + (gives if name == "window" else 0), name
