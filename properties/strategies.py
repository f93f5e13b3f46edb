"""Hypothesis strategies for calls of device operations.

    @given(cases("extend_rows"))
    def test_it(case): ...

Draws come from the edges: lengths at page multiples and one beside, members without a new token, batches of 1 to 17
and of 2^k and one beside, page ids up to where a slot no longer fits the row's int32, odd offsets of the free lists,
with a window and without.
"""

from __future__ import annotations

from hypothesis import strategies as st

from .cases import WITH_WINDOW, Case

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
IN_ROWS = 2**31  # One past the greatest slot that a row, which is int32, can hold.


def lengths(page_size: int, most_pages: int = 3) -> st.SearchStrategy[int]:
    """Tokens: 0, page multiples and one beside, and anything up to `most_pages` pages."""
    edges = {edge + near for edge in range(0, (most_pages + 1) * page_size, page_size) for near in (-1, 0, 1)}
    return st.sampled_from(sorted(edge for edge in edges if edge >= 0)) | st.integers(0, most_pages * page_size)


def batches(largest: int) -> st.SearchStrategy[int]:
    """Batch sizes: 1 to 17, and 2^k - 1, 2^k, 2^k + 1 up to `largest`."""
    edges = {2**k + near for k in range(4, largest.bit_length()) for near in (-1, 0, 1)}
    return st.integers(1, min(17, largest)) | st.sampled_from(sorted(e for e in edges if e <= largest) or [largest])


def page_tops(op: str, page_size: int) -> st.SearchStrategy[int | None]:
    """The highest page id: as low as possible; as high as a row can hold; without a row, where ids pass 32 bits."""
    tops = [None, IN_ROWS // page_size - 1]
    if op in ("alloc_extend", "alloc_decode"):
        tops += [2**31 - 1, 2**31 + 2**20]
    return st.sampled_from(tops)


@st.composite
def cases(
    draw: st.DrawFn,
    op: str,
    page_sizes: tuple[int, ...] = PAGE_SIZES,
    largest_batch: int = 65,
    tiles: tuple[int | None, ...] = (None,),
) -> Case:
    """A call of `op`. Large batches repeat a few members, so that they are drawn and shrunk as fast as small ones."""
    page_size = draw(st.sampled_from(page_sizes))
    member = st.tuples(lengths(page_size), lengths(page_size))
    members = tuple(draw(st.lists(member, min_size=1, max_size=5)))
    return Case(
        page_size,
        members,
        batch=draw(st.none() | batches(largest_batch)),
        top=draw(page_tops(op, page_size)),
        order=draw(st.integers(0, 9)),
        head=draw(st.integers(0, 5)),
        lens_dtype=draw(st.sampled_from(("int64", "int32"))),
        gap=draw(st.sampled_from((0, 1, 3))),
        tile=draw(st.sampled_from(tiles)),
        window=draw(st.none() | st.integers(0, 5)) if op in WITH_WINDOW else None,
    )
