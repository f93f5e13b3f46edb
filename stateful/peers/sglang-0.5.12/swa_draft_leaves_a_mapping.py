"""The slots of a draft are given back by restoring the lists, and the map keeps what was entered for them."""

import sys

from alone import extend, swa

pool = swa(16, 16, 4)
before = pool.backup_state()
row = extend(pool, [0], [1], [-1])
pool.restore_state(before)
mapped, listed = pool.full_to_swa_index_mapping[row].tolist(), pool.swa_attn_allocator.free_pages.tolist()
print(f"slots {row.tolist()} were given back and are mapped to {mapped}; listed as free are the window pages {listed}")
sys.exit(mapped[0] > 0 and mapped[0] // 4 in listed)
