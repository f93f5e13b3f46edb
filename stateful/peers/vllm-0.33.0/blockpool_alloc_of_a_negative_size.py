"""A number of blocks below zero hands out nothing, and the count of free blocks grows by it."""

import sys

from vllm.v1.core.block_pool import BlockPool

pool = BlockPool(9, enable_caching=False, hash_block_size=4)
before = pool.get_num_free_blocks()
try:
    print(f"get_new_blocks(-1) returns {pool.get_new_blocks(-1)}")
except Exception as error:
    print(f"get_new_blocks(-1) ends in {error!r}")
print(f"of {before} free blocks there are {pool.get_num_free_blocks()}")
sys.exit(pool.get_num_free_blocks() != before)
