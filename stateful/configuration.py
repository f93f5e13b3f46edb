"""What a sequence runs on: the sizes of the cache, and which level of the subject is driven.

    Configuration(page_size=4, num_pages=8, max_requests=3, context_len=32, level="engine")

A subject's factory takes one and reads the fields it needs. It has a JSON form, the head of a replay file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ..config import KVCacheConfig
from ..errors import BadArgument
from ..hisparse import HiSparse
from ..sizing import Speculation
from ..window import Window

LARGE = 100_000
"""Entries of a table: from here on a snapshot after each operation costs milliseconds, and the replay of a workload's
failure would take hours."""

LEVELS = ("engine", "slots")


@dataclass(frozen=True)
class Configuration(KVCacheConfig):
    """A KVCacheConfig and the level: "engine" (requests and paths) or "slots" (the slot allocator alone)."""

    level: str = "engine"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level not in LEVELS:
            raise BadArgument("KV-15", "level", f"is {self.level!r}; it has to be 'engine' or 'slots'")

    @property
    def is_large(self) -> bool:
        """Whether a sequence on it is checked by what its operations touch, unless it says otherwise."""
        return self.max_requests * self.context_len > LARGE

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults, and the level; the device is where it runs, no part of it."""
        plain = asdict(self)
        kept = {f.name: plain[f.name] for f in fields(self) if getattr(self, f.name) != f.default}
        kept.pop("device", None)
        return {**kept, "level": self.level}

    @classmethod
    def from_json(cls, data: Any) -> Configuration:
        """Raises BadArgument on an unknown field or a bad value."""
        if not isinstance(data, dict):
            raise BadArgument("KV-15", "config", "has to be an object")
        unknown = data.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise BadArgument("KV-15", "config", f"has unknown fields {sorted(unknown)}")
        speculation, window = data.get("speculation"), data.get("window")
        try:
            hisparse = data.get("hisparse")
            parts = {
                "speculation": Speculation(**speculation) if speculation else None,
                "window": Window(**window) if window else None,
                "hisparse": HiSparse(**hisparse) if hisparse else None,
            }
            return cls(**{**data, **parts})
        except TypeError as error:
            raise BadArgument("KV-15", "config", str(error)) from None
