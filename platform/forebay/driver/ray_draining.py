"""Nodes that are about to be taken away, as the cluster's control service knows them. Checked on Ray 2.60."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ray._private import state as ray_state  # no public way

HURRY_S = 20.0
"""With less time than this left, nobody waits for a successor to be warm."""


def draining_nodes() -> dict[str, float | None]:
    """Node id -> Unix time at which it goes, None where nobody said when."""
    return {node: at_ms / 1000 if at_ms else None for node, at_ms in ray_state.state.get_draining_nodes().items()}


def in_a_hurry(leaving: Mapping[str, float | None]) -> bool:
    """Whether one of the nodes may be gone before another worker process has started."""
    return any(at_s is None or at_s - time.time() < HURRY_S for at_s in leaving.values())
