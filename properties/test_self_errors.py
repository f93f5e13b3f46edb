"""What a refusal carries: the requests that it is about, and all of itself into another process."""

from __future__ import annotations

import pickle

import pytest

from ..allocation import alloc_for_extend
from ..errors import BadArgument, DoubleFree, ForeignSlot, KVCacheError, KVCacheOutOfMemory, RowOverflow, StaleRow
from ..manager import Batch
from ..records import Req
from ..release import release_kv_cache
from .window_worlds import plain

ERRORS = [
    KVCacheOutOfMemory("window", 5, 3, 1),
    *(kind("KV-8", "reqs", "hold no row") for kind in (BadArgument, StaleRow, RowOverflow, DoubleFree, ForeignSlot)),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_out_of_another_process_as_it_was(error: KVCacheError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_shortage_is_counted_in_what_the_pool_consists_of() -> None:
    assert "needs 5 pages, 3 are free and 1 reclaimable" in str(KVCacheOutOfMemory("full", 5, 3, 1))
    assert "needs 5 rows, 3 are free and 0 reclaimable" in str(KVCacheOutOfMemory("rows", 5, 3))


def test_a_refusal_names_the_requests_that_it_is_about_and_no_others(device: str) -> None:
    manager, elsewhere = plain(device), plain(device)
    running, gone, new, foreign = (Req(rid, range(20)) for rid in ("running", "gone", "new", "foreign"))
    alloc_for_extend(manager, [running, gone], [5, 5])
    alloc_for_extend(elsewhere, [foreign], [5])
    release_kv_cache(manager, [gone], checkpoint=False)
    with pytest.raises(DoubleFree, match=r"\['gone'\] hold no row: released already"):
        release_kv_cache(manager, [running, gone], checkpoint=False)
    with pytest.raises(StaleRow, match=r"requests \['gone'\] hold no row"):
        Batch(manager, [running, gone])
    with pytest.raises(StaleRow, match=r"requests \['foreign'\] hold rows of another manager"):
        alloc_for_extend(manager, [running, foreign, new], [6, 6, 6])
