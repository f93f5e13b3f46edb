"""A free group that is not open is closed without a word."""

import sys

import torch
from alone import attempt
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator

pool = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False)
ended = attempt(pool.free_group_end)
print(f"free_group_end without free_group_begin: {ended!r}")
sys.exit(not isinstance(ended, Exception))
