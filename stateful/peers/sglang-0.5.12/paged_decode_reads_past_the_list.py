"""Ascend's decode in torch: members that need no page read the free list, too, and may do so behind its end."""

import sys

import torch
from sglang.srt.hardware_backend.npu.allocator_npu import NPUPagedTokenToKVPoolAllocator

pool = NPUPagedTokenToKVPoolAllocator(12, 4, torch.float16, "cpu", None, False)
row = pool.alloc(8)[:5]
lens, last = torch.tensor([1, 6]), torch.tensor([-1, row[-1]])
try:
    slots = pool.alloc_decode(lens, lens, last)
except IndexError as error:
    print(f"one page is free and one is needed: {error}")
    sys.exit(1)
print(f"the decode returns {slots.tolist()}")
sys.exit(0)
