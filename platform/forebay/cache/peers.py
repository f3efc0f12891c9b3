"""Where a block may be found before its source is read: with another node that holds it."""

from __future__ import annotations

from typing import Protocol

from forebay.transform.block import Block


class Peers(Protocol):
    """The other nodes of a cluster, asked for one block of one data set."""

    def find(self, dataset_id: str, index: int) -> Block | None:
        """Block `index` from a node that holds it; None if none does, or none answers in time. Never raises."""
        ...
