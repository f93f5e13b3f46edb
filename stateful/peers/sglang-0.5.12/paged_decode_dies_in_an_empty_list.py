"""With TRITON_INTERPRET=1: a decode reads the free list unlooked at, and an empty one ends the process."""

import os
import sys

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(4, 4, torch.float16, "cpu", None, False)
pool.alloc(4)
one = torch.tensor([1])
child = os.fork()
if child == 0:
    os._exit(pool.alloc_decode(one, one, torch.tensor([-1])) is not None)
_, status = os.waitpid(child, 0)
print(f"decode in an empty pool: the process ends with {os.waitstatus_to_exitcode(status)}")
sys.exit(os.WIFSIGNALED(status))
