"""How many tokens, pages and row entries a request may come to need. Pure arithmetic on host integers.

    >>> reserve_per_step(Speculation("eagle", steps=5, topk=1, draft_tokens=6), page_size=16)
    12
    >>> row_width(context_len=4096, page_size=16, speculation=None)
    4096

What the numbers protect: a reserve that outgrows its row is written into the *next request's* row (the
scatter has no bound of its own), and the release, clamped at the row's end, never gives the spilled slots back.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadArgument


@dataclass(frozen=True)
class Speculation:
    """How speculative decoding drafts: the sizes behind every reserve.

    algorithm: "eagle" (a tree of `topk` branches, `steps` deep; topk 1 is a chain) or "dflash" (one block).
    draft_tokens: tokens verified a step.
    """

    algorithm: str
    steps: int
    topk: int
    draft_tokens: int

    def __post_init__(self) -> None:
        if self.algorithm not in ("eagle", "dflash"):
            raise BadArgument("KV-15", "algorithm", f"is {self.algorithm!r}; known are 'eagle' and 'dflash'")
        for name in ("steps", "topk", "draft_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise BadArgument("KV-15", name, f"is {value!r}; it has to be an integer of at least 1")


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that cover `tokens` tokens."""
    return -(-tokens // page_size)


def ceil_to_page(tokens: int, page_size: int) -> int:
    """`tokens` rounded up to whole pages, in tokens."""
    return -(-tokens // page_size) * page_size


def tokens_per_step(speculation: Speculation, page_size: int) -> int:
    """K: draft slots that one step writes, in tokens.

    In a tree over pages every branch has a page-aligned copy of its own, which may begin and end mid-page:
    n = floor((page_size - 1 + steps + page_size - 1) / page_size) pages a branch.
    """
    spec = speculation
    if spec.algorithm == "dflash":
        return spec.draft_tokens
    if page_size == 1 or spec.topk == 1:
        return max(spec.steps * spec.topk, spec.draft_tokens)
    pages_per_branch = (2 * (page_size - 1) + spec.steps) // page_size
    return max(pages_per_branch * page_size * spec.topk, spec.draft_tokens)


def reserve_per_step(speculation: Speculation, page_size: int) -> int:
    """R = 2K tokens: under overlap scheduling the host lags the device by at most one step, so one K may be used up."""
    return 2 * tokens_per_step(speculation, page_size)


def row_headroom(speculation: Speculation | None, page_size: int) -> int:
    """Row entries beyond `context_len`, in tokens.

    A reserve ends at ceil_page(committed + R) <= context_len + R + page_size - 1, at *every* page size: granting
    it only above page size 1 is a public bug (SG-33579).
    """
    if speculation is None:
        return 0
    return reserve_per_step(speculation, page_size) + page_size - 1


def row_width(context_len: int, page_size: int, speculation: Speculation | None) -> int:
    """Entries of one row of `req_to_token`, in tokens."""
    return context_len + row_headroom(speculation, page_size)
