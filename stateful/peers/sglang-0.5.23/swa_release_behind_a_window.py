"""Releasing a row whose first window page has gone gives page 0, the padding, to the window's free list."""

import sys

from alone import attempt, extend, swa

pool = swa(32, 32, 4)
row = extend(pool, [0, 0], [12, 4], [-1, -1])[:12]
pool.free_swa_segment(row[:4], start_pos=0)
attempt(pool.free_segment, row, start_pos=0)
listed = pool.swa_attn_allocator.get_all_free_pages().tolist()
print(f"one page of 8 is held; listed as free in the window pool are {listed}")
sys.exit(0 in listed)
