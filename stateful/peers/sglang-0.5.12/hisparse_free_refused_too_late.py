"""A free of what is free is noticed by an assertion that counts, once the list has changed."""

import sys

import torch
from alone import attempt, hisparse

pool = hisparse(16, 4)
ended = attempt(pool.free, torch.arange(4, 8))
free = pool.logical_attn_allocator.available_size()
print(f"a free in an empty pool: {ended!r}; of 32 slots {free} are free")
sys.exit(free != 32)
