"""Who decides how many rows a step has, and how the learning rate follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forebay.loader.data import Data
from forebay.train.setup import TrainSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPosition:
    """Where a run stands at a saved commit: the next row to be trained is row `position` of epoch `epoch`."""

    epoch: int
    position: int
    step: int
    global_batch: int


class LiveBatchPolicy(Protocol):
    """A batch policy at work on one rank. Laws: as `LiveMonitor`; what it measures lives in its state."""

    def step(self, *, rows: int, size: int) -> None:
        """See one step: `rows` were this rank's, `size` the global batch's. Never waits for the device."""

    def measured(self) -> tuple[float, ...]:
        """What this rank has seen since the last call, for all ranks. Asked at every saved commit; may wait."""
        ...

    def global_batch(self, place: TrainPosition, measured: Sequence[tuple[float, ...]]) -> int:
        """Rows per step from `place` on, given what every rank measured, by rank: all ranks come to the same answer."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class BatchPolicy(Protocol):
    """What a job holds: frozen, picklable."""

    def check(self, reduction: str, data: Data) -> None:
        """Called by `Job`. Raises `InvalidOption` where it cannot work with gradients that are reduced in this way.

        And what `data.validate_batch_size` raises, for batches it may choose and `data` cannot be cut into.
        """

    def begin(self, training: TrainSetup) -> LiveBatchPolicy:
        """Called by `Worker.setup`, on every rank, before the model is wrapped."""
        ...


class RateScaling(Protocol):
    """How the learning rate follows the global batch: frozen, picklable, pure."""

    def factor(self, *, global_batch: int, base_batch: int, steps_since_change: int, previous_batch: int) -> float:
        """What to multiply every learning rate with, in the next step."""
        ...
