"""With pages of one token a decode takes no logical page: the slot that it returns is somebody else's, or free."""

import sys

from alone import decode, extend, hisparse

pool = hisparse(16, 1)
row = extend(pool, [0, 0], [1, 1], [-1, -1]).tolist()
slots = decode(pool, [2], row[:1]).tolist()
free = pool.logical_attn_allocator.available_size()
print(f"two requests hold {row}; a decode of the first returns {slots}; of 32 slots {free} are free")
sys.exit(free != 29)
