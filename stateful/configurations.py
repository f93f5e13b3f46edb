"""Configurations by small draws: from three pages up, most of them so small that every pool runs short.

config = configuration("engine", pages=3, rows=0, shape=12)
"""

from __future__ import annotations

from typing import Any

from ..hisparse import HiSparse
from ..sizing import Speculation
from ..window import Window
from .configuration import Configuration
from .subjects.protocol import Capabilities

CHOICES = 48
"""Each draw is 0..47; index 0 is the simplest choice of each table."""

EVERYTHING = Capabilities("slots", pools=("paged", "window", "hisparse"))
"""What kvcore's own allocator can be made with."""

PAGE_SIZES = (1, 4, 2, 1, 4, 8, 1, 16, 4, 2, 64, 32, 128, 4, 1, 8)
NUM_PAGES = (6, 9, 3, 12, 17, 24, 33, 64, 40, 48, 20, 8, 28, 40, 14, 48)
MAX_REQUESTS = (4, 3, 5, 6, 18, 8, 4, 17, 2, 20, 12, 5, 7, 1, 6, 4, 5, 8, 17, 6, 12, 18, 4, 20)
SPECULATION = (
    None,
    Speculation("eagle", steps=3, topk=1, draft_tokens=4),
    Speculation("dflash", steps=1, topk=1, draft_tokens=3),
    Speculation("eagle", steps=3, topk=2, draft_tokens=4),
    Speculation("eagle", steps=1, topk=1, draft_tokens=2),
    Speculation("eagle", steps=5, topk=4, draft_tokens=8),
    Speculation("dflash", steps=1, topk=1, draft_tokens=8),
    Speculation("eagle", steps=2, topk=4, draft_tokens=4),
)
"""EAGLE chains and trees, and DFlash blocks, small enough that a reserve of 2K fits a pool of a few pages."""

EVICTION = ("lru", "lfu", "lru", "fifo", "lfu")


def configuration(
    level: str,
    pages: int,
    rows: int,
    shape: int,
    *,
    checked: bool = False,
    device: str = "cpu",
    offered: Capabilities = EVERYTHING,
) -> Configuration:
    """The configuration of three draws in 0..CHOICES-1. The context is a few pages, off the page edge half the time.

    offered: what the subject can be made with; its page sizes, and at the level "slots" its pools, are kept to.
    """
    page_size = PAGE_SIZES[shape % len(PAGE_SIZES)]
    if page_size not in offered.page_sizes:
        page_size = offered.page_sizes[shape % len(offered.page_sizes)]
    max_requests = MAX_REQUESTS[rows % len(MAX_REQUESTS)]
    num_pages = NUM_PAGES[pages % len(NUM_PAGES)]
    context_pages = (3, 5, 2, 9)[(rows + pages) % 4]
    context_len = max(context_pages * page_size + (0, 1, -1, page_size // 2)[(pages + shape) % 4], 6)
    need_sort = (pages + rows) % 5 == 4
    if level == "slots":
        second = _second_pool(offered.pools[rows // 2 % len(offered.pools)], pages + shape, page_size, num_pages)
        return Configuration(
            page_size, num_pages, 1, context_len, device, need_sort=need_sort, checked=checked, level="slots", **second
        )
    if max_requests >= 17:  # Room for batches of 17, each with two pages or more.
        num_pages = max(num_pages, 48)
    prefix_cache = "none" if (shape + pages) % 3 == 0 else "radix"
    hisparse = None
    if prefix_cache == "none" and (rows + shape) % 3:
        hisparse = _hisparse(rows + pages, page_size, num_pages)
    return Configuration(
        page_size,
        num_pages,
        max_requests,
        context_len,
        device,
        prefix_cache=prefix_cache,
        need_sort=need_sort,
        window=_window(shape + 2 * rows + pages, page_size, num_pages, prefix_cache, beside=hisparse is not None),
        hisparse=hisparse,
        eviction=EVICTION[(rows + shape) % len(EVICTION)],
        speculation=SPECULATION[(shape + rows) % len(SPECULATION)],
        checked=checked,
    )


def _second_pool(pool: str, draw: int, page_size: int, num_pages: int) -> dict[str, Any]:
    """The pool beside the first at the level "slots": of a size that runs short before, with or after it."""
    size = (num_pages, max(num_pages * 2 // 3, 2), max(num_pages // 2, 2), num_pages + 3)[draw % 4]
    if pool == "window":
        return {"window": Window(page_size, size)}
    return {"hisparse": HiSparse(size, num_pages, page_size)} if pool == "hisparse" else {}


def _hisparse(draw: int, page_size: int, num_pages: int) -> HiSparse:
    """Device and host pools that run short before, with or after the logical one; buffers of up to a few pages."""
    device = (num_pages, max(num_pages // 2, 3), max(num_pages // 3, 3), max(num_pages * 2 // 3, 3))[draw % 4]
    host = (num_pages, max(num_pages // 2, 3), max(num_pages // 3, 2))[draw % 3]
    buffer = (4 * page_size, 1, 2 * page_size, 1, page_size)[draw % 5]  # what is resident has to grow, or to shrink
    return HiSparse(device, host, buffer, 4 if page_size % 4 == 0 and draw // 2 % 2 else 1)


def _window(draw: int, page_size: int, num_pages: int, prefix_cache: str, *, beside: bool) -> Window | None:
    """None for half of the draws; else mostly a second pool, of a size that runs short before, with or after the first,
    and a window below, at and above a page."""
    if draw % 2 == 0:
        return None
    draw //= 2
    size = (page_size, 1, page_size + 1, 2 * page_size, max(page_size - 1, 1), 3 * page_size)[draw % 6]
    interval = (0, 0, page_size, 1)[draw % 4]
    floor = (0, 1, 0, page_size + 1)[draw // 2 % 4] if prefix_cache == "none" else 0
    if draw % 7 == 5 and not beside:
        return Window(size, kind="pure", interval=interval, floor=floor)
    if draw % 14 == 6 and prefix_cache == "none" and not beside:
        return Window(size, kind="ring")
    pool = (num_pages, max(num_pages * 2 // 3, 2), max(num_pages - 2, 2), max(num_pages - 1, 2), num_pages + 3)[
        draw % 5
    ]
    return Window(size, pool, interval=interval, floor=floor)
