"""What only a lane with kernels can show: no hidden cost (KV-14), agreement of whole paths with the CPU (KV-12).

    pytest --pyargs kvcore.properties --kv-device cuda

Not collected in the cpu lane.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..allocators.paged import PagedAllocator
from ..config import KVCacheConfig
from ..errors import KVCacheError
from ..kernels import decode_rows, extend_rows, gather_pages, jit, write_pages
from ..kernels.alloc_decode import alloc_decode
from ..kernels.alloc_extend import alloc_extend
from ..kernels.decode_rows import Mirror
from ..kernels.device_reads import DeviceRead, no_device_reads
from ..kernels.devices import tensor_device
from ..kernels.dispatch import OPERATIONS, CpuKernels, kernels_for
from ..kernels.get_last_loc import get_last_loc
from ..kernels.window import WindowPages
from ..manager import Batch, KVCacheManager
from ..records import Req
from ..release import release_kv_cache, release_overallocated
from ..sizing import Speculation
from ..snapshots import snapshot
from .cases import CANARY, WITH_WINDOW, Case
from .lanes import lane_function
from .operations import ON_THE_DEVICE, prepare
from .strategies import PAGE_SIZES

# Sizes for which Triton by default compiles apart: 1, multiples of 16, and the others.
SWEEP = (1, 15, 16, 17, 4096)


def manager_of(device: str, page_size: int = 16, requests: int = 8, **more: Any) -> KVCacheManager:
    config = KVCacheConfig(
        page_size, 64 * requests, requests, 16 * page_size, device, checked=False,
        speculation=Speculation("eagle", steps=3, topk=1, draft_tokens=4), **more,
    )  # fmt: skip
    return KVCacheManager(config)


def requests_of(count: int) -> list[Req]:
    return [Req(number, range(100_000)) for number in range(count)]


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one entry, its size, with each copy to the device."""
    sizes: list[int] = []
    for module in (decode_rows, extend_rows, gather_pages, write_pages):
        original = module.upload

        def counted(parts: Any, *rest: Any, original: Any = original) -> Any:
            sizes.append(sum(map(len, parts)))
            return original(parts, *rest)

        monkeypatch.setattr(module, "upload", counted)
    return sizes


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("op", "has_window"), [*((op, False) for op in OPERATIONS), *((op, True) for op in WITH_WINDOW)]
)
def test_one_compilation_serves_every_batch_and_length(
    op: str, has_window: bool, page_size: int, dtype: str, device: str
) -> None:
    def call(batch: int, start: int, extend: int, head: int) -> None:
        window = 3 * head % 4 if has_window else None
        case = Case(page_size, ((start, extend),), batch=batch, head=head, lens_dtype=dtype, gap=head, window=window)
        assert prepare(op, case, device).run(lane_function(op, device, case)) is None

    call(3, 2, 3, 0)
    compiled = jit.compilations()
    launched = jit.launches[op]
    for count, batch in enumerate(SWEEP):
        call(batch, 17, 1, count)
    for length in SWEEP:
        call(1, length, length, 1)
        call(2, length, 16, 2)
    assert jit.compilations() == compiled
    assert jit.launches[op] == launched + 3 * len(SWEEP)


def test_a_path_call_is_one_launch_and_at_most_one_copy(device: str, uploads: list[int]) -> None:
    manager, reqs = manager_of(device), requests_of(3)

    def cost(path: Callable[[], Any]) -> tuple[Any, int, int]:
        launched, copied = jit.launches.total(), len(uploads)
        result = path()
        return result, jit.launches.total() - launched, len(uploads) - copied

    (_, batch), *extend = cost(lambda: alloc_for_extend(manager, reqs, [20, 1, 40]))
    assert extend == [1, 1]
    assert cost(lambda: alloc_for_decode(manager, batch))[1:] == (1, 1)
    for _ in range(20):
        assert cost(lambda: alloc_for_decode(manager, batch))[1:] == (1, 0)
    assert cost(lambda: alloc_for_spec_decode(manager, batch, 3))[1:] == (1, 1)
    assert cost(lambda: commit(manager, batch, [1, 0, 2]))[1:] == (0, 0)
    assert cost(lambda: release_overallocated(manager, reqs[0]))[1:] in ((0, 0), (1, 1))
    assert cost(lambda: release_kv_cache(manager, reqs, checkpoint=False))[1:] == (1, 1)


def test_write_pages_is_one_launch_and_one_copy(device: str, uploads: list[int]) -> None:
    kernels, where = kernels_for(device), tensor_device(device)
    table = torch.zeros((3, 8), dtype=torch.int32, device=where)
    rows, start, end = (np.array(values) for values in ([2, 1], [4, 0], [8, 4]))
    pages, launched = torch.tensor([5, 6], device=where), jit.launches.total()
    with no_device_reads(device):
        kernels.write_pages(table, rows, start, start, pages[:0], 4)
        assert (jit.launches.total() - launched, uploads) == (0, [])
        kernels.write_pages(table, rows, start, end, pages, 4)
        assert (jit.launches.total() - launched, uploads) == (1, [6])
    assert table.tolist() == [[0] * 8, [24, 25, 26, 27, 0, 0, 0, 0], [0, 0, 0, 0, 20, 21, 22, 23]]


def test_a_window_costs_no_launch_and_no_copy(device: str, uploads: list[int]) -> None:
    kernels, where = kernels_for(device), tensor_device(device)
    table = torch.zeros((4, 32), dtype=torch.int32, device=where)
    free, window_free = torch.arange(1, 25, device=where), torch.arange(101, 125, device=where)
    window_map = torch.zeros(25, dtype=torch.int64, device=where)
    rows, start, end = (np.array(values) for values in ([3, 1, 2], [0, 0, 0], [5, 0, 4]))
    mirror, head, launched = Mirror(), 3, jit.launches.total()
    with no_device_reads(device):
        kernels.extend_rows(table, rows, start, end, free, 0, 4, WindowPages(window_free, 5, window_map))
        assert (jit.launches.total() - launched, len(uploads)) == (1, 1)
        for step in range(9):
            window = WindowPages(window_free, head + 5, window_map)
            kernels.decode_rows(table, rows, end + step, free, head, 4, mirror, window)
            assert (jit.launches.total() - launched, len(uploads)) == (2 + step, 2)
            head += int(((end + step) % 4 == 0).sum())
            assert (mirror.head, mirror.window_head) == (head, head + 5)
        nothing = kernels.take_window_pages(window_map, free[:0])
        assert (len(nothing), jit.launches.total() - launched) == (0, 10)
        taken = kernels.take_window_pages(window_map, free[:head:2])
        assert (jit.launches.total() - launched, len(uploads)) == (11, 2)
    assert mirror.block is not None
    assert mirror.block.tolist() == [head, head + 5, *rows, *(end + 9)]
    assert taken.tolist() == list(range(106, 106 + head, 2))
    left = [page + 105 if 0 < page <= head and page % 2 == 0 else 0 for page in range(25)]
    assert window_map.tolist() == left
    # A window head that moved in another way is sent anew.
    kernels.decode_rows(table, rows, end + 9, free, head, 4, mirror, WindowPages(window_free, head + 4, window_map))
    assert len(uploads) == 3


def test_the_paths_read_nothing_back(device: str) -> None:
    manager, reqs = manager_of(device), requests_of(3)
    allocator = PagedAllocator(32, 4, device, checked=False)
    with no_device_reads(device):
        _, batch = alloc_for_extend(manager, reqs[:2], [20, 1])
        alloc_for_decode(manager, batch)
        alloc_for_extend(manager, reqs, [33, 2, 7])
        alloc_for_decode(manager, Batch(manager, reqs))
        alloc_for_spec_decode(manager, batch, 4)
        commit(manager, batch, [2, 0])
        release_overallocated(manager, reqs[0])
        assert batch.device_rows.shape == (2,)
        release_kv_cache(manager, reqs, checkpoint=True)
        slots = allocator.alloc_extend([0, 0], [5, 3], torch.full((2,), -1, device=tensor_device(device)))
        allocator.alloc_decode([6, 4], slots[4:8:3])
        allocator.free_segment(slots[:5], 0)
        allocator.alloc(8)
        allocator.clear()


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "to": lambda t: t.to("cpu"),
    "an index": lambda t: list(range(9))[t[1]],
    "a condition": lambda t: 1 if t[0] else 2,
    "int": lambda t: int(t[0]),
    "a boolean index": lambda t: t[t > 1],
    "unique": lambda t: torch.unique(t),
    "numpy": lambda t: np.asarray(t),
    "text": lambda t: f"{t}",
    "where": lambda t: torch.where(t > 1),
    "repeats": lambda t: t.repeat_interleave(t),
}

STAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "to": lambda t: t.to(torch.int32),
    "an index": lambda t: t[t],
    "where": lambda t: torch.where(t > 1, t, 0),
    "repeats": lambda t: t.repeat_interleave(t, output_size=3),
}


@pytest.mark.parametrize("read", READS)
def test_the_mode_refuses(read: str, device: str) -> None:
    tensor = torch.arange(3, device=tensor_device(device))
    # TypeError: what numpy makes of a tensor on a GPU. RuntimeError: PyTorch's own check there.
    with no_device_reads(device), pytest.raises((DeviceRead, RuntimeError, TypeError)):
        READS[read](tensor)


@pytest.mark.parametrize("call", STAYS)
def test_the_mode_lets_pass_what_stays_on_the_device(call: str, device: str) -> None:
    tensor = torch.arange(3, device=tensor_device(device))
    with no_device_reads(device):
        result = STAYS[call](tensor)
    assert result.device == tensor.device


def test_the_mode_refuses_the_references_in_place_of_kernels(device: str) -> None:
    manager, reqs = manager_of(device), requests_of(1)
    manager.kernels = CpuKernels()
    with no_device_reads(device), pytest.raises((DeviceRead, TypeError)):
        alloc_for_extend(manager, reqs, [3])


def test_a_mirror_stands_as_the_host_says(device: str) -> None:
    manager, reqs = manager_of(device, page_size=4), requests_of(3)
    _, batch = alloc_for_extend(manager, reqs, [3, 4, 9])
    _, other = alloc_for_extend(manager, reqs[1:], [5, 9])
    for step in range(12):
        alloc_for_decode(manager, other if step % 5 == 3 else batch)
        mirror = (other if step % 5 == 3 else batch).mirror
        assert mirror.block is not None
        head, window_head, *rest = mirror.block.cpu().tolist()
        members = (other if step % 5 == 3 else batch).rows
        assert head == manager.allocator.free_list.head == mirror.head
        assert window_head == mirror.window_head == 0
        assert rest == [*members, *manager.req_to_token_pool.records.allocated[members]]


class Side:
    """One of two managers that go the same way: its requests by number, its batches by their members."""

    def __init__(self, page_size: int, device: str) -> None:
        speculation = Speculation("eagle", steps=3, topk=2, draft_tokens=6)
        config = KVCacheConfig(page_size, 18, 5, 5 * page_size + 9, device, speculation=speculation, checked=False)
        self.manager, self.requests = KVCacheManager(config), requests_of(6)
        self.batches: dict[tuple[int, ...], Batch] = {}

    def go(self, path: str, chosen: tuple[int, ...], numbers: list[int], reserve: int) -> Any:
        """Take a path; the slots, the tokens given back, or the refusal."""
        members = [self.requests[number] for number in chosen]
        try:
            if path == "extend":
                return alloc_for_extend(self.manager, members, numbers)[0].tolist()
            if path == "release":
                return release_kv_cache(self.manager, members, checkpoint=False)
            if path == "trim":
                return release_overallocated(self.manager, members[0])
            batch = self.batches.get(chosen)
            generation = self.manager.req_to_token_pool.records.generation
            if batch is None or (generation[batch.rows] != batch.generations).any():
                batch = self.batches[chosen] = Batch(self.manager, members)
            if path == "decode":
                return alloc_for_decode(self.manager, batch).tolist()
            if path == "spec":
                return alloc_for_spec_decode(self.manager, batch, reserve)
            return commit(self.manager, batch, numbers)
        except KVCacheError as error:
            return repr(error)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("seed", range(6))
def test_a_device_and_the_cpu_go_the_same_way(seed: int, page_size: int, device: str) -> None:
    draw, cpu, there = random.Random(seed), Side(page_size, "cpu"), Side(page_size, device)
    for _ in range(40):
        path = draw.choice(("extend", "decode", "decode", "spec", "commit", "trim", "release"))
        bound = [number for number in range(6) if cpu.requests[number].kv.holds_kv]
        of = range(6) if path == "extend" else bound
        chosen = tuple(draw.sample(of, min(len(of), draw.randint(1, 3))))
        if not chosen:
            continue
        records = [cpu.requests[number].kv for number in chosen]
        numbers = [
            kv.kv_allocated_len + draw.randint(0, 2 * page_size)
            if path == "extend"
            else draw.randint(0, kv.kv_allocated_len - kv.kv_committed_len)
            for kv in records
        ]
        reserve = draw.randint(1, 6)
        assert there.go(path, chosen, numbers, reserve) == cpu.go(path, chosen, numbers, reserve)
        assert snapshot(there.manager).differences(snapshot(cpu.manager)) == []


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_call_gives_the_same_every_time(op: str, device: str) -> None:
    """Programs run in any order on a GPU; a hundred runs must not differ in a byte."""
    case = Case(4, ((3, 9), (8, 0), (0, 31), (5, 4)), batch=301, order=3, tile=16, window=2)
    for _ in range(100 if device != "interpret" else 2):
        assert prepare(op, case, device).run(lane_function(op, device, case)) is None


@pytest.mark.parametrize("op", [*ON_THE_DEVICE, "write_pages", "take_window_pages"])
def test_arguments_with_gaps_are_the_same_arguments(op: str, device: str) -> None:
    """Lengths, rows, slots, pages and the free list as every second entry of a larger tensor."""
    case = Case(4, ((3, 9), (8, 0), (0, 31), (5, 4)), order=3)
    call = prepare(op, case, device)
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor) and name not in ("out", "req_to_token", "window_map"):
            apart = torch.full((2 * len(value),), CANARY, dtype=value.dtype, device=value.device)
            apart[::2] = value
            call.arguments[name] = apart[::2]
    assert call.run(lane_function(op, device, case)) is None


def test_a_result_or_a_row_with_gaps_is_refused(device: str) -> None:
    where = tensor_device(device)
    lens, last, pages, gaps = (torch.tensor(v, device=where) for v in ([5], [7], [2], [0, 0]))
    with pytest.raises(ValueError, match="out"):
        alloc_decode(lens, last, pages, 4, gaps.repeat(2)[::2])
    with pytest.raises(ValueError, match="out"):
        alloc_extend(lens - 1, lens + 1, last, pages, 4, gaps.repeat(2)[::2])
    table = torch.zeros((3, 8), dtype=torch.int32, device=where)
    with pytest.raises(ValueError, match="req_to_token"):
        get_last_loc(table.T, lens, lens, last)
