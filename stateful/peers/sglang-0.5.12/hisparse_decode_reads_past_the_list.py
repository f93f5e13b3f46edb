"""Ascend's decode in torch: members that need no page read the free list, too, and may do so behind its end."""

import sys

from alone import attempt, decode, extend, hisparse

pool = hisparse(12, 4, ratio=1)
row = extend(pool, [0, 0], [4, 1], [-1, -1])
slots = attempt(decode, pool, [5, 2], row[3:])
print(f"one page is free and one is needed: {slots!r}")
sys.exit(isinstance(slots, IndexError))
