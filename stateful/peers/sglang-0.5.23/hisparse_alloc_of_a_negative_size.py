"""A size below zero slices both free lists from their ends, to different lengths if they have different lengths."""

import sys

from alone import attempt, hisparse

pool = hisparse(16, 1)
slots = attempt(pool.alloc, -1)
free = pool.logical_attn_allocator.available_size(), pool.hisparse_attn_allocator.available_size()
print(f"alloc(-1) of 32 and 16 slots ends in {slots!r}; {free} are free")
sys.exit(free != (32, 16))
