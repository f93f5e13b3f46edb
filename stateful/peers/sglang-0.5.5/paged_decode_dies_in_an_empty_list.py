"""With TRITON_INTERPRET=1: a decode reads the free list unlooked at, and an empty one ends the process."""

import os
import sys

import torch
from alone import decode
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(4, 4, torch.float16, "cpu", None, False)
pool.alloc(4)
if os.fork() == 0:
    os._exit(decode(pool, [1], [-1]) is not None)
_, status = os.wait()
print(f"decode in an empty pool: the process ends with {os.waitstatus_to_exitcode(status)}")
sys.exit(os.WIFSIGNALED(status))
