"""Sparse attention with host offload: rows name logical slots, a small device pool holds what is worked on.

    KVCacheConfig(..., hisparse=HiSparse(device_pages=512, host_pages=4096, buffer_size=2048))

A prefill computes into device pages, one a logical page. Backed up to the host, the request is admitted with a device
buffer of fixed size, out of which decoding works; the host has everything, the buffer what the attention picks.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadArgument


@dataclass(frozen=True)
class HiSparse:
    """How much lies where; frozen, validated on construction.

    device_pages, host_pages: pages of the device and of the host pool, without their padding page 0.
    buffer_size: tokens of a request's device buffer, at most; a page more is reserved for its newest token.
    ratio: tokens that one device or host slot holds: 1, or 4 where the KV is compressed. A page of those pools has
        page_size / ratio slots, so that one page stands for one logical page, whatever the ratio.
    """

    device_pages: int
    host_pages: int
    buffer_size: int
    ratio: int = 1

    def __post_init__(self) -> None:
        for name in ("device_pages", "host_pages", "buffer_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise BadArgument("KV-15", name, f"is {value!r}; it has to be an integer of at least 1")
        if self.ratio not in (1, 4):
            raise BadArgument("KV-15", "ratio", f"is {self.ratio!r}; it has to be 1 or 4")

    def buffer_pages(self, tokens: int, page_size: int) -> int:
        """Pages of the device buffer of a request of so many tokens: the reserved one, and room for what there is."""
        return 1 + min(-(-tokens // page_size), -(-self.buffer_size // page_size))
