"""A queued free of a row that is written before the group ends leaves a map entry on a window page that is free."""

import sys

from alone import extend, swa

pool = swa(16, 16, 4)
row = extend(pool, [0], [4], [-1])
pool.free_group_begin()
pool.free(row)
row[0] = row[1]
pool.free_group_end()
mapped, listed = pool.full_to_swa_index_mapping[4].item(), pool.swa_attn_allocator.free_pages.tolist()
print(f"slot 4, which was freed, is mapped to window slot {mapped}; listed as free are the window pages {listed}")
sys.exit(mapped > 0 and mapped // 4 in listed)
