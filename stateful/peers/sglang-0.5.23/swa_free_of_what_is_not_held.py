"""A free of part of a page gives back the page, while the rest of it is in use."""

import sys

from alone import attempt, extend, swa

pool = swa(32, 32, 4)
row = extend(pool, [0], [4], [-1])
attempt(pool.free, row[:1])
print(f"a request holds the slots {row.tolist()}; of 32 there are {pool.full_available_size()} free")
sys.exit(pool.full_available_size() == 32)
