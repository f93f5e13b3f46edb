"""A free group begun inside another one throws away what the outer one has queued."""

import sys

from alone import attempt, swa

pool = swa(8, 8)
row = pool.alloc(4)
for part in (row[:2], row[2:]):
    attempt(pool.free_group_begin)
    pool.free(part)
pool.free_group_end()
print(f"everything was freed; of 8 slots {pool.full_available_size()} are free")
sys.exit(pool.full_available_size() != 8)
