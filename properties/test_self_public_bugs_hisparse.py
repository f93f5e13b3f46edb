"""Public bugs of HiSparse's pools, played on this core: see test_self_public_bugs."""

from __future__ import annotations

from typing import Any

from ..allocation import alloc_for_extend
from ..hisparse import HiSparse
from ..offload import alloc_for_decode_prealloc_hisparse, device_buffer, swap_out
from ..records import Req
from ..release import retract
from .hisparse_worlds import admit, decode, held, prealloc_host, sparse
from .window_worlds import begin, counts, extend, leave, live, short, sound, windowed

OTHER = range(100, 200)


def test_sg_24039_demand_is_counted_in_pages_that_rows_name(device: str) -> None:
    """Impossible: a page of each pool stands for one logical page, whatever the ratio, and demand is in pages."""
    manager = sparse(device, page_size=16, num_pages=3, hisparse=HiSparse(16, 16, 16, ratio=4))
    reqs = [Req(f"r{i}", range(4)) for i in range(4)]
    assert short(manager, lambda: alloc_for_extend(manager, reqs, [1] * 4)) == ("logical", 4, 3, 0)
    alloc_for_extend(manager, reqs[:3], [1] * 3)
    sound(manager)
    assert counts(manager) == [0, 13, 16]
    leave(manager, *reqs[:3])
    assert counts(manager) == [3, 16, 16]


def test_sg_30408_a_prompt_whose_tail_alone_has_a_window_fits_a_small_window_pool(device: str) -> None:
    """Correct: a pre-allocation to the host takes a tail as the plain one does, and the cursor begins before it."""
    sizes: dict[str, Any] = {"page_size": 16, "context_len": 128, "hisparse": HiSparse(16, 16, 16)}
    manager = windowed(device, 16, 2, **sizes)
    req = Req("r", range(80))
    call = alloc_for_decode_prealloc_hisparse
    assert short(manager, lambda: call(manager, req, fill_len=64)) == ("window", 4, 2, 0)
    assert len(prealloc_host(manager, req, 64, 16)) == 64
    assert (live(manager, req), req.kv.swa_evicted_seqlen) == ([3], 48)
    assert counts(manager) == [12, 1, 16, 12]
    admit(manager, req)
    decode(manager, req)
    assert live(manager, req) == [3, 4]
    leave(manager, req)
    assert counts(manager) == [16, 2, 16, 16]


def test_sg_40729_a_victim_leaves_what_the_host_has_and_nothing_is_read_from_the_device(device: str) -> None:
    """Impossible: a back-up is what the host has already, by tables; a retraction copies nothing."""
    manager = sparse(device, hisparse=HiSparse(8, 16, 4))
    one = begin(manager, range(40), 24)
    swap_out(manager, one)
    admit(manager, one)
    two = begin(manager, OTHER, 24)
    assert counts(manager) == [4, 0, 10], "nothing is left on the device"
    kept = held(manager, "host", one)
    retract(manager, [one], backup=True)
    assert counts(manager) == [10, 2, 10]
    assert sound(manager).held["backup"] == {one.rid: kept}
    retract(manager, [two], backup=True)  # nothing of it is on the host: it begins anew
    assert counts(manager) == [16, 8, 10]
    extend(manager, two, 24)
    prealloc_host(manager, one, 24)
    assert held(manager, "host", one) == kept
    admit(manager, one)
    decode(manager, one)
    leave(manager, one, two)
    assert counts(manager) == [16, 8, 16]


def test_s_07_an_admission_that_is_short_leaves_the_map_as_it_was(device: str) -> None:
    """Refused, KVCacheOutOfMemory: the device pool is asked first, and the map is cleared behind the commit point."""
    manager = sparse(device, hisparse=HiSparse(4, 16, 20))
    req, other = begin(manager, range(40), 8), begin(manager, OTHER, 8)
    swap_out(manager, req)
    for _ in range(2):
        assert short(manager, lambda: device_buffer(manager, req)) == ("device", 1, 0, 0)
    extend(manager, req, 8)  # it is resident as before
    leave(manager, other)
    admit(manager, req)
    assert counts(manager) == [14, 1, 14]
    leave(manager, req)
    assert counts(manager) == [16, 4, 16]
