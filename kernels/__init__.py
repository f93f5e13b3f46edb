"""Device operations: each file holds one operation's kernel and its CPU reference, side by side.

`dispatch` has the table of each device, `jit` loads kernels on their first launch, `upload` sends host arrays.
"""
