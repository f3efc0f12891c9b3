"""How all trials of a sweep hear, in the middle of an epoch, that the sweep ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class Bell:
    """An actor beside the sweep; its trials listen now and then."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def ring(self, reason: str) -> None:
        """Have all trials commit and end."""
        self._reason = self._reason or reason

    def heard(self) -> str | None:
        """Why trials shall end, or None as long as they shall not."""
        return self._reason


@contextmanager
def hung_up_bell() -> Iterator[ActorHandle]:
    """A bell for the length of the block."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    bell = ray.remote(Bell).options(num_cpus=0, scheduling_strategy=here).remote()
    try:
        yield bell
    finally:
        ray.kill(bell)
