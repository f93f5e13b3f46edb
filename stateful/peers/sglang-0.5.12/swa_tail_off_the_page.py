"""A tail that begins in the middle of a page is mapped to slots at other offsets."""

import sys

import torch
from alone import attempt, swa

pool = swa(32, 32, 4)
zero, eight = torch.tensor([0]), torch.tensor([8])
attempt(pool.alloc_extend_swa_tail, zero, zero, eight, eight, torch.tensor([-1]), 8, 3)
mapped = pool.full_to_swa_index_mapping[8:12].tolist()
print(f"slots 8 to 11, with a tail that begins at slot 9, have the window slots {mapped}")
sys.exit(any(slot > 0 and slot % 4 != offset for offset, slot in enumerate(mapped)))
