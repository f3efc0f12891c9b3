"""Batch policy: global batch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.data.loader.data import Data
from forebay.errors import InvalidOption, validate_type, whole_number
from forebay.training.batch_size.policy import TrainPosition
from forebay.training.state.setup import TrainSetup


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Rows per step from given epochs on.

    Epochs before the first one have the global batch of the job's data.

    A pure function of the epoch. A callback's request goes before it, from then on. Raises `InvalidOption` for an empty
    schedule, an epoch below 1 or a batch without rows.

    >>> BatchSchedule({30: 2048, 60: 4096}).rows(45)
    2048
    """

    rows_from: Mapping[int, int]

    def __post_init__(self) -> None:
        validate_type("rows_from", self.rows_from, Mapping, "{epoch: rows}, e.g. {30: 2048}")
        if not self.rows_from:
            raise InvalidOption("BatchSchedule({}) schedules nothing. Give it {epoch: rows}, e.g. {30: 2048}.")
        if 0 in self.rows_from:
            raise InvalidOption(
                f"BatchSchedule({dict(self.rows_from)}) gives epoch 0 a batch, but a run starts with the global_batch "
                "of its data. Set that one instead."
            )
        epochs = {
            whole_number("epoch", epoch, least=1): whole_number("rows", rows, least=1)
            for epoch, rows in self.rows_from.items()
        }
        object.__setattr__(self, "rows_from", dict(sorted(epochs.items())))

    def rows(self, epoch: int) -> int | None:
        """Rows per step in `epoch`.

        None before the first scheduled epoch.
        """
        due = [rows for start, rows in self.rows_from.items() if start <= epoch]
        return due[-1] if due else None

    def validate(self, reduction: str, data: Data) -> None:  # noqa: ARG002 - a `BatchPolicy`; any reduction will do
        """Check that `data` allows all scheduled batch sizes.

        Raises `InvalidOption` otherwise.
        """
        for epoch, rows in self.rows_from.items():
            data.validate_batch_size(f"batch=BatchSchedule({{{epoch}: {rows}}})", rows)

    def attach(self, setup: TrainSetup) -> BatchSchedule:  # noqa: ARG002 - a `BatchPolicy`; it is its own live part
        """Return itself: a schedule observes nothing."""
        return self

    def step(self, *, rows: int, size: int) -> None:
        """Do nothing."""

    def measured(self) -> tuple[float, ...]:
        """Return no measurements."""
        return ()

    def global_batch(self, place: TrainPosition, measured: Sequence[tuple[float, ...]]) -> int:  # noqa: ARG002
        """Rows per step in the epoch of `place`."""
        return self.rows(place.epoch) or place.global_batch

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: a schedule is stateless."""
