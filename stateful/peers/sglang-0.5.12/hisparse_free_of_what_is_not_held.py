"""A free of part of a page gives back the page, while the rest of it is in use."""

import sys

from alone import attempt, extend, hisparse

pool = hisparse(16, 4)
row = extend(pool, [0], [4], [-1])
attempt(pool.free, row[:1])
free = pool.logical_attn_allocator.available_size()
print(f"a request holds the slots {row.tolist()}; of 32 there are {free} free")
sys.exit(free == 32)
