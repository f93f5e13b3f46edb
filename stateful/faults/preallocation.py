"""Faults of pre-allocation: the record, the hole, the room that an eviction makes.

kvcore faults --only a_hole_freed_on_release
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ... import allocation, preallocation, release
from ...errors import KVCacheOutOfMemory
from ...manager import KVCacheManager
from ..subjects.kvcore import KvcoreEngine
from . import replaced
from .paths import enter, forget_record, require_room

_take_slots = allocation.take_slots


def recorded_too_early(manager: KVCacheManager, plan: Any) -> None:
    """The record of the row that comes next moves, then the room is looked at."""
    pool = manager.req_to_token_pool
    pool.records._move(pool.free_rows[-1:], plan.committed, plan.end)  # type: ignore[arg-type]
    require_room(manager, plan)


@enter("sgl-project/sglang#40309", "KV-6")
class a_preallocation_that_evicts_nothing(KvcoreEngine):
    """Admission counts what could be evicted, the pre-allocation looks at what is free. Once the cache fills the
    pool, a request passes the one and is refused by the other."""

    def prealloc(self, *call: Any) -> Any:
        def admit_then_look(manager: KVCacheManager, plan: Any) -> None:
            require_room(manager, plan)
            manager.allocator.require(plan.pages)

        with replaced(preallocation, "require_room", admit_then_look):
            return super().prealloc(*call)


@enter("sgl-project/sglang#29432", "KV-4")
class record_forgotten_in_prealloc(KvcoreEngine):
    """A pre-allocation takes its pages and leaves the record of its new row empty. The transfer fills pages that no
    release finds."""

    def prealloc(self, *call: Any) -> Any:
        with replaced(preallocation, "move_record", forget_record):
            return super().prealloc(*call)


@enter("sgl-project/sglang#29432", "KV-7")
class record_moved_before_the_check_in_prealloc(KvcoreEngine):
    """The lengths are recorded first and the room looked at afterwards. After a refusal a row that nobody holds has a
    length."""

    def prealloc(self, *call: Any) -> Any:
        with replaced(preallocation, "require_room", recorded_too_early):
            return super().prealloc(*call)


@enter("sgl-project/sglang#29432", "KV-3")
class the_tail_written_behind_the_hit(KvcoreEngine):
    """The row is written from the end of the hit where it should be from the end of the whole prefix. The slots are
    right, and they stand in the hole."""

    def prealloc(self, *call: Any) -> Any:
        def from_the_hit(manager: KVCacheManager, plan: Any) -> Any:
            hole = plan.start - manager.req_to_token_pool.records.protected[plan.rows]
            tail = None if plan.window_from is None else plan.window_from - int(hole[0])
            return _take_slots(manager, replace(plan, start=plan.start - hole, end=plan.end - hole, window_from=tail))

        with replaced(preallocation, "take_slots", from_the_hit):
            return super().prealloc(*call)


@enter("none known", "KV-7", "KV-9")
class recency_moved_by_a_refused_prealloc(KvcoreEngine):
    """Looking for the hit marks it as used before anybody knows whether there is room. A request that is refused again
    and again keeps its prefix from eviction."""

    def prealloc(self, *call: Any) -> Any:
        def a_use(manager: KVCacheManager, plan: Any) -> None:
            try:
                require_room(manager, plan)
            except KVCacheOutOfMemory:
                for hit in plan.hits:
                    if hit.pages and manager.tree_cache is not None:
                        manager.tree_cache.clock += 1
                        manager.tree_cache._touch(hit.path[-1][0])
                raise

        with replaced(preallocation, "require_room", a_use):
            return super().prealloc(*call)


@enter("none known", "KV-2", "KV-8")
class a_hole_freed_on_release(KvcoreEngine):
    """A pre-allocated request is aborted before its prefix has come, and its hole is freed with the rest. Whatever the
    row's last owner left there is freed, too."""

    def release(self, *call: Any) -> Any:
        def through_the_hole(manager: KVCacheManager, rows: Any) -> Any:
            return manager.req_to_token_pool.records.protected[rows]

        with replaced(release, "private_from", through_the_hole):
            return super().release(*call)


@enter("none known", "KV-9", "KV-10")
class a_hole_published_on_release(KvcoreEngine):
    """What a pre-allocated request has committed is published although its prefix has not come. The pages behind the
    hole are cached under tokens before it."""

    def release(self, *call: Any) -> Any:
        def all_committed(manager: KVCacheManager, reqs: Any, rows: Any) -> Any:
            lens = manager.req_to_token_pool.records.committed[rows].tolist()
            cache = manager.tree_cache
            return cache and [cache.key(req.token_ids, length) for req, length in zip(reqs, lens, strict=True)]

        with replaced(release, "publishable", all_committed):
            return super().release(*call)
