"""A device buffer for which there is no room has cleared the request's map when it finds that out."""

import sys

from alone import attempt, extend, hisparse

pool = hisparse(16, 4)
row = extend(pool, [0], [4], [-1])
slots = attempt(pool.alloc_device_buffer, row, 20)
mapped = pool.full_to_hisparse_device_index_mapping[row].tolist()
pool.free(row)
free = pool.hisparse_attn_allocator.available_size()
print(f"a buffer of 20 tokens: {slots!r}; the request is mapped to {mapped}; after its release {free} of 16 are free")
sys.exit(free != 16)
