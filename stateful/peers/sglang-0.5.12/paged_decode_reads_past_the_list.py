"""Ascend's decode in torch: members that need no page read the free list, too, and may do so behind its end."""

import sys

from alone import attempt, decode, paged

pool = paged(12, 4)
row = pool.alloc(8)[:5]
slots = attempt(decode, pool, [1, 6], [-1, row[-1]])
print(f"one page is free and one is needed: {slots!r}")
sys.exit(isinstance(slots, IndexError))
