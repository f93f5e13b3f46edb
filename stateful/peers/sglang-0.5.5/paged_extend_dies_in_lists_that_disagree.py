"""With TRITON_INTERPRET=1: an extend reads a last slot of each request, and a list without one ends the process."""

import os
import sys

import torch
from alone import extend
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

pool = PagedTokenToKVPoolAllocator(4, 4, torch.float16, "cpu", None, False)
if os.fork() == 0:
    os._exit(extend(pool, [0], [1], []) is not None)
_, status = os.wait()
print(f"extend with no last slot: the process ends with {os.waitstatus_to_exitcode(status)}")
sys.exit(os.WIFSIGNALED(status))
