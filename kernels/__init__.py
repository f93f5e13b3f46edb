"""Device operations: each file holds one operation's kernel and its CPU reference, side by side."""
