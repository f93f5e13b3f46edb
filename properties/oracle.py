"""What each operation has to give, token by token in plain Python: slow, and too simple to be wrong in the same way.

    slots = alloc_extend([3], [6], last_loc=[42], free_pages=[7], page_size=4)      # [43, 28, 29]

Nothing here is shared with the references in kernels/, which compute all tokens at once. Arguments are lists of
integers; `table` is a list of rows. The free lists are read entry by entry, so a call that takes more pages than it is
given raises StopIteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def get_last_loc(table: list[list[int]], rows: list[int], lens: list[int]) -> list[int]:
    """The slot of each row's last position; -1 where there is none."""
    return [table[row][length - 1] if length else -1 for row, length in zip(rows, lens, strict=True)]


def alloc_extend(
    start: list[int], end: list[int], last_loc: list[int], free_pages: list[int], page_size: int
) -> list[int]:
    """Slots of positions [start, end) of one request after the other."""
    pages = iter(free_pages)
    slots = []
    for first, past, slot in zip(start, end, last_loc, strict=True):
        for position in range(first, past):
            slot = next_slot(slot, position, pages, page_size)
            slots.append(slot)
    return slots


def alloc_decode(seq_lens: list[int], last_loc: list[int], free_pages: list[int], page_size: int) -> list[int]:
    """The slot of each request's newest position."""
    return alloc_extend([length - 1 for length in seq_lens], seq_lens, last_loc, free_pages, page_size)


def next_slot(last: int, position: int, pages: Iterator[int], page_size: int) -> int:
    """The slot of `position`, if that of the position before is `last`: the next one, or the first of a new page."""
    return next(pages) * page_size if position % page_size == 0 else last + 1


def assign_req_to_token_pool(
    rows: list[int], table: list[list[int]], start: list[int], end: list[int], slots: list[int]
) -> None:
    """Write each request's slots to its row, from `start` on."""
    source = iter(slots)
    for row, first, past in zip(rows, start, end, strict=True):
        for position in range(first, past):
            table[row][position] = next(source)


def gather_pages(
    table: list[list[int]], rows: list[int], start: list[int], end: list[int], page_size: int
) -> list[int]:
    """The pages that hold positions [start, end), each once, request by request."""
    pages: list[int] = []
    for row, first, past in zip(rows, start, end, strict=True):
        found: list[int] = []
        for position in range(first, past):
            page = table[row][position] // page_size
            if page not in found[-1:]:
                found.append(page)
        pages += found
    return pages


def write_pages(
    table: list[list[int]], rows: list[int], start: list[int], end: list[int], pages: list[int], page_size: int
) -> None:
    """Write the slots of each request's pages to its row, from `start` on: the next page at each page multiple."""
    source = iter(pages)
    for row, first, past in zip(rows, start, end, strict=True):
        page = -1
        for position in range(first, past):
            if position % page_size == 0:
                page = next(source)
            table[row][position] = page * page_size + position % page_size


def extend_rows(
    table: list[list[int]],
    rows: list[int],
    start: list[int],
    end: list[int],
    free_pages: list[int],
    page_size: int,
    window_map: list[int] | None = None,
    window_pages: Iterable[int] = (),
) -> list[int]:
    """Lengthen each row to `end`; the new slots. With a map, each slot that begins a page maps the page."""
    slots = alloc_extend(start, end, get_last_loc(table, rows, start), free_pages, page_size)
    assign_req_to_token_pool(rows, table, start, end, slots)
    if window_map is not None:
        source = iter(window_pages)
        for slot in slots:
            if slot % page_size == 0:
                window_map[slot // page_size] = next(source)
    return slots


def decode_rows(
    table: list[list[int]],
    rows: list[int],
    lens: list[int],
    free_pages: list[int],
    page_size: int,
    window_map: list[int] | None = None,
    window_pages: Iterable[int] = (),
) -> list[int]:
    """Lengthen each row by one; the new slots."""
    end = [length + 1 for length in lens]
    return extend_rows(table, rows, lens, end, free_pages, page_size, window_map, window_pages)


def take_window_pages(window_map: list[int], pages: list[int]) -> list[int]:
    """The window page of one page after the other; each is out of the map then."""
    taken = []
    for page in pages:
        taken.append(window_map[page])
        window_map[page] = 0
    return taken
