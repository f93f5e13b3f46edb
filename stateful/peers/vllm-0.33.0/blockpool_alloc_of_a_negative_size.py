"""A number of blocks below zero hands out nothing, and the count of free blocks grows by it."""

import sys

from vllm.v1.core.block_pool import BlockPool

pool = BlockPool(9, enable_caching=False, hash_block_size=4)
before = pool.get_num_free_blocks()
try:
    blocks = pool.get_new_blocks(-1)
except Exception as error:
    print(f"refused: {error!r}")
    sys.exit(0)
print(f"get_new_blocks(-1) returns {blocks}; of {before} free blocks there are {pool.get_num_free_blocks()}")
sys.exit(1)
