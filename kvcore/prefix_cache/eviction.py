"""Which node goes next: a heap of those that may go, by the policy's order.

    leaves = Queue(POLICIES["lru"], may_go)
    leaves.offer(node)              # whenever a node may go, and when its place in the order has changed
    node = leaves.pop()

Nothing is taken out when a node may no longer go: what no longer fits is passed over when it comes up, and the heap is
swept of that and of what is in it twice once it has doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .radix import Node

Order = tuple[int, ...]

POLICIES: dict[str, Callable[[Node], Order]] = {
    "lru": lambda node: (node.last_use,),
    "lfu": lambda node: (node.hits, node.last_use),
    "fifo": lambda node: (node.born,),
}
"""The smallest goes first. No two leaves are equal: a use marks one path, and a path has one leaf."""


class Queue:
    """Nodes in the order of eviction. `may_go` says of a node in the tree whether it can be evicted now."""

    def __init__(self, order: Callable[[Node], Order], may_go: Callable[[Node], bool]) -> None:
        self.order, self.may_go = order, may_go
        self._heap: list[tuple[Order, int, Node]] = []
        self._serial = count()
        self._sweep_at = 64

    def offer(self, node: Node) -> None:
        """Enter a node that may go now."""
        heappush(self._heap, (self.order(node), next(self._serial), node))
        if len(self._heap) > self._sweep_at:
            # One entry a node: under "fifo" a leaf that is held and let go again is offered in the same place.
            self._heap = list({id(entry[2]): entry for entry in self._heap if self._fits(entry)}.values())
            heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + 64

    def pop(self) -> Node:
        """The first in the order; the caller has checked that there is one."""
        while not self._fits(entry := heappop(self._heap)):
            pass
        return entry[2]

    def _fits(self, entry: tuple[Order, int, Node]) -> bool:
        order, _, node = entry
        return node.parent is not None and self.may_go(node) and self.order(node) == order
