"""In debug mode the slot of a window page that was evicted is compared with the length, and a right decode asserts."""

import sys

from alone import attempt, decode, extend, swa

pool = swa(32, 32, 4)
pool.full_attn_allocator.debug_mode = pool.swa_attn_allocator.debug_mode = True
row = extend(pool, [0], [4], [-1])
pool.free_swa(row)
slots = attempt(decode, pool, [5], row[3:])
print(f"a decode of a request of one page, whose window page has gone: {slots!r}")
sys.exit(isinstance(slots, AssertionError))
