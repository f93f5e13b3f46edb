"""vLLM's block pool as a subject: blocks of `page_size` tokens, handed out and given back as a whole.

    kvcore check --subject kvcore.stateful.subjects.vllm:blockpool

Tried with 0.33.0. Block 0 is its null block, which is kvcore's padding page. It has neither extend nor decode: what a
request's last block has left is the business of the layer above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.block_pool import BlockPool

from ..configuration import Configuration
from .protocol import Capabilities


class blockpool:
    """BlockPool, with its prefix cache off."""

    capabilities = Capabilities(
        "slots",
        refuses="raises",
        shortage=(ValueError,),
        why_not={"KV-11": "it has no free groups"},
        operations=("alloc", "free", "free_segment"),
    )

    def __init__(self, config: Configuration) -> None:
        self.config = config
        self.pool = BlockPool(config.num_pages + 1, enable_caching=False, hash_block_size=config.page_size)

    def alloc(self, need_size: int) -> NDArray[np.int64]:
        size = self.config.page_size
        if need_size % size:
            raise TypeError(f"{need_size} tokens are no number of blocks of {size}")
        blocks = self.pool.get_new_blocks(need_size // size)
        ids = np.array([block.block_id for block in blocks], dtype=np.int64)
        slots: NDArray[np.int64] = (ids[:, None] * size + np.arange(size)).reshape(-1)
        return slots

    def free(self, slots: Sequence[int]) -> None:
        """Its callers name blocks, each once; slots that name no whole blocks are refused here. So is the null block,
        which it passes over, and what an index into its list would take for a block from the end."""
        size = self.config.page_size
        ids, named = np.unique(np.array(slots, dtype=np.int64) // size, return_counts=True)
        if (ids < 1).any():
            raise TypeError(f"{list(slots)} name no block that a request can hold")
        if (named != size).any() or len(set(slots)) != len(slots):
            raise TypeError(f"{list(slots)} are no whole blocks of {size}")
        self.pool.free_blocks([self.pool.blocks[block] for block in ids.tolist()])

    def free_segment(self, slots: Sequence[int], start_pos: int) -> None:
        if start_pos % self.config.page_size:
            raise TypeError(f"{start_pos} is no block edge")
        self.free(slots)

    def available(self) -> list[int]:
        return [self.pool.get_num_free_blocks() * self.config.page_size]

    def free_pages(self) -> list[int]:
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
