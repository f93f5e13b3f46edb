"""A block that is freed twice has a reference count of -1."""

import sys

from vllm.v1.core.block_pool import BlockPool

pool = BlockPool(2, enable_caching=False, hash_block_size=4)
(block,) = pool.get_new_blocks(1)
pool.free_blocks([block])
try:
    pool.free_blocks([block])
except Exception as error:
    print(f"the second free ends in {error!r}")
print(f"after two frees the block has the count {block.ref_cnt}")
sys.exit(block.ref_cnt != 0)
