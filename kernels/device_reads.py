"""A test mode in which reading a device tensor back to the host is an error (KV-14).

    with no_device_reads(manager.config.device):
        alloc_for_decode(manager, batch)

A read makes the host wait for the device, and the scheduler with it. Two nets: every torch function whose result the
host looks at is refused by name, which works on CPU tensors in the interpreter's lane too; on a GPU, PyTorch's own
synchronisation check refuses what waits under any other name. The cpu lane has nothing to read back: there the
references compute on the tensors' own memory, and the mode refuses to be used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class DeviceRead(RuntimeError):
    """A device tensor was read back to the host where nothing may be."""


# Functions that hand values to the host, or size their result by values, which the host then has to know.
_READS = {
    *("item", "tolist", "numpy", "cpu", "__array__", "__dlpack__"),
    *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__contains__", "__format__", "__repr__"),
    *("is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
}


@contextmanager
def no_device_reads(device: str) -> Iterator[None]:
    """Raise DeviceRead on any read of a tensor of `device` ("interpret", "cuda" or "cuda:K") by the host."""
    if device == "cpu":
        raise ValueError("no_device_reads: the cpu lane has no device to read from")
    if device == "interpret":
        with _Refuse("cpu"):
            yield
        return
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode(2)  # error
    try:
        with _Refuse("cuda"):
            yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int) -> None:
    with warnings.catch_warnings():
        # PyTorch says once that the check does not see everything yet: the net of names is there for that.
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


class _Refuse(TorchFunctionMode):
    """Refuses to read tensors of one type of device."""

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if any(self._is_there(value) for value in args) and _reads(name, args, kwargs):
            raise DeviceRead(f"KV-14: {name} reads a tensor of the device back")
        return function(*args, **kwargs)

    def _is_there(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == self.device_type


def _reads(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "to":
        return any(str(value) == "cpu" for value in (*args[1:], kwargs.get("device")) if not _is_tensor(value))
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(_is_tensor(part) and part.dtype == torch.bool for part in index)
    if name == "where":
        return len(args) == 1 and not kwargs
    if name == "repeat_interleave":
        return len(args) > 1 and _is_tensor(args[1]) and "output_size" not in kwargs
    return name in _READS


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
