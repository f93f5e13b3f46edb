"""An extend whose list of last slots is shorter than the others is taken as it is."""

import sys

import torch
from alone import attempt, extend, paged

pool = paged(16, 4)
slots = attempt(extend, pool, [0], [1], [])
print(f"an extend of one request, with no last slot at all: {slots!r}")
sys.exit(isinstance(slots, torch.Tensor))
