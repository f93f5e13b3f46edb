"""A decode that is short of the full pool takes its pages of the window pool and keeps none of them: they are lost."""

import sys

from alone import decode, extend, swa

pool = swa(12, 32, 4)
row = extend(pool, [0, 0], [4, 4], [-1, -1])
before = pool.full_available_size(), pool.swa_available_size()
slots = decode(pool, [5, 5], row[3::4])
after = pool.full_available_size(), pool.swa_available_size()
print(f"a decode of two returns {slots}; free were {before}, now {after}")
sys.exit(slots is None and after != before)
