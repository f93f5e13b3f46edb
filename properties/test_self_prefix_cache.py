"""Hits, and what is published: a prefix is shared exactly as far as it is the same, and every page has one owner."""

from __future__ import annotations

import numpy as np
import pytest

from ..allocation import alloc_for_decode, alloc_for_extend, alloc_for_spec_decode, commit
from ..caching import checkpoint_kv_cache, evict_from_tree_cache, peek_prefix
from ..errors import BadArgument
from ..manager import Batch
from ..records import Req
from ..release import release_kv_cache, release_overallocated, retract
from ..sizing import Speculation
from .worlds import (
    bad_call,
    cache_of,
    cached_pages,
    extend,
    finish,
    free_pages,
    pages_of,
    radix_manager,
    serve,
    sound,
    start,
)

OTHER = range(100, 200)


@pytest.mark.parametrize(
    ("length", "hit"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12), (16, 12), (20, 12)]
)
def test_a_hit_is_what_is_cached_in_whole_pages_with_one_token_left_to_compute(
    device: str, length: int, hit: int
) -> None:
    manager = radix_manager(device)
    known = serve(manager, range(14))[:3]
    req = Req("again", range(20))
    assert peek_prefix(manager, Req("as far", range(length))) == hit
    slots, _ = alloc_for_extend(manager, [req], [length])
    sound(manager)
    kv = req.kv
    assert (kv.cache_protected_len, kv.kv_committed_len, kv.kv_allocated_len) == (hit, length, length)
    assert pages_of(manager, req)[: hit // 4] == known[: hit // 4]
    row = manager.req_to_token_pool.req_to_token[req._row]
    assert row[hit:length].tolist() == slots.tolist()
    assert peek_prefix(manager, req) == 0, "it holds a row"


def test_a_prompt_seen_before_is_hit_on_all_but_its_last_token_at_page_size_1(device: str) -> None:
    manager = radix_manager(device, page_size=1)
    release_kv_cache(manager, [start(manager, range(9))], checkpoint=True)
    req = start(manager, range(9))
    assert req.kv.cache_protected_len == 8


def test_a_prompt_that_differs_inside_a_page_is_hit_up_to_that_page(device: str) -> None:
    manager = radix_manager(device)
    serve(manager, range(16))
    assert peek_prefix(manager, Req("", [*range(10), 99, *range(11, 20)])) == 8
    assert peek_prefix(manager, Req("", [99, *range(1, 20)])) == 0


def test_two_members_of_a_batch_with_one_cached_prompt_hold_its_pages_both(device: str) -> None:
    manager = radix_manager(device)
    known = serve(manager, range(8))
    a, b, c = (Req(name, [*range(length), *OTHER]) for name, length in (("a", 8), ("b", 8), ("c", 4)))
    extend(manager, [a, c, b], 10, 6, 11)  # c's hit ends inside what a's has claimed
    assert pages_of(manager, a)[:2] == pages_of(manager, b)[:2] == known
    assert pages_of(manager, c)[0] == known[0]
    assert sound(manager).cache[3, known].tolist() == [3, 2]
    retract(manager, [a, c, b])
    assert sound(manager).cache[3, known].tolist() == [0, 0]


def test_two_members_with_one_new_prompt_do_not_hit_each_other(device: str) -> None:
    manager = radix_manager(device)
    a, b = Req("a", range(10)), Req("b", range(10))
    extend(manager, [a, b], 10, 10)
    assert not set(pages_of(manager, a)) & set(pages_of(manager, b))


def test_members_with_and_without_rows_share_a_batch(device: str) -> None:
    manager = radix_manager(device)
    known = serve(manager, range(8))
    running, new = start(manager, OTHER, 6), Req("new", range(12))
    slots, batch = alloc_for_extend(manager, [running, new], [9, 10])
    sound(manager)
    assert batch.rows.tolist() == [running._row, new._row]
    assert (len(slots), pages_of(manager, new)[:2]) == (3 + 2, known)


def test_extra_keys_never_share(device: str) -> None:
    manager = radix_manager(device)
    for key in (None, "lora", ("salt", 1)):
        assert peek_prefix(manager, Req("", range(20), key)) == 0
        serve(manager, range(8), key)
        assert peek_prefix(manager, Req("", range(20), key)) == 8
    assert len(cached_pages(manager)) == 6


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_bigram_key_is_one_token_shorter(device: str, length: int, cached: int) -> None:
    manager = radix_manager(device, speculation=Speculation("eagle", 1, 1, 1))
    serve(manager, range(length))
    assert len(cached_pages(manager)) == cached
    assert peek_prefix(manager, Req("", range(20))) == 4 * cached
    # The KV of a page's last token depends on the token behind the page.
    assert peek_prefix(manager, Req("", [*range(4 * cached), *OTHER])) == max(4 * cached - 4, 0)


def test_a_dflash_key_is_no_bigram(device: str) -> None:
    manager = radix_manager(device, speculation=Speculation("dflash", 1, 1, 4))
    serve(manager, range(8))
    assert peek_prefix(manager, Req("", [*range(8), *OTHER])) == 8


def test_a_split_keeps_the_locks_and_the_history_of_both_halves(device: str) -> None:
    manager = radix_manager(device)
    known = serve(manager, range(16))
    whole = start(manager, range(20))
    part = start(manager, [*range(8), *OTHER], 12)
    locks, _, hits, born = sound(manager).cache[3:7, known].tolist()
    assert (locks, hits, born) == ([2, 2, 1, 1], [2, 2, 1, 1], [born[0]] * 4)
    assert evict_from_tree_cache(manager, 99) == 0
    retract(manager, [whole])
    assert sound(manager).cache[3, known].tolist() == [1, 1, 0, 0]
    assert evict_from_tree_cache(manager, 4) == 4
    assert cached_pages(manager) == set(known[:3]), "from the tail"
    assert evict_from_tree_cache(manager, 99) == 4
    finish(manager, part)
    assert evict_from_tree_cache(manager, 99) == 12
    assert len(free_pages(manager)) == 16


def test_a_checkpoint_exchanges_what_another_has_published_and_frees_its_own_once(device: str) -> None:
    manager = radix_manager(device)
    first, second = Req("1", range(20)), Req("2", range(20))
    extend(manager, [first, second], 9, 14)
    mine, theirs = pages_of(manager, second), pages_of(manager, first)
    checkpoint_kv_cache(manager, first)
    assert cached_pages(manager) == set(theirs[:2])
    checkpoint_kv_cache(manager, second)
    assert sound(manager).cache[3, [*theirs[:2], mine[2]]].tolist() == [2, 2, 1]
    assert pages_of(manager, second) == [*theirs[:2], *mine[2:]]
    assert second.kv.cache_protected_len == 12
    assert set(mine[:2]) <= free_pages(manager)
    assert len(free_pages(manager)) == 16 - 3 - 2, "three pages cached, and each has a last one of its own"
    before = sound(manager)
    checkpoint_kv_cache(manager, second)
    assert sound(manager) == before, "there is nothing new to publish"
    alloc_for_decode(manager, Batch(manager, [first, second]))
    finish(manager, first, second)
    assert len(free_pages(manager)) == 16 - 3


def test_requests_of_one_prompt_released_at_once_leave_it_cached_once(device: str) -> None:
    manager = radix_manager(device)
    reqs = [Req(number, range(11)) for number in range(4)]
    extend(manager, reqs, 11, 11, 7, 11)
    kept = pages_of(manager, reqs[0])[:2]
    finish(manager, *reqs)
    assert cached_pages(manager) == set(kept)
    assert free_pages(manager) == set(range(1, 17)) - set(kept)


def test_a_release_publishes_what_its_tokens_tell(device: str) -> None:
    for told, cached in ((0, 0), (3, 0), (4, 1), (9, 2), (10, 2)):
        manager = radix_manager(device)
        req = start(manager, range(10))
        req.token_ids = range(told)
        finish(manager, req)
        assert len(cached_pages(manager)) == cached


def test_a_release_that_is_told_less_than_is_protected_publishes_nothing(device: str) -> None:
    manager = radix_manager(device)
    known = serve(manager, range(12))
    req = start(manager, range(20), 17)
    for way in (checkpoint_kv_cache, finish):
        req.token_ids = range(6)
        way(manager, req)
        assert cached_pages(manager) == set(known)
    assert len(free_pages(manager)) == 13


def test_only_what_is_committed_is_published(device: str) -> None:
    """SG-22862: resuming from a committed length frees the pages behind it and keeps the page it ends in."""
    manager = radix_manager(device, speculation=Speculation("dflash", 1, 1, 4))
    req = start(manager, range(20), 10)
    batch = Batch(manager, [req])
    alloc_for_spec_decode(manager, batch, 6)
    assert (req.kv.kv_committed_len, req.kv.kv_allocated_len) == (10, 16)
    checkpoint_kv_cache(manager, req)
    sound(manager)
    assert req.kv.cache_protected_len == 8
    pages = pages_of(manager, req)
    assert release_overallocated(manager, req) == 4
    sound(manager)
    extend(manager, [req], 11)
    assert pages_of(manager, req) == pages[:3]
    alloc_for_spec_decode(manager, batch, 8)
    commit(manager, batch, [3])
    finish(manager, req)
    assert (len(cached_pages(manager)), len(free_pages(manager))) == (3, 13)


def test_peek_changes_nothing_and_no_order_of_eviction(device: str) -> None:
    peeked, alone = radix_manager(device), radix_manager(device)
    for manager in (peeked, alone):
        for first in (0, 50, 80):
            serve(manager, range(first, first + 8))
    before = sound(peeked)
    for _ in range(3):
        assert peek_prefix(peeked, Req("", range(5))) == 4
        assert peek_prefix(peeked, Req("", range(9))) == 8
    assert sound(peeked) == before
    for _ in range(6):
        for manager in (peeked, alone):
            evict_from_tree_cache(manager, 4)
        assert np.array_equal(sound(peeked).cache, sound(alone).cache)


def test_jx_1000_what_is_protected_ends_at_a_page_when_a_chunk_does_not(device: str) -> None:
    manager = radix_manager(device)
    req = start(manager, range(12), 6)
    checkpoint_kv_cache(manager, req)
    assert (req.kv.cache_protected_len, len(cached_pages(manager))) == (4, 1)
    other = start(manager, range(12), 9)  # publishes [4, 8) first
    checkpoint_kv_cache(manager, other)
    extend(manager, [req], 9)
    mine = pages_of(manager, req)
    checkpoint_kv_cache(manager, req)
    sound(manager)
    assert pages_of(manager, req) == [*pages_of(manager, other)[:2], mine[2]]
    assert mine[1] in free_pages(manager)
    assert len(free_pages(manager)) == 16 - 2 - 2


def test_sg_35270_a_block_that_is_rewritten_after_it_was_published_is_not_published_again(device: str) -> None:
    manager = radix_manager(device)
    req = start(manager, range(8))
    checkpoint_kv_cache(manager, req)
    req.token_ids = [*range(4), 96, 97, 98, 99]
    checkpoint_kv_cache(manager, req)
    assert len(cached_pages(manager)) == 2
    finish(manager, req)
    assert (len(cached_pages(manager)), len(free_pages(manager))) == (2, 14)
    assert peek_prefix(manager, Req("", [*req.token_ids, 0])) == 4


@pytest.mark.parametrize("way", ["retract", "abort"])
def test_sg_38319_what_a_chunk_has_published_stays_cached_when_the_request_goes(device: str, way: str) -> None:
    manager = radix_manager(device)
    req = start(manager, range(20), 10)
    checkpoint_kv_cache(manager, req)
    published = set(pages_of(manager, req)[:2])
    if way == "retract":
        retract(manager, [req])
    else:
        release_kv_cache(manager, [req], checkpoint=False)
    assert cached_pages(manager) == published
    assert free_pages(manager) == set(range(1, 17)) - published
    extend(manager, [req], 20)
    assert req.kv.cache_protected_len == 8


def test_sg_24063_what_a_running_request_reads_is_not_given_to_another(device: str) -> None:
    manager = radix_manager(device, num_pages=6)
    req = start(manager, range(12), 8)
    checkpoint_kv_cache(manager, req)
    alloc_for_decode(manager, Batch(manager, [req]))
    assert evict_from_tree_cache(manager, 8) == 0
    other = start(manager, OTHER, 12)
    assert not set(pages_of(manager, other)) & set(pages_of(manager, req))


def test_without_a_prefix_cache_there_is_nothing_to_hit_to_publish_or_to_evict(device: str) -> None:
    from ..snapshots import snapshot

    manager = radix_manager(device, prefix_cache="none")
    req = Req("r", range(8))
    alloc_for_extend(manager, [req], [8])
    before = snapshot(manager)
    checkpoint_kv_cache(manager, req)
    assert (peek_prefix(manager, Req("", range(9))), evict_from_tree_cache(manager, 99)) == (0, 0)
    assert snapshot(manager) == before


def test_an_extra_key_is_hashable_and_stays(device: str) -> None:
    manager = radix_manager(device)
    assert bad_call(manager, lambda: Req("", range(8), ["salt"])) == (BadArgument, "extra_key")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        Req("", range(8)).extra_key = "salt"  # type: ignore[misc]
    assert cache_of(manager).roots == {}
