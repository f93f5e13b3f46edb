"""A free group that is not open is closed without a word."""

import sys

from alone import attempt, swa

pool = swa(8, 8)
ended = attempt(pool.free_group_end)
print(f"free_group_end without free_group_begin: {ended!r}")
sys.exit(not isinstance(ended, Exception))
