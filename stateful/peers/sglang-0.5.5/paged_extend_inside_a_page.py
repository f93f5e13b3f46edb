"""Ascend's extend in torch: a request that grows inside its last page overwrites the one before it in the batch."""

import sys

import torch
from sglang.srt.mem_cache.allocator_ascend import alloc_extend_kernel_ascend

prefix, seq, last = torch.tensor([0, 1]), torch.tensor([4, 3]), torch.tensor([-1, 8])
slots = torch.empty(6, dtype=torch.int64)
alloc_extend_kernel_ascend(prefix, seq, last, torch.arange(10, 20), slots, 4, "cpu")
print(f"extends of 4 tokens to page 10 and of 2 tokens behind slot 8 return {slots.tolist()}")
sys.exit(slots.tolist() != [40, 41, 42, 43, 9, 10])
