"""The slot allocator: pages of `page_size` tokens from one pool, every page size from 1 up.

    allocator = PagedAllocator(num_pages=256, page_size=16)
    slots = allocator.alloc_extend(prefix_lens=[0], seq_lens=[40], last_loc=torch.tensor([-1]))
    slot = allocator.alloc_decode(seq_lens=[41], last_loc=slots[-1:])
    allocator.free_segment(torch.cat([slots, slot]), start_pos=0)

slot = page * page_size + offset. Page 0 takes the writes of padded lanes and is never handed out. Lengths are host
integers, given once: there is no device copy of them that could disagree. Every call is all or nothing.
In checked mode the allocator also knows how many slots of each page are handed out, and refuses what only the
values of a slot tensor can tell: a double free, a foreign slot, a page freed in pieces.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .. import arguments
from ..errors import BadArgument, DoubleFree, ForeignSlot, KVCacheOutOfMemory
from ..kernels.alloc_decode import starts_a_page
from ..kernels.alloc_extend import new_pages
from ..kernels.devices import tensor_device
from ..kernels.dispatch import kernels_for
from .free_list import FreeList


class Growth(NamedTuple):
    """A checked call: positions [prefix, seq) of each request, whose last slots are last_loc, take so many `pages`."""

    prefix: NDArray[np.int64]
    seq: NDArray[np.int64]
    last_loc: torch.Tensor
    pages: int


class PagedAllocator:
    """Hands out slots of pages 1..num_pages. The tensors it returns belong to the caller, and so do those passed in."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        device: str = "cpu",
        checked: bool = True,
        *,
        need_sort: bool = False,
        pool: str = "full",
    ) -> None:
        self.num_pages, self.page_size, self.device, self.pool = num_pages, page_size, device, pool
        self.kernels = kernels_for(device)
        self.free_list = FreeList(num_pages, tensor_device(device), need_sort)
        self.queued: list[torch.Tensor] | None = None  # what an open free group holds
        # Slots handed out of each page: offsets 0..handed_out[page]-1. None: unchecked.
        self.handed_out: NDArray[np.int64] | None = np.zeros(num_pages + 1, np.int64) if checked else None

    def available_size(self) -> int:
        """Free tokens: whole free pages, known on the host."""
        return self.free_list.count * self.page_size

    def require(self, pages: int, reclaimable: int = 0) -> None:
        """KVCacheOutOfMemory if fewer than `pages` pages are free, or could be made free (KV-6)."""
        if pages > self.free_list.count + reclaimable:
            raise KVCacheOutOfMemory(self.pool, pages, self.free_list.count, reclaimable)

    def alloc(self, need_size: int) -> torch.Tensor:
        """`need_size` tokens in whole pages: slots int64[need_size], page by page. A page multiple only (KV-15)."""
        count = self.pages_for(need_size)
        self.require(count)
        pages = self.free_list.pop(count)
        self._mark(pages, self.page_size)
        return self.slots_of(pages)

    def pages_for(self, need_size: int) -> int:
        """The pages of `need_size` tokens, a page multiple (KV-15)."""
        need_size = arguments.integer("need_size", need_size, 0)
        if need_size % self.page_size:
            raise BadArgument("KV-15", "need_size", f"is {need_size}, no multiple of the page size {self.page_size}")
        return need_size // self.page_size

    def alloc_extend(self, prefix_lens: Any, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
        """Slots for positions [prefix, seq) of each request, int64[sum(seq - prefix)], request-major.

        prefix_lens, seq_lens: host integers, tokens, prefix <= seq. last_loc: int64[bs], the slot of position
        prefix - 1, or -1 where the prefix is 0. Raises BadArgument, ForeignSlot (checked), KVCacheOutOfMemory.
        """
        growth = self.plan_extend(prefix_lens, seq_lens, last_loc)
        self.require(growth.pages)
        return self.extend(growth)

    def alloc_decode(self, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
        """The slot of position seq - 1 of each request, int64[bs]; seq_lens count the new token (>= 1).

        last_loc: int64[bs], the slot of position seq - 2, or -1 at length 1. Raises as alloc_extend does.
        """
        growth = self.plan_decode(seq_lens, last_loc)
        self.require(growth.pages)
        return self.decode(growth)

    # A call in two steps, for those that take from several pools and have to ask each before they change any.

    def plan_extend(self, prefix_lens: Any, seq_lens: Any, last_loc: torch.Tensor) -> Growth:
        """What an extend takes; changes nothing. Raises what cannot be right."""
        prefix = arguments.lengths("prefix_lens", prefix_lens)
        seq = arguments.lengths("seq_lens", seq_lens, len(prefix))
        last_loc = arguments.slots("last_loc", last_loc, len(prefix), self.free_list.ids)
        if (seq < prefix).any():
            raise BadArgument("KV-15", "seq_lens", f"{seq.tolist()} lie below prefix_lens {prefix.tolist()}")
        self._check_last_loc(prefix, seq, last_loc)
        return Growth(prefix, seq, last_loc, int(new_pages(prefix, seq, self.page_size).sum()))

    def extend(self, growth: Growth) -> torch.Tensor:
        """The slots of an extend for whose pages there is room."""
        prefix, seq, last_loc, count = growth
        head = self.free_list.advance(count)
        out = self.kernels.alloc_extend(prefix, seq, last_loc, self.free_list.ids, head, self.page_size)
        self._mark_ends(prefix, seq, out)
        return out

    def plan_decode(self, seq_lens: Any, last_loc: torch.Tensor) -> Growth:
        """What a decode takes; changes nothing. Raises what cannot be right."""
        seq = arguments.lengths("seq_lens", seq_lens)
        last_loc = arguments.slots("last_loc", last_loc, len(seq), self.free_list.ids)
        if (seq < 1).any():
            raise BadArgument("KV-15", "seq_lens", f"{seq.tolist()} hold a length below 1, which has no new token")
        self._check_last_loc(seq - 1, seq, last_loc)
        return Growth(seq - 1, seq, last_loc, int(np.count_nonzero(starts_a_page(seq, self.page_size))))

    def decode(self, growth: Growth) -> torch.Tensor:
        """The slots of a decode for whose pages there is room."""
        prefix, seq, last_loc, count = growth
        head = self.free_list.advance(count)
        out = self.kernels.alloc_decode(seq, last_loc, self.free_list.ids, head, self.page_size)
        self._mark_ends(prefix, seq, out)
        return out

    def free(self, slots: torch.Tensor) -> None:
        """Give back whole pages by a set of slots, which has to name every handed-out slot of each page it touches.

        Looks for the pages with `unique`: on a GPU that synchronises. A row's segment is better freed as one.
        """
        self._push(self.pages_of_set(slots))

    def pages_of_set(self, slots: torch.Tensor) -> torch.Tensor:
        """The pages that a set of slots names, int64[k]; raises what `free` refuses. Synchronises on a GPU."""
        slots = arguments.slots("slots", slots, None, self.free_list.ids)
        self._check_set(slots)
        # Ascending ids, the lowest on top: the next allocation gets the lowest page of the set first.
        pages: torch.Tensor = torch.unique(slots // self.page_size)
        return pages

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        """Give back row[start_pos:start_pos + len(slots)] of one request; nothing is searched, nothing synchronises.

        start_pos: tokens, page aligned. The end may lie mid-page; the last page goes back whole.
        """
        self._push(self.pages_of_segment(slots, start_pos))

    def pages_of_segment(self, slots: torch.Tensor, start_pos: int) -> torch.Tensor:
        """The pages of a row segment, int64[k]; raises what `free_segment` refuses."""
        slots = arguments.slots("slots", slots, None, self.free_list.ids)
        start_pos = arguments.integer("start_pos", start_pos, 0)
        if start_pos % self.page_size:
            raise BadArgument(
                "KV-15", "start_pos", f"is {start_pos}; a segment starts on a multiple of {self.page_size}"
            )
        self._check_set(slots)
        self._check_segment(slots)
        pages: torch.Tensor = slots[:: self.page_size] // self.page_size
        return pages

    def free_group_begin(self) -> None:
        """From here on, what is freed is queued, and available when the group closes. A second begin is refused."""
        self.require_group(False)
        self.queued = []

    def free_group_end(self) -> None:
        """Close the group: what was freed in it is available. An end without a begin is refused."""
        self.require_group(True)
        queued, self.queued = self.queued, None
        if queued:
            self.free_list.push(torch.cat(queued))

    def require_group(self, is_open: bool) -> None:
        """BadArgument unless a free group is open, or unless none is."""
        if is_open != (self.queued is not None):
            wrong = "is not open" if is_open else "is open already; groups do not nest"
            raise BadArgument("KV-11", "free_group", wrong)

    def clear(self) -> None:
        """Take everything back: all pages free, in ascending order. An open group stays open, with nothing queued."""
        self.free_list.clear()
        if self.queued is not None:
            self.queued = []
        if self.handed_out is not None:
            self.handed_out[:] = 0

    # What the paths of the manager use: whole pages, their ids read by a kernel.

    def take(self, count: int) -> int:
        """Commit to `count` <= free pages, whose ids a kernel reads at free_list.ids[head:]; returns that head."""
        head = self.free_list.advance(count)
        if self.handed_out is not None:
            self._mark(self.free_list.ids[head : head + count], self.page_size)
        return head

    def give_back(self, pages: torch.Tensor) -> None:
        """Push pages (int64[k], each once) that their owner has counted exactly."""
        if self.handed_out is not None:
            ids = pages.cpu().numpy()
            self._refuse_outside(ids, "pages")
            if (self.handed_out[ids] == 0).any() or len(np.unique(ids)) != len(ids):
                raise DoubleFree("KV-8", "pages", f"{ids.tolist()} hold a page that is not handed out, or twice")
        self._push(pages)

    def _push(self, pages: torch.Tensor) -> None:
        """`pages` were computed by this call: nothing that the caller can still change stands behind them."""
        if self.queued is None:
            self.free_list.push(pages)
        else:
            held = sum(map(len, self.queued)) + len(pages)
            if held > self.num_pages - self.free_list.count:
                raise DoubleFree("KV-8", "pages", f"{held} pages come back in the group, fewer are handed out")
            self.queued.append(pages)
        self._mark(pages, 0)

    def slots_of(self, pages: torch.Tensor) -> torch.Tensor:
        """The slots of whole pages, int64[k * page_size], page by page."""
        offsets = torch.arange(self.page_size, dtype=torch.int64, device=pages.device)
        return (pages[:, None] * self.page_size + offsets).reshape(-1)

    def _mark(self, pages: torch.Tensor, handed_out: int) -> None:
        if self.handed_out is not None:
            self.handed_out[pages.cpu().numpy()] = handed_out

    def _mark_ends(self, prefix: NDArray[np.int64], seq: NDArray[np.int64], out: torch.Tensor) -> None:
        """After an extend: its pages are full, but each request's last one ends where the request does."""
        if self.handed_out is None or not len(out):
            return
        ids = out.cpu().numpy()
        self.handed_out[ids // self.page_size] = self.page_size
        ends = np.cumsum(seq - prefix)[seq > prefix] - 1
        self.handed_out[ids[ends] // self.page_size] = ids[ends] % self.page_size + 1

    def _refuse_outside(self, ids: NDArray[np.int64], name: str) -> None:
        if (ids == 0).any():
            raise ForeignSlot("KV-2", name, "holds the padding page, which is never handed out")
        if ((ids < 0) | (ids > self.num_pages)).any():
            raise ForeignSlot("KV-15", name, f"lies outside pages 1..{self.num_pages}")

    def _check_last_loc(self, prefix: NDArray[np.int64], seq: NDArray[np.int64], last_loc: torch.Tensor) -> None:
        if self.handed_out is None:
            return
        last = last_loc.cpu().numpy()
        if (last[prefix == 0] != -1).any():
            raise BadArgument("KV-15", "last_loc", f"{last.tolist()}: a request without a prefix has last_loc -1")
        has_prefix = prefix > 0
        last, offset = last[has_prefix], (prefix[has_prefix] - 1) % self.page_size
        if (last < 0).any():
            raise BadArgument("KV-15", "last_loc", "is negative where there is a prefix")
        pages = last // self.page_size
        self._refuse_outside(pages, "last_loc")
        if (last % self.page_size != offset).any():
            raise BadArgument("KV-15", "last_loc", f"{last.tolist()} disagree with prefix_lens {prefix.tolist()}")
        if (self.handed_out[pages] != offset + 1).any():
            raise ForeignSlot("KV-15", "last_loc", "is not the last slot handed out of its page")
        if len(np.unique(pages)) != len(pages):
            raise BadArgument("KV-15", "last_loc", "names a page twice")

    def _check_set(self, slots: torch.Tensor) -> None:
        if self.handed_out is None:
            return
        ids = slots.cpu().numpy()
        pages = ids // self.page_size
        self._refuse_outside(pages, "slots")
        if (self.handed_out[pages] == 0).any():
            raise DoubleFree("KV-8", "slots", f"{ids.tolist()} hold a slot of a page that is free")
        if (ids % self.page_size >= self.handed_out[pages]).any():
            raise ForeignSlot("KV-15", "slots", f"{ids.tolist()} hold a slot that was not handed out")
        if len(np.unique(ids)) != len(ids):
            raise BadArgument("KV-15", "slots", f"{ids.tolist()} name a slot twice")
        touched, named = np.unique(pages, return_counts=True)
        if (self.handed_out[touched] != named).any():
            raise BadArgument("KV-15", "slots", "leave out slots of a page that they touch; the page would go whole")

    def _check_segment(self, slots: torch.Tensor) -> None:
        if self.handed_out is None:
            return
        ids = slots.cpu().numpy()
        position = np.arange(len(ids))
        first = ids[position - position % self.page_size]
        if (first % self.page_size != 0).any() or (ids != first + position % self.page_size).any():
            raise BadArgument(
                "KV-15", "slots", f"{ids.tolist()} are no row segment: one page for {self.page_size} positions"
            )
