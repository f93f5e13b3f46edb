"""Triton kernels that load when they are first launched.

    @jit
    def double_kernel(x, out, n, TILE: tl.constexpr): ...

    double_kernel.launch((1,), x, out, n, TILE=256)
    launches["double"], compilations()["double"]         # 1, 1

A kernel stands beside its CPU reference, so its file must load where Triton is absent, and without the 0.28 s that
Triton takes: `jit` keeps the function, and the first launch imports Triton, puts `tl` into the function's module and
compiles. Every parameter that is no tl.constexpr is a run-time value: by default Triton compiles variants of a kernel
for an integer that is 1 or a multiple of 16 and for a pointer that is not aligned to 16 bytes, which a batch size and
a free list's head reach one after the other.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

launches: Counter[str] = Counter()
"""How often each operation's kernel was launched in this process."""

_kernels: dict[str, Kernel] = {}


class LaneError(RuntimeError):
    """The device that was asked for is not to be had in this process; the message says why and what to do."""


class Kernel:
    """A function in Triton's language, compiled when it is first launched or first called by a kernel that is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__.removesuffix("_kernel")
        self.compiled: Any = None
        self.interpreted = False
        # What the interpreter has seen in the place of compilations: it has none.
        self.variants: set[tuple[Any, ...]] = set()
        _kernels[self.name] = self

    def launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Run `grid` programs where the first argument, a tensor, is. The others are tensors and run-time integers,
        `constants` the constexprs."""
        launches[self.name] += 1
        compiled = self.compiled or self.load()
        if self.interpreted:
            self.variants.add((*map(_type_of, arguments), *sorted(constants.items())))
            # The interpreter reads tensors in the device's stead: no_device_reads does not look at it.
            with torch._C.DisableTorchFunction():
                compiled[grid](*arguments, **constants)
        elif arguments[0].get_device() == torch.cuda.current_device():
            compiled[grid](*arguments, **constants)
        else:
            with torch.cuda.device(arguments[0].device):
                compiled[grid](*arguments, **constants)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.name}: a kernel is launched; only another kernel calls it")

    def load(self) -> Any:
        """Triton's own object for this function."""
        if self.compiled is None:
            try:
                import triton
            except ImportError:
                raise LaneError("the kernel lanes need Triton, which is not installed here") from None
            module = self.function.__globals__
            module["tl"] = triton.language
            for name in self.function.__code__.co_names:
                helper = module.get(name)
                if isinstance(helper, Kernel):
                    module[name] = helper.load()
            parameters = inspect.signature(self.function).parameters.values()
            run_time = [p.name for p in parameters if p.annotation != "tl.constexpr"]
            self.compiled = triton.jit(self.function, do_not_specialize=run_time)
            self.interpreted = type(self.compiled).__name__ == "InterpretedFunction"
        return self.compiled


def jit(function: Callable[..., Any]) -> Kernel:
    """Make a kernel of a function; or a helper of kernels, which is inlined into them."""
    return Kernel(function)


def compilations() -> Counter[str]:
    """How many variants of each operation's kernel were compiled in this process.

    Under the interpreter, which compiles nothing: how many Triton would have, by the types and constexprs of the calls.
    """
    return Counter({name: _variants(kernel) for name, kernel in _kernels.items() if kernel.compiled is not None})


def triton_is_interpreting() -> bool:
    """Whether this process is the interpreter's lane. Triton decides when it is imported; this looks at what it did."""
    if "triton" not in sys.modules:
        return False
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(sys.modules["triton"].language.sum, InterpretedFunction)


def _variants(kernel: Kernel) -> int:
    if kernel.interpreted:
        return len(kernel.variants)
    if hasattr(kernel.compiled, "device_caches"):
        return sum(len(caches[0]) for caches in kernel.compiled.device_caches.values())
    return sum(len(cache) for cache in kernel.compiled.cache.values())  # Triton 3.2


def _type_of(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.dtype
    return "i32" if -(2**31) <= argument < 2**31 else "i64"


def number_of_warps(tile: int) -> int:
    """Warps for a tile: four elements a thread, at most 16 warps. A function of the tile alone: one variant a tile."""
    return max(1, min(16, tile // 128))
