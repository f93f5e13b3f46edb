"""A free of what is free is noticed by an assertion that counts, once the list has changed."""

import sys

import torch
from alone import attempt, swa

pool = swa(32, 32, 4)
ended = attempt(pool.free, torch.arange(4, 8))
print(f"a free in an empty pool: {ended!r}; of 32 slots {pool.full_available_size()} are free")
sys.exit(pool.full_available_size() != 32)
