"""The contract as data: what every KV-cache allocator has to keep.

    from kvcore.contract import CONTRACT
    CONTRACT["KV-7"].sentence

An id never changes its meaning and is never used again. `asked` says of which subjects a clause is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True)
class Clause:
    """One clause: its id, its name, one sentence of what holds, and of whom it is asked."""

    id: str
    name: str
    sentence: str
    asked: str = "every subject"


CONTRACT = {
    clause.id: clause
    for clause in (
        Clause(
            "KV-1",
            "one owner",
            "Every page is in exactly one place: free, cached, private to one request, or quarantined.",
        ),
        Clause(
            "KV-2",
            "padding",
            "Page 0 and row 0 take the writes of padded lanes and are never handed out, freed or bound.",
        ),
        Clause(
            "KV-3",
            "layout",
            "A row holds one page for each page_size positions, at equal offsets, and an entry never changes.",
        ),
        Clause(
            "KV-4",
            "record",
            "0 <= protected <= committed <= allocated <= row width, and lengths move only inside the "
            "path that moves the pages.",
        ),
        Clause(
            "KV-5",
            "exact demand",
            "A call takes exactly the pages that its target lengths need and returns exactly the slots asked for.",
        ),
        Clause(
            "KV-6",
            "shortage",
            "A call is refused for lack of room if and only if its exact demand exceeds what is free "
            "and reclaimable in some pool.",
        ),
        Clause(
            "KV-7",
            "all or nothing",
            "After a refusal or an error everything is as before, bit for bit.",
        ),
        Clause(
            "KV-8",
            "release once",
            "Every private page comes back exactly once on every way out, and no page comes back while "
            "a live entry lies in it.",
        ),
        Clause(
            "KV-9",
            "cache and locks",
            "Only unlocked, unleased entries are evicted, leaves first, in the policy's order; locks are balanced.",
            "subjects with a prefix cache",
        ),
        Clause(
            "KV-10",
            "maps",
            "A slot is mapped if and only if its position has a peer; maps are injective and 0 on freed pages.",
            "subjects with a window or device map",
        ),
        Clause(
            "KV-11",
            "deferred frees",
            "A free group acts on the values at the time of each call; nesting or closing twice is "
            "refused and loses nothing.",
            "subjects with free groups",
        ),
        Clause(
            "KV-12",
            "agreement",
            "Every tensor that a device kernel produces equals the CPU reference's byte for byte.",
            "lockstep subjects",
        ),
        Clause(
            "KV-13",
            "bounds",
            "Nothing is written outside the batch's rows, the live free list and the outputs.",
        ),
        Clause(
            "KV-14",
            "no hidden cost",
            "An allocation path reads nothing back, compiles nothing anew and costs the same whatever the pool's size.",
            "kernel lanes",
        ),
        Clause(
            "KV-15",
            "bad input",
            "A call that cannot be right is refused with a typed error that names the argument, before any change.",
        ),
        Clause(
            "KV-16",
            "in flight",
            "A page under a lease is not handed out again until the lease ends.",
            "subjects with leases",
        ),
    )
}
