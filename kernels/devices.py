"""The names of devices, one for each lane; knows neither torch nor Triton.

    is_device("cuda:1"), tensor_device("interpret")         # True, "cpu"

"cpu": the references. "interpret": the kernels on CPU tensors, in Triton's interpreter. "cuda", "cuda:K": the kernels
on a GPU.
"""

from __future__ import annotations

import re


def is_device(device: object) -> bool:
    """Whether `device` names a lane, be it to be had here or not."""
    return isinstance(device, str) and bool(re.fullmatch(r"cpu|interpret|cuda(:\d+)?", device))


def tensor_device(device: str) -> str:
    """Where the tensors of a lane live: the interpreter works on the CPU's."""
    return "cpu" if device == "interpret" else device
