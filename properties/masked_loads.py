"""Lanes of a masked load that nobody gave a value: found in the source, and given a bad one in the interpreter.

    masked_loads_without_other(Path("kernel.py").read_text())      # ["line 12: tl.load(lens + i, mask=i < n)"]

Triton leaves such lanes undefined. The interpreter, and most GPUs most of the time, read 0 there, so a kernel that
sums them passes every test until it does not (public bug S-23).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# Every byte 0x55: neither 0 nor -1, and large enough that an index made of it leaves any table.
UNDEFINED_BYTE = 0x55


def masked_loads_without_other(source: str) -> list[str]:
    """The calls `tl.load(pointer, mask)` in `source` that give no `other`, by line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.load", "triton.language.load"):
            named = {keyword.arg for keyword in node.keywords}
            if ("mask" in named or len(node.args) > 1) and not ("other" in named or len(node.args) > 2):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@contextmanager
def undefined_lanes() -> Iterator[None]:
    """Let the interpreter read UNDEFINED_BYTE, not 0, in masked-off lanes of a load without `other`."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    masked_load = builder.create_masked_load

    def with_undefined_lanes(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
        if other is None:
            element = ptrs.get_element_ty()
            values = np.zeros(np.shape(ptrs.data), interpreter._get_np_dtype(element))
            values.view(np.uint8)[...] = UNDEFINED_BYTE
            other = interpreter.TensorHandle(values, element)
        return masked_load(self, ptrs, mask, other, *rest, **options)

    builder.create_masked_load = with_undefined_lanes
    try:
        yield
    finally:
        builder.create_masked_load = masked_load
