"""The prefix cache: a radix tree of pages, its keys, and the order in which it gives them back."""
