"""Faults of the kernels: one line of a kernel, edited. They break in the kernel lanes; the cpu lane has no kernel.

kvcore check --device interpret --subject kvcore.stateful.faults:kernel_forgets_the_earlier_tiles
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from textwrap import dedent
from types import ModuleType
from typing import Any

import torch

from ... import allocation
from ...allocators.paged import PagedAllocator
from ...kernels import alloc_decode, alloc_extend, decode_rows, get_last_loc
from ...kernels.jit import Kernel
from ..configuration import Configuration
from ..subjects.kvcore import kvcore
from ..subjects.lockstep import LockstepEngine, LockstepSlots
from ..subjects.protocol import Factory
from . import fault, replaced


def edited(kernel: Kernel, old: str, new: str) -> Kernel:
    """The kernel with `old`, which stands there once, replaced by `new` in its source."""
    source = dedent(inspect.getsource(kernel.function))
    source = source[source.index("def ") :]  # without the decorator
    assert source.count(old) == 1, f"{kernel.name}: {source.count(old)} times {old!r}"
    source = source.replace(old, new)
    original = kernel.function.__name__
    broken = f"broken_{original.removeprefix('broken_')}"  # counted apart from the sound one
    source = source.replace(f"def {original}(", f"def {broken}(")
    name = f"<{kernel.name}, edited: {new.strip().splitlines()[0]}>"
    source = "from __future__ import annotations\n" + source
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = dict(kernel.function.__globals__)
    exec(compile(source, name, "exec"), module)
    return Kernel(module[broken])


Edit = tuple[ModuleType, str, Kernel]
Edits = Callable[[], list[Edit]]


def enter(source: str, *clauses: str) -> Callable[[Edits], Factory]:
    """Enter a function that lists what to replace: (module, name of the kernel there, the broken kernel)."""

    def enter_edits(edits: Edits) -> Factory:
        broken = cache(edits)

        @contextmanager
        def kernels() -> Iterator[None]:
            with ExitStack() as stack:
                for module, name, kernel in broken():
                    stack.enter_context(replaced(module, name, kernel))
                yield

        def factory(config: Configuration) -> Any:
            if config.device == "cpu":
                return kvcore(config)
            return _Broken[config.level](config, kernels)

        factory.__name__, factory.__doc__ = edits.__name__, edits.__doc__
        factory.kernels = kernels  # type: ignore[attr-defined]  # where each kernel is checked alone
        entered: Factory = fault(source, *clauses, device="interpret")(factory)
        return entered

    return enter_edits


class _WithBrokenKernels:
    """A lockstep subject whose calls run with the broken kernels."""

    def __init__(self, config: Configuration, kernels: Callable[[], Any]) -> None:
        self.broken = kernels
        super().__init__(config)  # type: ignore[call-arg]

    def _both(self, name: str, *arguments: Any) -> Any:
        with self.broken():
            return super()._both(name, *arguments)  # type: ignore[misc]


class _BrokenEngine(_WithBrokenKernels, LockstepEngine):
    pass


class _BrokenSlots(_WithBrokenKernels, LockstepSlots):
    pass


_Broken: dict[str, Any] = {"engine": _BrokenEngine, "slots": _BrokenSlots}


@enter("sgl-project/sglang#13065", "KV-12", "KV-13")
def kernel_without_the_early_exit() -> list[Edit]:
    """An extend that stays inside its old page does not stop there and takes its slots from the free list. They are
    those of a page that another request gets."""
    edge = "    on_old_page = position < (prefix + (PAGE_SIZE - 1)) // PAGE_SIZE * PAGE_SIZE\n"
    without = edge + (
        "    begun = tl.load(first_token + owner, mask=valid, other=0)\n"
        "    follows = tl.load(first_token + owner + 1, mask=valid & (owner + 1 < batch), other=0)\n"
        "    stop = prefix + tl.where(owner + 1 < batch, follows, total) - begun\n"
        "    on_old_page = on_old_page & (stop >= (prefix + (PAGE_SIZE - 1)) // PAGE_SIZE * PAGE_SIZE)\n"
    )
    broken = edited(alloc_extend.alloc_extend_kernel, edge, without)
    # Page 0 instead of what lies before the list: nobody can say what memory that would be.
    broken = edited(
        broken, "mask=valid & (on_old_page == 0), other=0", "mask=valid & (on_old_page == 0) & (entry >= 0), other=0"
    )
    return [(alloc_extend, "alloc_extend_kernel", broken)]


@enter("sgl-project/sglang#34399", "KV-13", "KV-12")
def kernel_reads_past_the_free_list() -> list[Edit]:
    """Each token looks at the free-list entry behind its own as well. With the last free page that lies outside of the
    list."""
    load = "    page = tl.load(free_pages + entry, mask=valid & (on_old_page == 0), other=0).to(tl.int64)\n"
    ahead = (
        load
        + "    ahead = tl.load(free_pages + entry + 1, mask=valid & (on_old_page == 0), other=0)\n"
        + "    page = tl.where(entry < 0, ahead, page)\n"
    )
    return [(alloc_extend, "alloc_extend_kernel", edited(alloc_extend.alloc_extend_kernel, load, ahead))]


@enter("none known", "KV-12")
def kernel_forgets_the_earlier_tiles() -> list[Edit]:
    """The count of pages taken starts again with every tile of requests. From the second tile on requests get the pages
    of the first."""
    carry, restart = "        taken += tl.sum", "        taken = tl.sum"
    return [
        (alloc_decode, "alloc_decode_kernel", edited(alloc_decode.alloc_decode_kernel, carry, restart)),
        (decode_rows, "decode_rows_kernel", edited(decode_rows.decode_rows_kernel, carry, restart)),
    ]


@enter("seen in SGLang 0.5.23", "KV-12")
def kernel_loads_without_a_default() -> list[Edit]:
    """A masked load gives no value for the lanes that are masked off. A request without tokens then continues behind
    whatever stands there, and not behind -1."""
    with_default, without = "mask=length > 0, other=-1", "mask=length > 0"
    return [(get_last_loc, "get_last_loc_kernel", edited(get_last_loc.get_last_loc_kernel, with_default, without))]


@enter("sgl-project/sglang#39948", "KV-12")
def kernel_counts_slots_in_32_bits() -> list[Edit]:
    """Page times page size is computed in 32 bits. Above 2**31 the slots wrap, in the highest pages only."""
    wide, narrow = "page * PAGE_SIZE", "page.to(tl.int32) * PAGE_SIZE"
    return [(alloc_decode, "alloc_decode_kernel", edited(alloc_decode.alloc_decode_kernel, wide, narrow))]


@enter("seen in SGLang 0.5.23", "KV-12")
def kernel_takes_no_page_at_page_size_1() -> list[Edit]:
    """A request takes a page when its length leaves a remainder of one. At page size 1 no length does, and each request
    continues into its neighbour's slot."""
    right, wrong = "((seq_len - 1) & (PAGE_SIZE - 1)) == 0", "(seq_len & (PAGE_SIZE - 1)) == 1"
    return [(alloc_decode, "alloc_decode_kernel", edited(alloc_decode.alloc_decode_kernel, right, wrong))]


@enter("none known", "KV-12")
def kernel_leaves_out_the_last_of_an_odd_batch() -> list[Edit]:
    """The scan covers pairs of requests, so of a batch that is no multiple of two the last request is left out. Batches
    of powers of two, which tests like, never show it."""
    right, wrong = "valid = member < batch", "valid = member < batch // 2 * 2"
    return [(decode_rows, "decode_rows_kernel", edited(decode_rows.decode_rows_kernel, right, wrong))]


class _LaunchesFirst(LockstepEngine):
    """The device's extend launches its kernel and then looks at the room; the reference does it right."""

    def _both(self, name: str, *arguments: Any) -> Any:
        require_room = allocation.require_room

        def launch_first(manager: Any, plan: Any) -> None:
            free, pool = manager.allocator.free_list, manager.req_to_token_pool
            if manager is self.device.manager and plan.pages > free.count:
                manager.kernels.extend_rows(
                    pool.req_to_token, plan.rows, plan.start, plan.end, free.ids, free.head, manager.page_size
                )
            require_room(manager, plan)

        if name != "extend":
            return super()._both(name, *arguments)
        with replaced(allocation, "require_room", launch_first):
            return super()._both(name, *arguments)


@fault("sgl-project/sglang#34399", "KV-12", "KV-7", device="interpret")
def kernel_launched_before_the_check(config: Configuration) -> Any:
    """The kernel runs first, the demand is compared with what is free afterwards. The caller gets a tidy refusal, and
    the rows hold what the kernel found behind the free list."""
    if config.device == "cpu" or config.level == "slots":
        return kvcore(config)
    return _LaunchesFirst(config)


class _LooksForPages(LockstepEngine):
    """Both sides look for the distinct pages of what they release; only the device has to be waited for."""

    def _both(self, name: str, *arguments: Any) -> Any:
        give_back = PagedAllocator.give_back

        def distinct(allocator: PagedAllocator, pages: torch.Tensor) -> None:
            give_back(allocator, torch.unique(pages))

        if name != "release":
            return super()._both(name, *arguments)
        with replaced(PagedAllocator, "give_back", distinct):
            return super()._both(name, *arguments)


@fault("seen in SGLang 0.5.23", "KV-14", device="interpret")
def a_release_that_waits_for_the_device(config: Configuration) -> Any:
    """A release looks for the distinct pages of a finished request, and how many there are only the device knows. Every
    release makes the scheduler wait for whatever the GPU has in hand."""
    if config.device == "cpu" or config.level == "slots":
        return kvcore(config)
    return _LooksForPages(config)
