"""Every device operation of this lane, against the walk token by token in `oracle` (KV-12, KV-13).

    pytest --pyargs kvcore.properties --kv-device interpret

In the cpu lane it is the references that are tested, in a kernel lane the kernels. Nothing is compared by length or
count alone: each slot, each entry of the table, and the canaries around whatever the call may read or write.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from ..kernels.dispatch import OPERATIONS
from .cases import WITH_WINDOW, Case
from .check_kernel import check_kernel
from .lanes import lane_function
from .operations import prepare
from .strategies import PAGE_SIZES, cases

# A call takes some 8 ms in the cpu lane, nearly all of it the walk; 20 to 60 ms in the interpreter.
EXAMPLES = {"cpu": 150, "interpret": 40, "cuda": 100}

# As small as 2, so that what is carried from tile to tile counts. On a GPU each tile is a compilation for each page
# size, so small ones have a test of their own there.
TILES = {"cpu": (None,), "interpret": (None, 2, 4, 8), "cuda": (None,)}


# Operations with a window and without.
CALLS = [*((op, None) for op in OPERATIONS), *((op, 2) for op in WITH_WINDOW)]


def lane(device: str) -> str:
    return device.partition(":")[0]


def check(op: str, case: Case, device: str) -> None:
    call = prepare(op, case, device)
    wrong = call.run(lane_function(op, device, case))
    assert wrong is None, f"{wrong}\n\n{call}"


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_does_what_the_walk_does(op: str, device: str) -> None:
    @settings(max_examples=EXAMPLES[lane(device)], deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(cases(op, tiles=TILES[lane(device)]))
    def does(case: Case) -> None:
        check(op, case, device)

    does()


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_one_tile_leaves_the_next_one_takes_up(op: str, device: str) -> None:
    tiles = (None,) if device == "cpu" else (2, 16)

    @settings(max_examples=EXAMPLES[lane(device)] // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(cases(op, page_sizes=(4,), tiles=tiles))
    def does(case: Case) -> None:
        check(op, case, device)

    does()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize(("op", "window"), CALLS)
def test_prompts_of_126_thousand_tokens(op: str, window: int | None, page_size: int, device: str) -> None:
    check(op, Case(page_size, ((0, 126_000), (126_000, 5)), head=3, window=window), device)


@pytest.mark.parametrize("batch", [4095, 4096, 4097, 8192])
@pytest.mark.parametrize(("op", "window"), CALLS)
def test_a_batch_of_thousands(op: str, window: int | None, batch: int, device: str) -> None:
    members = ((3, 2), (0, 5), (7, 0), (15, 1), (16, 1), (1, 20))
    check(op, Case(8, members, batch=batch, order=5, head=1, lens_dtype="int32", window=window), device)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_slots_up_to_the_last_that_fits_a_row(op: str, page_size: int, device: str) -> None:
    case = Case(page_size, ((page_size - 1, 2), (page_size, 1), (0, page_size)), top=2**31 // page_size - 1)
    check(op, case, device)


@pytest.mark.parametrize("op", OPERATIONS)
def test_nothing_past_the_arguments_is_read(op: str, device: str) -> None:
    check_kernel(op, lane_function(op, device, Case(1, ((0, 1),))), device, examples=EXAMPLES[lane(device)] // 2)
