"""An extend with one prefix and two lengths behind the last slot of the pool is refused when it has taken pages."""

import sys

from alone import attempt, extend, swa

pool = swa(16, 16, 4)
slots = attempt(extend, pool, [1], [6, 1], [19])
free = pool.full_available_size()
print(f"an extend of one prefix to two lengths: {slots!r}; of 16 slots {free} are free")
sys.exit(free != 16)
