"""What requests say: their tokens, and which prefixes are the same.

    texts = Texts()
    text = texts.make(number=7, prompt=((8, 2),), salt=0)     # 8 tokens as request 2 would say them, then its own
    text.tokens(12)                                           # int32[12]
    text.prefix_at(5)                                         # what everything up to position 5 is known by

Text is written by writers: a token depends on its writer and its position alone, so a prompt is a list of segments
(end, writer), and two requests share a prefix as long as the same writers wrote it. A request writes its own tokens
behind its prompt. The blocks of a recorded trace are writers, too, with negative numbers.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

Prompt = tuple[tuple[int, int], ...]
"""Segments: up to which position (ascending, in tokens), and who wrote it."""

_SHORT = 64
_RECENT = 128
_PAGES = 24  # bits of a page's number


class Text:
    """One request's tokens. `salt`: its extra key, 0 for none."""

    __slots__ = ("_keys", "_prefixes", "_tokens", "_writers", "prefixes", "salt", "starts", "writers")

    def __init__(self, starts: list[int], writers: list[int], prefixes: list[int], salt: int) -> None:
        self.starts, self.writers, self.prefixes, self.salt = starts, writers, prefixes, salt
        self._writers, self._prefixes = np.array(writers, dtype=np.int64), np.array(prefixes, dtype=np.int64)
        self._tokens = np.zeros(0, dtype=np.int32)
        self._keys: list[int] = []

    def prompt(self, cut: int) -> Prompt:
        """The segments of the first `cut` tokens, for a request that is to say the same."""
        ends = [*self.starts[1:], cut]
        written = zip(self.starts, ends, self._writers.tolist(), strict=True)
        return tuple((min(end, cut), writer) for start, end, writer in written if start < cut)

    def prefix_at(self, position: int) -> int:
        """A number for everything up to `position`: equal for two texts if and only if they agree so far."""
        return self.prefixes[0] if len(self.starts) == 1 else self.prefixes[bisect_right(self.starts, position) - 1]

    def prefixes_at(self, start: int, end: int) -> NDArray[np.int64] | int:
        """prefix_at of every position of [start, end); one number where all are the same."""
        first = bisect_right(self.starts, start) - 1
        if first == len(self.starts) - 1 or self.starts[first + 1] >= end:
            return self.prefixes[first]
        return self._spread(self._prefixes, start, end)

    def page_keys(self, pages: int, page_size: int, bigram: bool) -> list[int]:
        """What each of the first pages is known by, at least so many: a number for its place and everything up to its
        end; with bigram keys the token behind the page counts, too."""
        known = len(self._keys)
        if known < pages:
            index = np.arange(known, pages, dtype=np.int64)
            last = (index + 1) * page_size - 1 + bigram
            prefixes = self._prefixes[np.searchsorted(self.starts, last, side="right") - 1]
            self._keys += (prefixes << _PAGES | index).tolist()
        return self._keys

    def tokens(self, length: int) -> NDArray[np.int32]:
        """The first `length` tokens. A view: not to be written to."""
        known = len(self._tokens)
        if known < length:
            position = np.arange(known, max(length, known + known // 4, _SHORT), dtype=np.int64)
            writers = self._spread(self._writers, known, known + len(position))
            # At one position, different writers never say the same.
            more = ((writers * 2654435761 + position * 40503) & 0x7FFFFFFF).astype(np.int32)
            self._tokens = np.concatenate((self._tokens, more))
            self._tokens.flags.writeable = False
        return self._tokens[: max(length, 0)]

    def _spread(self, values: NDArray[np.int64], start: int, end: int) -> NDArray[np.int64]:
        """The value of its segment for every position of [start, end)."""
        first, last = bisect_right(self.starts, start) - 1, bisect_right(self.starts, end - 1)
        edges = np.array([start, *self.starts[first + 1 : last], end])
        return np.repeat(values[first:last], np.diff(edges))


NO_TEXT = Text([0], [0], [0], 0)
"""For what has slots and says nothing."""


class Texts:
    """The texts of a sequence; what has been said alike has one number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._recent: dict[int, tuple[Prompt, int, Text]] = {}  # the last ones made: a call needs the same a few times

    def make(self, number: int, prompt: Prompt = (), salt: int = 0) -> Text:
        """The text of request `number`: its prompt, then its own tokens."""
        salt = int(salt)  # a flag counts as a number: equal keys have to read alike
        recent = self._recent.get(number)
        if recent is not None and recent[0] == prompt and recent[1] == salt:
            return recent[2]
        if len(self._recent) == _RECENT:
            del self._recent[next(iter(self._recent))]
        text = self._make(number, prompt, salt)
        self._recent[number] = prompt, salt, text
        return text

    def _make(self, number: int, prompt: Prompt, salt: int) -> Text:
        if not prompt and not salt:
            return Text([0], [number], [self._number(0, 0, number)], 0)
        starts: list[int] = []
        writers: list[int] = []
        at = 0
        for end, writer in (*prompt, (None, number)):
            if writers and writers[-1] == writer:
                at = at if end is None else max(at, end)
                continue
            if end is None or end > at:
                starts.append(at)
                writers.append(writer)
                at = at if end is None else end
        before, prefixes = self._number(0, -1, salt) if salt else 0, []
        for start, writer in zip(starts, writers, strict=True):
            before = self._number(before, start, writer)
            prefixes.append(before)
        return Text(starts, writers, prefixes, salt)

    def _number(self, before: int, start: int, writer: int) -> int:
        return self._numbers.setdefault((before, start, writer), len(self._numbers) + 1)
