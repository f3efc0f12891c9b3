"""Sum over lanes, in one order at every world size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, order=True)
class LaneNode:
    """Sum of 2^level lanes, from lane number * 2^level on.

    Lanes are numbered in the order in which ranks own them.
    """

    level: int
    number: int

    def reaches(self, lanes: int) -> bool:
        """Whether the last lane is within this node."""
        return (self.number + 1) << self.level >= lanes


class LaneTree:
    """Tree of sums in the order of lanes.

    Lanes 0 and 1, 2 and 3, then the sums of both pairs, and so on.

    A sum is computed as soon as both of its halves are known. So the sums of consecutive lanes are nodes of the tree
    over all `lanes`, whichever rank owns them. At most 2 log2(lanes) of them are kept. Adding the sums of all ranks in
    the order of lanes gives the tree's root.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._sums: list[tuple[LaneNode, Tensor]] = []

    def add(self, node: LaneNode, values: Tensor) -> None:
        """Add the next node's values [n].

        The tree keeps this tensor and adds to it in place.
        """
        self._sums.append((node, values))
        while self._grows():
            pass

    @property
    def sums(self) -> list[Tensor]:
        """Partial sums, one per node of `nodes_of`."""
        return [values for _, values in self._sums]

    @property
    def nodes(self) -> list[LaneNode]:
        return [node for node, _ in self._sums]

    def _grows(self) -> bool:
        node, values = self._sums[-1]
        if node.reaches(self._lanes) and node.number % 2 == 0:
            if node.number == 0:
                return False
            # The last of an odd number has no partner: it is also the sum of the level above.
            self._sums[-1] = (LaneNode(node.level + 1, node.number // 2), values)
            return True
        if len(self._sums) < 2:
            return False
        left, kept = self._sums[-2]
        if left.level != node.level or left.number % 2 or left.number + 1 != node.number:
            return False
        self._sums[-2:] = [(LaneNode(node.level + 1, left.number // 2), kept.add_(values))]
        return True


def nodes_of(owned: range, lanes: int) -> list[LaneNode]:
    """Return the nodes that these consecutive lanes make up."""
    tree = LaneTree(lanes)
    for lane in owned:
        tree.add(LaneNode(0, lane), torch.empty(0))
    return tree.nodes
