"""A size below zero slices both free lists from their ends, to different lengths if they have different lengths."""

import sys

from alone import attempt, swa

pool = swa(8, 6)
slots = attempt(pool.alloc, -1)
free = pool.full_available_size(), pool.swa_available_size()
print(f"alloc(-1) of 8 and 6 slots ends in {slots!r}; {free} are free")
sys.exit(free != (8, 6))
