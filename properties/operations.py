"""The device operations: how each is called, and what it has to give.

    call = prepare("alloc_extend", case, device="cpu")
    call.run(fn)                     # None, or in words what is not as the oracle says

| operation                | called as |
|---|---|
| get_last_loc             | fn(req_to_token, req_pool_indices, lens, out) |
| alloc_extend             | fn(prefix_lens, seq_lens, last_loc, free_pages, page_size, out) |
| alloc_decode             | fn(seq_lens, last_loc, free_pages, page_size, out) |
| assign_req_to_token_pool | fn(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc) |
| gather_pages             | fn(req_to_token, rows, start, end, page_size) -> pages |
| extend_rows              | fn(req_to_token, rows, start, end, free_ids, head, page_size) -> slots |
| decode_rows              | fn(req_to_token, rows, lens, free_ids, head, page_size) -> slots |
| write_pages              | fn(req_to_token, rows, start, end, pages, page_size) |
| take_window_pages        | fn(window_map, pages) -> window_pages |

The first four are kernels on their own: every tensor is on the device, rows and lengths are int32[bs] or int64[bs]
(both are tried), last_loc is int64[bs], free_pages int64 and begins at the list's head at any offset, and `out`, int64,
is allocated by the caller and filled. The others are one step of a path: rows and lengths are numpy int64[bs] on
the host, which knows them, free_ids is the free list's whole tensor with its head, and the result, int64, is allocated
by the function. req_to_token is int32[rows, row_width], its rows may lie apart; the written entries change in place.

start, prefix_lens, lens: tokens before the call; end, seq_lens: after it, for alloc_decode one more. page_size: an int.
`gather_pages` gets whole rows: its start is 0 or a page multiple. A call reads exactly the free-list entries it takes.
`write_pages` gets whole pages: start and end are page multiples, and `pages`, int64[sum(end - start) / page_size] on
the device at any offset, holds the requests' pages one behind the other; requests may share pages.

extend_rows and decode_rows are called with `window=WindowPages(ids, head, map)` as well where there is a window, and
without it where there is none: the k-th page that the call takes is mapped to ids[head + k]. `map`, and `window_map` of
take_window_pages, is int64[highest page + 1], page -> window page, 0 where it has none. take_window_pages gives the
window pages of `pages`, int64, distinct, at any offset, and sets their entries to 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels.alloc_decode import alloc_decode_reference
from ..kernels.alloc_extend import alloc_extend_reference, token_positions
from ..kernels.assign_req_to_token_pool import assign_req_to_token_pool_reference
from ..kernels.decode_rows import decode_rows_reference
from ..kernels.devices import tensor_device
from ..kernels.extend_rows import extend_rows_reference
from ..kernels.gather_pages import gather_pages_reference
from ..kernels.get_last_loc import get_last_loc_reference
from ..kernels.take_window_pages import take_window_pages_reference
from ..kernels.window import WindowPages
from ..kernels.write_pages import write_pages_reference
from . import oracle
from .cases import CANARY, Case, State
from .fences import Fence, fenced

Int64 = NDArray[np.int64]


class Expected(NamedTuple):
    """What a call gives (None: nothing), and req_to_token and the window map after it (None: the call has none)."""

    slots: Int64 | None
    table: NDArray[np.int32] | None = None
    window_map: Int64 | None = None


ON_THE_DEVICE = ("get_last_loc", "alloc_extend", "alloc_decode", "assign_req_to_token_pool")
"""Operations whose rows and lengths are tensors; those of the others are on the host."""


def by_reference(op: str, state: State) -> Expected:
    """What the CPU reference in kernels/ gives."""
    page_size, pages = state.case.page_size, state.free_pages
    rows, start, end = state.rows, state.start, state.end
    if op == "alloc_extend":
        return Expected(alloc_extend_reference(start, end, state.last_loc, pages, page_size))
    if op == "alloc_decode":
        return Expected(alloc_decode_reference(end, state.last_loc, pages, page_size))
    window_map = state.window_map() if state.has_window_map else None
    if op == "take_window_pages":
        assert window_map is not None
        return Expected(take_window_pages_reference(window_map, pages), window_map=window_map)
    table = state.table()
    if op == "get_last_loc":
        return Expected(get_last_loc_reference(table, rows, start), table)
    if op == "gather_pages":
        return Expected(gather_pages_reference(table, rows, first_gathered(state), start, page_size), table)
    if op == "assign_req_to_token_pool":
        assign_req_to_token_pool_reference(rows, table, start, end, slots_to_assign(state))
        return Expected(None, table)
    if op == "write_pages":
        write_pages_reference(table, rows, start, end, pages_to_write(state), page_size)
        return Expected(None, table)
    window = None
    if window_map is not None:
        window = WindowPages(torch.from_numpy(state.free_window_pages), 0, torch.from_numpy(window_map))
    if op == "extend_rows":
        return Expected(extend_rows_reference(table, rows, start, end, pages, page_size, window), table, window_map)
    return Expected(decode_rows_reference(table, rows, start, pages, page_size, window), table, window_map)


def by_oracle(op: str, state: State) -> Expected:
    """What the walk token by token gives."""
    page_size, pages = state.case.page_size, state.free_pages.tolist()
    rows, start, end = state.rows.tolist(), state.start.tolist(), state.end.tolist()
    if op in ("alloc_extend", "alloc_decode"):
        last_loc = state.last_loc.tolist()
        if op == "alloc_extend":
            return Expected(as_int64(oracle.alloc_extend(start, end, last_loc, pages, page_size)))
        return Expected(as_int64(oracle.alloc_decode(end, last_loc, pages, page_size)))
    window_map: list[int] | None = state.window_map().tolist() if state.has_window_map else None
    if op == "take_window_pages":
        assert window_map is not None
        taken = oracle.take_window_pages(window_map, pages)
        return Expected(as_int64(taken), window_map=as_int64(window_map))
    table = state.table().tolist()
    slots, window_pages = None, state.free_window_pages.tolist()
    if op == "get_last_loc":
        slots = oracle.get_last_loc(table, rows, start)
    elif op == "gather_pages":
        slots = oracle.gather_pages(table, rows, first_gathered(state).tolist(), start, page_size)
    elif op == "assign_req_to_token_pool":
        oracle.assign_req_to_token_pool(rows, table, start, end, slots_to_assign(state).tolist())
    elif op == "write_pages":
        oracle.write_pages(table, rows, start, end, pages_to_write(state).tolist(), page_size)
    elif op == "extend_rows":
        slots = oracle.extend_rows(table, rows, start, end, pages, page_size, window_map, window_pages)
    else:
        slots = oracle.decode_rows(table, rows, start, pages, page_size, window_map, window_pages)
    return Expected(
        None if slots is None else as_int64(slots),
        np.array(table, dtype=np.int32),
        None if window_map is None else as_int64(window_map),
    )


def as_int64(values: list[int]) -> Int64:
    return np.array(values, dtype=np.int64)


def first_gathered(state: State) -> Int64:
    """Where gather_pages begins in each row: at 0, or, in every other row, at its last page."""
    page_size = state.case.page_size
    last_page = np.maximum(state.start - 1, 0) // page_size * page_size
    return np.where(np.arange(len(state.start)) % 2, last_page, 0)


def slots_to_assign(state: State) -> Int64:
    """What assign_req_to_token_pool writes: the slots that an extend would give."""
    return alloc_extend_reference(state.start, state.end, state.last_loc, state.free_pages, state.case.page_size)


def pages_to_write(state: State) -> Int64:
    """What write_pages writes: pages of their own, but every third request shares a prefix with the first one."""
    pages = state.free_pages
    owner, rank = token_positions(np.zeros_like(state.start), (state.end - state.start) // state.case.page_size)
    return np.where(owner % 3 == 2, pages[rank], pages)


@dataclass
class Call:
    """A prepared call: its arguments by name, what it has to give, and the fences around what it may touch."""

    op: str
    case: Case
    state: State
    expected: Expected
    arguments: dict[str, Any] = field(default_factory=dict)
    fences: dict[str, Fence] = field(default_factory=dict)

    def run(self, fn: Callable[..., Any]) -> str | None:
        """Call `fn`; what is wrong with what it did, or None."""
        before = {name: fence.values() for name, fence in self.fences.items()}
        named = {name: value for name, value in self.arguments.items() if name == "window"}
        try:
            given = fn(*(value for name, value in self.arguments.items() if name not in named), **named)
            self._wait()
        except Exception as error:
            return f"it raises {type(error).__name__}: {error}"
        return self._wrong(given, before)

    def _wait(self) -> None:
        """Let a kernel that is still running finish or fail here."""
        if any(fence.tensor.is_cuda for fence in self.fences.values()):
            torch.cuda.synchronize()

    def _wrong(self, given: Any, before: dict[str, NDArray[Any]]) -> str | None:
        slots, table, window_map = self.expected
        if slots is not None:
            if "out" in self.fences:
                got = self.fences["out"].values()
            else:
                if not isinstance(given, torch.Tensor):
                    return f"it returns {given!r}, which is no tensor"
                if given.dtype != torch.int64 or given.shape != slots.shape:
                    return f"it returns {given.dtype}{list(given.shape)}, expected torch.int64{list(slots.shape)}"
                got = given.cpu().numpy()
            if (got != slots).any():
                return self._first_difference(slots, got)
        after: dict[str, NDArray[Any] | None] = {"req_to_token": table, "window_map": window_map}
        for name, fence in self.fences.items():
            now, right = fence.values(), after.get(name)
            if right is not None:
                if (now != right).any():
                    index = tuple(np.argwhere(now != right)[0].tolist())
                    where = ", ".join(map(str, index))
                    return f"{name}[{where}] is {shown(now[index])}, expected {shown(right[index])}"
            elif name != "out" and (now != before[name]).any():
                return f"it changes its input {name}"
            if not fence.intact:
                return f"it writes outside of {name}"
        return None

    def _first_difference(self, slots: Int64, got: Int64) -> str:
        index = int(np.flatnonzero(got != slots)[0])
        found = f"{'out' if 'out' in self.fences else 'the result'}[{index}]"
        counts = self.state.end - self.state.start
        if self.op in ("alloc_extend", "extend_rows"):
            member = int(np.searchsorted(np.cumsum(counts), index, side="right"))
            position = int(self.state.start[member] + index - (np.cumsum(counts) - counts)[member])
            found += f" (request {member}, position {position})"
        many = int((got != slots).sum())
        others = f"; {many} of {len(slots)} differ" if many > 1 else ""
        return f"{found} is {shown(got[index])}, expected {slots[index]}{others}"

    def __str__(self) -> str:
        shown_ones = {name: value for name, value in self.arguments.items() if name != "out"}
        if window := shown_ones.pop("window", None):
            shown_ones |= {f"window.{name}": value for name, value in window._asdict().items()}
        lines = [f"    {name} = {as_map(v) if name.endswith('map') else as_text(v)}," for name, v in shown_ones.items()]
        slots, _, window_map = self.expected
        expected = [] if slots is None else [f"expected: {as_text(slots)}"]
        if window_map is not None:
            expected.append(f"and the map then: {as_map(window_map)}")
        return "\n".join([f"{self.op}(", *lines, ")", *expected])


def shown(value: Any) -> str:
    """A value, with a word on what stands in it."""
    return f"{value} (nothing was written there, or it was read from outside)" if value == CANARY else str(value)


def as_text(value: Any, longest: int = 24) -> str:
    """A tensor or array on one line: values, dtype; long ones are cut."""
    if isinstance(value, torch.Tensor):
        value = value.cpu().numpy()
    if not isinstance(value, np.ndarray):
        return repr(value)
    if value.ndim == 2:
        held = (value != CANARY).any(axis=1)
        rows = {int(row): value[row][value[row] != CANARY].tolist() for row in np.flatnonzero(held)[:longest]}
        return f"{rows}  # {value.dtype}{list(value.shape)}, by row; the other entries are unused"
    cut = "" if len(value) <= longest else f" ... {len(value)} in all"
    return f"{value[:longest].tolist()}{cut}  # {value.dtype}"


def as_map(value: Any, longest: int = 24) -> str:
    """A window map on one line: the entries that are not 0."""
    values = value.cpu().numpy() if isinstance(value, torch.Tensor) else value
    mapped = np.flatnonzero(values)
    entries = {int(page): int(values[page]) for page in mapped[:longest]}
    cut = "" if len(mapped) <= longest else f" ... {len(mapped)} in all"
    return f"{entries}{cut}  # {values.dtype}[{len(values)}], the other entries are 0"


def prepare(op: str, case: Case, device: str, *, walled: bool = False, expect: Any = by_oracle) -> Call:
    """The call of `op` that `case` describes, in fenced memory of `device`. expect: by_oracle or by_reference."""
    state = State(case, op)
    call = Call(op, case, state, expect(op, state))
    where = tensor_device(device)

    def lay(name: str, values: NDArray[Any], before: int | None = None, gap: int = 0) -> torch.Tensor:
        fence = fenced(values, where, walled=walled, gap=gap, **({} if before is None else {"before": before}))
        call.fences[name] = fence
        return fence.tensor

    def put(name: str, values: NDArray[Any], before: int | None = None, gap: int = 0) -> None:
        call.arguments[name] = lay(name, values, before, gap)

    def put_lens(name: str, values: Int64) -> None:
        if op in ON_THE_DEVICE:
            put(name, values.astype(case.lens_dtype))
        else:
            call.arguments[name] = values.copy()

    def put_table() -> None:
        put("req_to_token", state.table(), gap=case.gap)

    if op in ("alloc_extend", "alloc_decode"):
        if op == "alloc_extend":
            put_lens("prefix_lens", state.start)
        put_lens("seq_lens", state.end)
        put("last_loc", state.last_loc)
        put("free_pages", state.free_pages, before=1 + case.head)
        call.arguments["page_size"] = case.page_size
    elif op == "assign_req_to_token_pool":
        put_lens("req_pool_indices", state.rows)
        put_table()
        put_lens("start_offset", state.start)
        put_lens("end_offset", state.end)
        put("out_cache_loc", slots_to_assign(state))
    elif op == "get_last_loc":
        put_table()
        put_lens("req_pool_indices", state.rows)
        put_lens("lens", state.start)
    elif op == "take_window_pages":
        put("window_map", state.window_map())
        put("pages", state.free_pages, before=1 + case.head)
    else:
        put_table()
        put_lens("rows", state.rows)
        if op == "gather_pages":
            put_lens("start", first_gathered(state))
            put_lens("end", state.start)
        elif op == "write_pages":
            put_lens("start", state.start)
            put_lens("end", state.end)
            put("pages", pages_to_write(state), before=1 + case.head)
        else:
            put_lens("lens" if op == "decode_rows" else "start", state.start)
            if op == "extend_rows":
                put_lens("end", state.end)
            stale = np.full(case.head, CANARY)
            put("free_ids", np.concatenate([stale, state.free_pages]))
            call.arguments["head"] = case.head
        call.arguments["page_size"] = case.page_size
    if state.has_window:
        assert case.window is not None
        ids = lay("window_ids", np.concatenate([np.full(case.window, CANARY), state.free_window_pages]))
        call.arguments["window"] = WindowPages(ids, case.window, lay("window_map", state.window_map()))
    if op in ("get_last_loc", "alloc_extend", "alloc_decode"):
        slots = call.expected.slots
        assert slots is not None
        put("out", np.full(len(slots), CANARY))
    return call
