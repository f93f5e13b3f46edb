"""Pools of pages: the free list, and the allocators that hand out slots from it."""
