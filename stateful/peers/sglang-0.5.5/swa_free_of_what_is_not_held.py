"""A free of a slot that does not exist is taken as it is."""

import sys

import torch
from alone import attempt, swa

pool = swa(8, 8)
pool.alloc(1)
attempt(pool.free, torch.tensor([-1]))
listed = pool.full_attn_allocator.free_pages.tolist()
print(f"one of 8 slots is held; listed as free are {listed}")
sys.exit(-1 in listed)
