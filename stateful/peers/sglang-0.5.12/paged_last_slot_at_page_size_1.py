"""With pages of one token debug mode compares last slot and prefix modulo 1, which always agrees."""

import sys

import torch
from alone import attempt, extend, paged

pool = paged(16, 1)
pool.debug_mode = True
slots = attempt(extend, pool, [1], [2], [-1])
print(f"a request with a prefix of 1 and no last slot is extended to 2: {slots!r}")
sys.exit(isinstance(slots, torch.Tensor))
