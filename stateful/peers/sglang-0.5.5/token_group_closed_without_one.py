"""A free group that is not open is closed without a word."""

import sys

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

pool = TokenToKVPoolAllocator(16, torch.float16, "cpu", None, False)
try:
    pool.free_group_end()
except Exception as error:
    print(f"refused: {error!r}")
    sys.exit(0)
print("free_group_end without free_group_begin returns")
sys.exit(1)
