"""Which sizes there are: the largest accepted one, the first that is refused, and what holds where none is given."""

from __future__ import annotations

from typing import Any

import pytest

from ..config import PAGE_SIZES, KVCacheConfig
from ..errors import BadArgument
from ..sizing import Speculation, reserve_per_step, tokens_per_step
from ..window import Window


def config(**changes: Any) -> KVCacheConfig:
    return KVCacheConfig(**{"page_size": 4, "num_pages": 8, "max_requests": 2, "context_len": 64} | changes)


def refused(**changes: Any) -> str:
    with pytest.raises(BadArgument) as caught:
        config(**changes)
    return caught.value.argument


def test_a_page_has_a_power_of_two_of_tokens_up_to_128() -> None:
    assert tuple(size for size in range(1, 129) if size.bit_count() == 1) == PAGE_SIZES
    for size in range(1, 260):
        if size in PAGE_SIZES:
            assert config(page_size=size).page_size == size
        else:
            assert refused(page_size=size) == "page_size"


@pytest.mark.parametrize("size", PAGE_SIZES)
def test_every_slot_number_fits_an_int32_and_no_more_is_asked(size: int) -> None:
    most = 2**31 // size - 1  # and the padding page
    assert config(page_size=size, num_pages=most).num_pages == most
    assert refused(page_size=size, num_pages=most + 1) == "num_pages"
    assert config(page_size=size, window=Window(8, most)).window == Window(8, most)
    assert refused(page_size=size, window=Window(8, most + 1)) == "window"


def test_a_window_is_a_second_pool_that_gives_up_all_that_it_can_at_once() -> None:
    assert Window(8, 4) == Window(size=8, num_pages=4, kind="pool", interval=0, floor=0)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_block_is_drafted_at_once_whatever_steps_and_branches_are_said(page_size: int) -> None:
    spec = Speculation("dflash", steps=7, topk=3, draft_tokens=5)
    assert (tokens_per_step(spec, page_size), reserve_per_step(spec, page_size)) == (5, 10)


@pytest.mark.parametrize("algorithm", ["medusa", "", "EAGLE", None])
def test_a_way_of_drafting_that_is_unknown_is_refused(algorithm: Any) -> None:
    with pytest.raises(BadArgument) as caught:
        Speculation(algorithm, steps=1, topk=1, draft_tokens=1)
    assert (caught.value.clause, caught.value.argument) == ("KV-15", "algorithm")
