"""Public bugs of chunks, aborts, retractions and releases, played on this core: see test_self_public_bugs."""

from __future__ import annotations

import pytest

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..caching import checkpoint_kv_cache, evict_from_tree_cache, peek_prefix
from ..errors import BadArgument, DoubleFree, StaleRow
from ..records import Req
from ..release import release_overallocated, retract
from ..sizing import Speculation
from .window_worlds import (
    bad_call,
    batch_of,
    begin,
    counts,
    extend,
    free_sets,
    leave,
    pages,
    plain,
    short,
    sound,
)

OTHER = range(100, 200)
DFLASH = Speculation("dflash", 1, 1, 4)


def test_sg_22862_what_lies_behind_a_shorter_prefix_is_freed_before_the_next_extend(device: str) -> None:
    """Refused, BadArgument, until release_overallocated has freed the tail; the page of the last token stays."""
    manager = plain(device, speculation=DFLASH)
    req = begin(manager, range(30), 10)
    alloc_for_spec_decode(manager, batch_of(manager, req), 6)
    held = pages(manager, req)
    assert req.kv.kv_allocated_len == 16
    assert bad_call(manager, lambda: alloc_for_extend(manager, [req], [13])) == (BadArgument, "KV-15", "reqs")
    assert release_overallocated(manager, req) == 4
    extend(manager, req, 13)
    assert pages(manager, req)[:3] == held[:3]
    leave(manager, req)
    assert counts(manager) == [16]


def test_sg_22273_the_length_of_a_row_cannot_be_set_back(device: str) -> None:
    """Refused, BadArgument: an extend continues a row where it ends, and only release and trimming shorten it."""
    manager = plain(device)
    req = begin(manager, range(30), 12)
    assert bad_call(manager, lambda: alloc_for_extend(manager, [req], [1])) == (BadArgument, "KV-15", "seq_lens")
    with pytest.raises(AttributeError):
        req.kv.kv_allocated_len = 1  # type: ignore[misc]
    leave(manager, req)
    assert counts(manager) == [16]


def test_sg_12224_every_slot_of_a_late_step_is_released_once(device: str) -> None:
    """Impossible: a release takes its length from the record, which moved with each allocation; a second is refused."""
    manager = plain(device, page_size=1)
    req = begin(manager, range(30), 5)
    for _ in range(4):  # the stop token is seen one step late
        alloc_for_decode(manager, batch_of(manager, req))
    assert counts(manager) == [16 - 9]
    leave(manager, req)
    assert counts(manager) == [16]
    assert bad_call(manager, lambda: leave(manager, req)) == (DoubleFree, "KV-8", "reqs")


def test_sg_9989_a_step_is_short_by_the_pages_that_it_needs(device: str) -> None:
    """Correct: the refusal says need and free in pages, by the same count as the allocation."""
    manager = plain(device, page_size=32, num_pages=29, max_requests=6, context_len=256)
    reqs = [begin(manager, range(base, base + 200), 128) for base in range(0, 1200, 200)]
    batch = batch_of(manager, *reqs)
    assert short(manager, lambda: alloc_for_decode(manager, batch)) == ("full", 6, 5, 0)
    retract(manager, [reqs.pop()])
    alloc_for_decode(manager, batch_of(manager, *reqs))
    sound(manager)
    assert counts(manager) == [9 - 5]


def test_sg_18694_a_victim_that_has_finished_is_not_released_again(device: str) -> None:
    """Refused: retracting it is a DoubleFree, and a batch that still names it is a StaleRow."""
    manager = plain(device)
    req, stays = begin(manager, range(30), 9), begin(manager, OTHER, 9)
    batch = batch_of(manager, req, stays)
    leave(manager, req)
    assert bad_call(manager, lambda: retract(manager, [req])) == (DoubleFree, "KV-8", "reqs")
    assert bad_call(manager, lambda: retract(manager, [stays, req])) == (DoubleFree, "KV-8", "reqs")
    assert bad_call(manager, lambda: alloc_for_decode(manager, batch)) == (StaleRow, "KV-15", "batch")
    assert bad_call(manager, lambda: commit(manager, batch, [0, 0])) == (StaleRow, "KV-15", "batch")


def test_sg_10871_a_request_that_ends_in_a_mixed_step_gives_its_row_back(device: str) -> None:
    """Impossible: there is one release, of slots and row together, whatever step was the last."""
    manager = plain(device)
    running, new = begin(manager, range(30), 8), Req("n", OTHER)
    alloc_for_extend(manager, [running, new], [9, 5])  # a decode and a prefill in one step
    sound(manager)
    leave(manager, new)
    leave(manager, running)
    assert len(manager.req_to_token_pool.free_rows) == 4
    assert counts(manager) == [16]


@pytest.mark.parametrize("checkpoint", [None, False])
def test_sg_38319_pages_that_a_chunk_has_published_are_not_the_requests_to_free(
    device: str, checkpoint: bool | None
) -> None:
    """Impossible: publishing moves ownership and the record's protected length in one call."""
    manager = plain(device, prefix_cache="radix")
    req = begin(manager, range(30), 8)
    checkpoint_kv_cache(manager, req)
    published = set(pages(manager, req))
    if checkpoint is None:
        retract(manager, [req])
    else:
        leave(manager, req, checkpoint=checkpoint)
    sound(manager)
    assert not published & free_sets(manager)[0]
    assert peek_prefix(manager, Req("", range(9))) == 8


def test_sg_35270_a_block_that_is_rewritten_has_one_entry(device: str) -> None:
    """Impossible: what is published is published once; the row's protected length keeps it out of the next key."""
    manager = plain(device, prefix_cache="radix")
    req = begin(manager, range(8))
    checkpoint_kv_cache(manager, req)
    before = sound(manager).cache[0].copy()
    req.token_ids = [0, 1, 2, 3, 96, 97, 98, 99]
    checkpoint_kv_cache(manager, req)
    assert (sound(manager).cache[0] == before).all()
    leave(manager, req, checkpoint=True)
    assert evict_from_tree_cache(manager, 99) == 8
    assert counts(manager) == [16]


def test_jx_1000_the_duplicate_of_a_page_that_a_chunk_ended_in_is_freed(device: str) -> None:
    """Impossible: protected is a page multiple of its own, apart from where the chunk ends."""
    manager = plain(device, prefix_cache="radix")
    req = begin(manager, range(12), 6)
    checkpoint_kv_cache(manager, req)
    assert req.kv.cache_protected_len == 4
    other = begin(manager, range(12), 9)
    checkpoint_kv_cache(manager, other)  # has [4, 8) first
    extend(manager, req, 9)
    duplicate = pages(manager, req)[1]
    checkpoint_kv_cache(manager, req)
    sound(manager)
    assert duplicate in free_sets(manager)[0]
    assert pages(manager, req)[:2] == pages(manager, other)[:2]
