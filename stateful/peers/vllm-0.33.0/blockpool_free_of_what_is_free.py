"""A block that is freed twice has a reference count of -1, which is noticed when it is next handed out."""

import sys

from vllm.v1.core.block_pool import BlockPool

pool = BlockPool(2, enable_caching=False, hash_block_size=4)
(block,) = pool.get_new_blocks(1)
pool.free_blocks([block])
try:
    pool.free_blocks([block])
except Exception as error:
    print(f"refused: {error!r}")
    sys.exit(0)
try:
    pool.get_new_blocks(1)
    told = "returns"
except AssertionError as error:
    told = f"ends in {error!r}"
print(f"the second free returns, the next allocation {told}")
sys.exit(1)
