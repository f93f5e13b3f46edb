"""Checks your own kernel for one of the device operations against the reference.

    from kvcore.properties import check_kernel

    check_kernel("alloc_extend", my_alloc_extend, device="cuda")      # raises KernelMismatch, or returns

How an operation is called, with which dtypes and shapes, and who allocates the result: the table in
`kvcore.properties.operations`. Every byte is compared: the result, the rows, and what lies around them.

On the CPU, in the interpreter's lane too, each call runs in a child process, in memory that ends at a page without
access: a read past the end is found even where its value is not used. In the interpreter a lane of a masked load that
has no `other` reads rubbish, where a GPU may read 0 until it does not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ..kernels.dispatch import OPERATIONS, kernels_for
from .cases import WITH_WINDOW, Case
from .fences import Crashed, in_child
from .masked_loads import undefined_lanes
from .operations import by_reference, prepare
from .strategies import IN_ROWS, PAGE_SIZES, cases

LARGEST_BATCH = {"cpu": 1025, "interpret": 65, "cuda": 8192}
"""Of the drawn calls, by lane: in the interpreter a kernel with a program for each request takes 0.5 s for 65."""

MOST_RUNS = 400
"""Calls that making a counterexample smaller may take; it mostly needs less than 100."""


class KernelMismatch(AssertionError):
    """A call that goes wrong, made as small as possible: `op`, `case`, and in words `wrong`."""

    def __init__(self, op: str, case: Case, device: str, wrong: str) -> None:
        self.op, self.case, self.device, self.wrong = op, case, device, wrong
        call = prepare(op, case, device, expect=by_reference)
        super().__init__(f"{op}, device {device}: {wrong}\n\n{call}\n\nREPRO: {case}")


def check_kernel(
    op: str,
    fn: Callable[..., Any],
    device: str = "cpu",
    *,
    examples: int = 100,
    seed: int = 0,
    page_sizes: tuple[int, ...] = PAGE_SIZES,
    largest_batch: int | None = None,
) -> None:
    """Raise KernelMismatch with a minimal counterexample if `fn` is not operation `op` on `device`.

    device: "cpu", "interpret" (needs TRITON_INTERPRET=1 before Triton is imported), "cuda" or "cuda:K".
    examples: drawn calls, from `seed`; a few fixed large ones follow (a prompt of 126,000 tokens, a large batch).
    A function without a parameter `window` is called without one.
    largest_batch: of the drawn calls; None: LARGEST_BATCH.
    """
    found = find_mismatch(
        op, fn, device, examples=examples, seed=seed, page_sizes=page_sizes, largest_batch=largest_batch
    )
    if found is not None:
        raise found


def find_mismatch(
    op: str,
    fn: Callable[..., Any],
    device: str = "cpu",
    *,
    examples: int = 100,
    seed: int = 0,
    page_sizes: tuple[int, ...] = PAGE_SIZES,
    largest_batch: int | None = None,
    large: bool = True,
) -> KernelMismatch | None:
    """check_kernel that returns what it finds; without `large` the fixed large calls are left out."""
    if op not in OPERATIONS:
        raise ValueError(f"operation {op!r}: known are {', '.join(OPERATIONS)}")
    kernels_for(device)  # Refuses a lane that is not to be had here.
    lane = device.partition(":")[0]
    drawn = _draw(cases(op, page_sizes, largest_batch or LARGEST_BATCH[lane]), examples, seed)
    edges, largest = edge_cases(op, page_sizes), large_cases(lane, page_sizes) if large else []
    if op in WITH_WINDOW and takes_window(fn):
        edges += [replace(case, window=1) for case in edges]
        largest += [replace(case, window=1) for case in largest]
    elif op in WITH_WINDOW:
        drawn = [replace(case, window=None) for case in drawn]
    found = first_wrong(op, fn, device, edges + drawn + largest)
    if found is None:
        return None
    case = smallest(found[0], lambda case: first_wrong(op, fn, device, [case]) is not None)
    _, wrong = first_wrong(op, fn, device, [case]) or (case, f"{found[1]}: now and then, not when called again")
    return KernelMismatch(op, case, device, wrong)


def first_wrong(op: str, fn: Callable[..., Any], device: str, calls: list[Case]) -> tuple[Case, str] | None:
    """The first of `calls` that goes wrong, and how. On the CPU in one child process, which ends with it."""
    if device.startswith("cuda"):
        for case in calls:
            wrong = prepare(op, case, device, expect=by_reference).run(fn)
            if wrong is not None:
                return case, wrong
        return None

    def work(begin: Callable[[int], None]) -> tuple[Case, str] | None:
        with undefined_lanes() if device == "interpret" else nullcontext():
            for step, case in enumerate(calls):
                begin(step)
                wrong = prepare(op, case, device, walled=True, expect=by_reference).run(fn)
                if wrong is not None:
                    return case, wrong
        return None

    try:
        found: tuple[Case, str] | None = in_child(work)
    except Crashed as crash:
        return calls[crash.step], f"it {crash}: it reads or writes outside of its arguments"
    return found


def takes_window(fn: Callable[..., Any]) -> bool:
    """Whether `fn` says that it takes a window: by a parameter of this name."""
    try:
        return "window" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # It is built in, and says nothing.
        return False


def edge_cases(op: str, page_sizes: tuple[int, ...]) -> list[Case]:
    """Calls that no draw may miss: the smallest page size, and slots past 32 bits or up to the last that fits a row."""
    small, middle = page_sizes[0], page_sizes[len(page_sizes) // 2]
    top = 2**31 + 2**20 if op in ("alloc_extend", "alloc_decode") else IN_ROWS // middle - 1
    return [
        Case(small, ((0, 2), (1, 1), (2, 3))),
        Case(middle, ((0, middle + 1), (middle, 1)), top=top),
    ]


def large_cases(lane: str, page_sizes: tuple[int, ...]) -> list[Case]:
    """Calls of many tiles: one long prompt, and a batch past any tile."""
    page_size = page_sizes[len(page_sizes) // 2]
    batch = 513 if lane == "interpret" else 8191
    return [
        Case(page_size, ((0, 126_000),)),
        Case(page_size, ((page_size + 1, 125_000), (0, 1), (3, 0))),
        Case(page_size, ((3, 2), (0, 5), (page_size - 1, 1), (2 * page_size, 1), (1, 0)), batch=batch, order=7),
    ]


def _draw(strategy: st.SearchStrategy[Case], examples: int, seed: int) -> list[Case]:
    """`examples` draws, the same ones for the same seed."""
    drawn: dict[Case, None] = {}

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def remember(case: Case) -> None:
        drawn[case] = None

    remember()
    return list(drawn)


def smallest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """`case` made smaller in one respect after the other for as long as it fails."""
    tried = {case}
    again = True
    while again:
        again = False
        for smaller in _smaller(case):
            if smaller not in tried and len(tried) <= MOST_RUNS:
                tried.add(smaller)
                if fails(smaller):
                    case, again = smaller, True
                    break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases that are smaller than `case` in one respect, the greatest steps first."""
    members, page_size = case.members, case.page_size
    if case.batch is not None:
        for batch in sorted({1, case.batch // 2, case.batch - case.batch // 8, case.batch - 1} - {0, case.batch}):
            yield replace(case, batch=batch)
        if case.batch <= 64:
            yield replace(case, members=tuple((start, new) for start, new in case.lens.tolist()), batch=None)
    yield replace(case, window=None)
    yield replace(case, window=case.window and 0)
    yield replace(case, top=None)
    yield replace(case, order=0)
    yield replace(case, order=min(case.order, 1))
    yield replace(case, head=0)
    yield replace(case, gap=0)
    yield replace(case, lens_dtype="int64")
    for smaller_page in PAGE_SIZES:
        if smaller_page < page_size:
            yield replace(case, page_size=smaller_page)
    yield replace(case, members=tuple((0, new) for _, new in members))
    yield replace(case, members=tuple((start, 0) for start, _ in members))
    yield replace(case, members=tuple((start, min(new, 1)) for start, new in members))
    for count in sorted({len(members) // 2, len(members) // 4, 4, 3, 2, 1}, reverse=True):
        for low in range(0, len(members), count) if 0 < count < len(members) else ():
            yield replace(case, members=members[:low] + members[low + count :])
    for index, (start, new) in enumerate(members):
        less_of_one = [(less, new) for less in _less(start, page_size)] + [
            (start, less) for less in _less(new, page_size)
        ]
        for member in less_of_one:
            yield replace(case, members=(*members[:index], member, *members[index + 1 :]))


def _less(tokens: int, page_size: int) -> list[int]:
    """Smaller lengths to try, the smallest first."""
    steps = {0, tokens // 2, tokens - tokens // 8, tokens - page_size, tokens - 1}
    return sorted(step for step in steps if 0 <= step < tokens)
