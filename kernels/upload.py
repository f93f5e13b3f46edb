"""Host arrays to the device, without waiting.

plan = upload((rows, start, first_token), torch.int32, device)      # one copy; plan is int32[3 * bs]
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_NUMPY = {torch.int32: np.int32, torch.int64: np.int64}


def upload(parts: tuple[NDArray[np.int64], ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The parts one behind the other as one tensor of `dtype` (int32 or int64) on `device`.

    From pinned memory, so the host goes on at once. PyTorch keeps the pinned block until the copy has happened,
    and then hands it to a later call.
    """
    if device.type == "cpu":
        return torch.from_numpy(np.concatenate(parts, dtype=_NUMPY[dtype], casting="unsafe"))
    pinned = torch.empty(sum(map(len, parts)), dtype=dtype, pin_memory=True)
    np.concatenate(parts, out=pinned.numpy(), casting="unsafe")
    return pinned.to(device, non_blocking=True)
