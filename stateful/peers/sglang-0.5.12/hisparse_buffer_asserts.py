"""A device buffer for which there is no room ends in an assertion, where other shortages are answered with None."""

import sys

import torch
from alone import attempt, hisparse

pool = hisparse(16, 4)
slots = attempt(pool.alloc_device_buffer, torch.tensor([], dtype=torch.int64), 20)
print(f"a buffer of 20 tokens out of 16: {slots!r}")
sys.exit(isinstance(slots, AssertionError))
