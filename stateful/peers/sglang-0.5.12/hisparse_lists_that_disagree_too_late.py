"""An extend with one prefix and two lengths takes pages; its second slot is unwritten memory, if the map takes it."""

import sys

from alone import attempt, extend, hisparse

pool = hisparse(8, 4)
slots = attempt(extend, pool, [0], [1, 1], [-1])
free = pool.logical_attn_allocator.available_size()
print(f"an extend of one prefix to two lengths: {slots!r}; of 16 slots {free} are free")
sys.exit(free != 16)
