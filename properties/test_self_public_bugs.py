"""Public bugs of KV-cache allocators, played on this core: docs/public-bugs.md lists each beside its test.

A test is named by the public issue and plays its shortest sequence; its docstring says why the bug cannot be here. Here
are slots, kernels and free groups, and the check of the document; `_windows`, `_hisparse` and `_requests` have the
others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ..allocators.paged import PagedAllocator
from ..config import KVCacheConfig
from ..errors import BadArgument, DoubleFree, KVCacheOutOfMemory
from ..records import Req
from ..snapshots import pool_state
from .window_worlds import (
    begin,
    counts,
    leave,
    live,
    pages,
    prealloc,
    sound,
    windowed,
)

PAGE = Path(__file__).absolute().parents[2] / "docs" / "public-bugs.md"  # reached through the link in kvcore/
OTHER = range(100, 200)


def slots(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def free_of(allocator: PagedAllocator) -> list[int]:
    """The free pages in order, those that are staged behind them."""
    state = pool_state(allocator)
    return [*state.free.tolist(), *state.staged.tolist()]


def test_sg_34399_the_demand_is_counted_before_anything_is_read() -> None:
    """Impossible: the host counts the pages and refuses; only behind that does a kernel get the list's head."""
    allocator = PagedAllocator(num_pages=2, page_size=4)
    held = allocator.alloc(8)
    with pytest.raises(KVCacheOutOfMemory) as caught:
        allocator.alloc_decode([5, 5], slots(7, 11))
    assert (caught.value.need, caught.value.free, free_of(allocator)) == (2, 0, [])
    allocator.free(held[:4])
    with pytest.raises(KVCacheOutOfMemory) as caught:
        allocator.alloc_extend([0, 0], [4, 5], slots(-1, -1))
    assert (caught.value.need, caught.value.free, free_of(allocator)) == (3, 1, [1])


def test_sg_13065_an_extension_inside_its_old_page_writes_nobody_else() -> None:
    """Correct: one rule by position, with no count of whole new pages that could become -1."""
    allocator = PagedAllocator(num_pages=12, page_size=4)
    allocator.alloc(4)
    assert allocator.alloc_extend([0], [1], slots(-1)).tolist() == [8]
    allocator.alloc(28)  # pages 3 to 9
    assert allocator.alloc_extend([0, 1], [4, 3], slots(-1, 8)).tolist() == [40, 41, 42, 43, 9, 10]
    assert free_of(allocator) == [11, 12]


def test_sg_18250_an_extension_may_be_as_long_as_the_pool() -> None:
    """Impossible: lengths are values and not shapes; that one compilation serves all is tested in the kernel lanes."""
    allocator = PagedAllocator(num_pages=20_000, page_size=64, checked=False)
    for length in (100, 300, 5_000, 70_000, 1_048_577):
        found = allocator.alloc_extend([0], [length], slots(-1))
        assert torch.equal(found, found[0] + torch.arange(length)), "pages that were never freed are in order"
    assert allocator.available_size() == 64 * (20_000 - 2 - 5 - 79 - 1_094 - 16_385)


@pytest.mark.parametrize("need_sort", [False, True])
def test_sg_25590_a_page_given_back_in_pieces_is_not_free_twice(need_sort: bool) -> None:
    """Refused in checked mode, BadArgument; unchecked as soon as more would be free than was handed out, DoubleFree."""
    for checked, kind in ((True, BadArgument), (False, DoubleFree)):
        allocator = PagedAllocator(num_pages=8, page_size=4, checked=checked, need_sort=need_sort)
        held = allocator.alloc(8)
        if checked:
            with pytest.raises(kind):
                allocator.free(held[:2])
            assert allocator.available_size() == 24
        else:
            allocator.free(held[:2])
        with pytest.raises(kind):
            allocator.free(held[2:])
        assert sorted(free_of(allocator)) == ([3, 4, 5, 6, 7, 8] if checked else [1, 3, 4, 5, 6, 7, 8])


def test_sg_36646_a_nested_group_does_not_lose_what_is_queued() -> None:
    """Refused, BadArgument: groups do not nest, and the one that is open keeps what it holds."""
    allocator = PagedAllocator(num_pages=8, page_size=1)
    held = allocator.alloc(4)
    allocator.free_group_begin()
    allocator.free(held[:2])
    with pytest.raises(BadArgument):
        allocator.free_group_begin()
    allocator.free(held[2:])
    allocator.free_group_end()
    assert allocator.available_size() == 8


@pytest.mark.parametrize("way", ["set", "segment"])
def test_sg_34067_a_queued_free_keeps_no_view_of_the_row(way: str) -> None:
    """Impossible: what is queued are page ids that the call has computed, a new tensor."""
    allocator = PagedAllocator(num_pages=4, page_size=4)
    x, y = allocator.alloc(8), allocator.alloc(8)
    row = x.clone()
    allocator.free_group_begin()
    if way == "set":
        allocator.free(row[:8])
    else:
        allocator.free_segment(row[:8], 0)
    row[:8] = y
    allocator.free_group_end()
    assert sorted(free_of(allocator)) == [1, 2]


def test_sg_39948_no_slot_number_leaves_32_bits() -> None:
    """Refused, BadArgument: a pool whose slots would not fit; within it slots are 64-bit, and kernels widen first."""
    sizes: dict[str, Any] = {"page_size": 16, "max_requests": 1, "context_len": 16}
    KVCacheConfig(num_pages=2**27 - 1, **sizes)
    with pytest.raises(BadArgument) as caught:
        KVCacheConfig(num_pages=2**27, **sizes)
    assert caught.value.argument == "num_pages"
    allocator = PagedAllocator(num_pages=123_932, page_size=16, checked=False)
    allocator.alloc(16 * 123_931)
    top = allocator.alloc_extend([0], [16], slots(-1))
    assert top.dtype == torch.int64
    assert top.tolist() == list(range(16 * 123_932, 16 * 123_933))


def test_sg_37560_the_map_has_an_entry_for_every_full_page(device: str) -> None:
    """Impossible: the map is as long as the full pool, whatever the window pool has."""
    manager = windowed(device, 4, 8, num_pages=64, context_len=256)
    low = prealloc(manager, Req("low", range(256)), 224, None, 0)  # 56 pages that need no window
    high = begin(manager, OTHER, 32)
    assert pages(manager, high) == list(range(57, 65))
    assert live(manager, high) == list(range(8))
    assert sound(manager).maps["window"][0].tolist() == list(range(57, 65))
    leave(manager, high, low)
    assert counts(manager) == [64, 8]


# The document.

LISTED = {
    *("SG-34399", "SG-13065", "SG-18250", "SG-25590", "SG-36646", "SG-34067", "SG-39948", "SG-37560", "OM-1704"),
    *("SG-25805", "SG-38519", "SG-35338", "SG-22470", "SG-34870", "SG-27586", "SG-31486", "SG-40309"),
    *("SG-24039", "SG-30408", "SG-40729", "S-07"),
    *("SG-22862", "SG-22273", "SG-12224", "SG-9989", "SG-18694", "SG-10871", "SG-38319", "SG-38840", "SG-35270"),
    *("JX-1000", "S-01", "S-05"),
}


def table() -> list[list[str]]:
    """The cells of each row of the document's table."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_document_lists_every_issue_once_and_every_test() -> None:
    rows = table()
    assert [len(row) for row in rows] == [4] * len(rows)
    issues = [row[0].split()[0] for row in rows]
    assert sorted(issues) == sorted(LISTED)
    files = sorted(Path(__file__).parent.glob("test_self_public_bugs*.py"))
    texts = "".join(path.read_text(encoding="utf-8") for path in files)
    here = re.findall(r"^def (test_(?:sg|jx|s)_\d\w+)", texts, re.MULTILINE)
    named = [row[3].strip("`") for row in rows if row[3].startswith("`")]
    assert sorted(named) == sorted(here)
    for row in rows:
        issue, test = row[0].split()[0], row[3].strip("`")
        if row[3].startswith("`"):
            assert test.startswith(f"test_{issue.lower().replace('-', '_')}_")
        else:
            assert (row[2].startswith("No operation:"), row[3]) == (True, "none"), issue
