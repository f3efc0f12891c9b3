"""Protocols of batch policies and of rate scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forebay.data.loader.data import Data
from forebay.training.state.setup import TrainSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPosition:
    """Position of a run at a checkpoint.

    The next row to train is row `position` of epoch `epoch`.
    """

    epoch: int
    position: int
    step: int
    global_batch: int


class LiveBatchPolicy(Protocol):
    """Active batch policy on one rank.

    Laws: as `LiveMonitor`. Its measurements are part of its state.
    """

    def step(self, *, rows: int, size: int) -> None:
        """Count one step: `rows` here, `size` over all ranks.

        Never waits for the device.
        """

    def measured(self) -> tuple[float, ...]:
        """Return this rank's measurements since the last call.

        Called at every checkpoint. May wait for the device.
        """
        ...

    def global_batch(self, place: TrainPosition, measured: Sequence[tuple[float, ...]]) -> int:
        """Return the rows per step from `place` on.

        By every rank's measurements, and the same on all ranks.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class BatchPolicy(Protocol):
    """Configuration of a batch policy: frozen, picklable.

    One that reads whole parameters or gradients has a class attribute `needs_whole = True`. A job with a strategy that
    splits them refuses it.
    """

    def validate(self, reduction: str, data: Data) -> None:
        """Check that the policy suits the gradient reduction.

        Called by `Job`.

        Raises `InvalidOption` otherwise, and like `data.validate_batch_size` for possible batch sizes that `data`
        cannot have.
        """

    def attach(self, setup: TrainSetup) -> LiveBatchPolicy:
        """Return the active policy.

        Called by `Worker.setup` on every rank, before the model is wrapped.
        """
        ...


class RateScaling(Protocol):
    """Rule of the learning rate by the global batch.

    Frozen, picklable, pure.
    """

    def factor(self, *, global_batch: int, base_batch: int, steps_since_change: int, previous_batch: int) -> float:
        """Return the rate factor of the next step.

        Args:
            global_batch: Rows of the next step, over all ranks.
            base_batch: Rows for which the job's learning rates were chosen: the first global batch of its data.
            steps_since_change: Number of steps since the global batch last changed.
            previous_batch: Rows of a step before that change.
        """
        ...
