"""What a manager is made of, checked once.

KVCacheConfig(page_size=16, num_pages=1024, max_requests=64, context_len=4096,
              speculation=Speculation("eagle", steps=3, topk=1, draft_tokens=4))
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadArgument
from .hisparse import HiSparse
from .kernels.devices import is_device, tensor_device
from .prefix_cache.eviction import POLICIES
from .sizing import Speculation
from .window import Window

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class KVCacheConfig:
    """Sizes and options of a KV cache; frozen, validated on construction (BadArgument names the field).

    page_size: tokens a page, a power of two from 1 to 128.
    num_pages: pages of the pool, without the padding page 0.
    max_requests: request rows, without the padding row 0.
    context_len: the longest committed length of a request, in tokens.
    device: "cpu", "interpret" (the kernels on CPU tensors, in Triton's interpreter), "cuda" or "cuda:K".
    speculation: the draft sizes, or None when there is no speculative decoding.
    checked: also check what only the values of slot tensors tell (double frees, foreign slots).
        None means: on for the CPU, off elsewhere.
    prefix_cache: "none", or "radix" to share what requests have in common.
    eviction: which cached pages go first: "lru" (least recently hit or inserted), "lfu" (least often hit), "fifo".
    need_sort: hand pages out in ascending order; what is freed is sorted in when the listed pages run short.
    window: a Window, where layers look back a window of tokens only, or None.
    hisparse: a HiSparse, where a small device pool and the host hold what logical slots name, or None.
    """

    page_size: int
    num_pages: int
    max_requests: int
    context_len: int
    device: str = "cpu"
    prefix_cache: str = "none"
    eviction: str = "lru"
    need_sort: bool = False
    speculation: Speculation | None = None
    window: Window | None = None
    hisparse: HiSparse | None = None
    checked: bool | None = None

    def __post_init__(self) -> None:
        if type(self.page_size) is not int or self.page_size not in PAGE_SIZES:
            self._refuse("page_size", f"a power of two from 1 to {PAGE_SIZES[-1]}")
        for name in ("num_pages", "max_requests", "context_len"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                self._refuse(name, "an integer of at least 1")
        if (self.num_pages + 1) * self.page_size > 2**31:
            self._refuse("num_pages", "small enough for slot numbers below 2**31 (req_to_token is int32)")
        if not is_device(self.device):
            self._refuse("device", "'cpu', 'interpret', 'cuda' or 'cuda:K'")
        if self.speculation is not None and not isinstance(self.speculation, Speculation):
            self._refuse("speculation", "a Speculation or None")
        if self.checked not in (None, True, False):
            self._refuse("checked", "True, False or None")
        for name, known in (("prefix_cache", ("none", "radix")), ("eviction", tuple(POLICIES))):
            if getattr(self, name) not in known:
                self._refuse(name, f"one of {', '.join(map(repr, known))}")
        if self.need_sort not in (True, False):
            self._refuse("need_sort", "True or False")
        self._check_window()
        self._check_hisparse()

    def _check_window(self) -> None:
        window = self.window
        if window is None:
            return
        if not isinstance(window, Window):
            self._refuse("window", "a Window or None")
        if (window.num_pages + 1) * self.page_size > 2**31:
            self._refuse("window", "small enough for slot numbers below 2**31")
        if self.prefix_cache != "none" and window.kind == "ring":
            self._refuse("window", "no ring where prefixes are shared: a ring keeps nothing of a cached prefix")
        if self.prefix_cache != "none" and window.floor:
            self._refuse("window", "without a floor where prefixes are shared: the cache keeps whole windows")

    def _check_hisparse(self) -> None:
        hisparse = self.hisparse
        if hisparse is None:
            return
        if not isinstance(hisparse, HiSparse):
            self._refuse("hisparse", "a HiSparse or None")
        if self.page_size % hisparse.ratio:
            self._refuse("hisparse", f"of a ratio that divides the page size {self.page_size}")
        if self.prefix_cache != "none":
            self._refuse(
                "hisparse", "None where prefixes are shared: nothing of a finished request stays on the device"
            )
        if self.window is not None and self.window.kind != "pool":
            self._refuse("hisparse", "None beside a window that is not of kind 'pool'")

    def _refuse(self, name: str, expected: str) -> None:
        raise BadArgument("KV-15", name, f"is {getattr(self, name)!r}; it has to be {expected}")

    @property
    def tensor_device(self) -> str:
        """Where the tensors live: "cpu" for the interpreter, too."""
        return tensor_device(self.device)

    @property
    def has_bigram_keys(self) -> bool:
        """Whether the prefix cache keys by pairs of tokens: EAGLE's draft KV depends on the next token, too."""
        return self.speculation is not None and self.speculation.algorithm == "eagle"

    @property
    def is_checked(self) -> bool:
        """Checked mode as it is in effect."""
        return self.device == "cpu" if self.checked is None else self.checked
