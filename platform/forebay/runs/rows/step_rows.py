"""Rows of files that a step of a recorded run was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvalidOption
from forebay.manifest.rows.file_rows import FileRows
from forebay.manifest.rows.row_values import row_values
from forebay.plan.order import Order
from forebay.runs.result import load_result
from forebay.runs.rows.order_record import load_order
from forebay.runs.rows.trained_steps import TrainedStep, TrainedSteps
from forebay.runs.timeline.timeline import Timeline, load_timeline
from forebay.world import World


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRows:
    """Rows of a step, batch by batch, in the order of their positions.

    Attributes:
        order: Order of the run.
        trained: Batches of the step.
        block: Row group of each row, numbered over all data sets, int64 [n].
        row: Number in the row group, int64 [n].
        rank: Rank that each row was trained on, int64 [n].
    """

    order: Order
    trained: TrainedStep
    block: NDArray[np.int64]
    row: NDArray[np.int64]
    rank: NDArray[np.int64]

    @property
    def rows(self) -> FileRows:
        """File, row group and number of each row."""
        return FileRows.of(self.order.manifests, self.block, self.row, self.order.names)

    def of_rank(self, rank: int) -> StepRows:
        """Rows of one rank. Raises `InvalidOption` for a rank that the step did not have."""
        size = self.trained.world_size
        if not 0 <= rank < size:
            raise InvalidOption(
                f"rank={rank}: step {self.trained.step} was trained by {size} worker{'s' if size > 1 else ''}. Give "
                f"{'0' if size == 1 else f'0 to {size - 1}'}.",
                rank=rank,
                world_size=size,
            )
        own = self.rank == rank
        columns = {name: getattr(self, name)[own] for name in ("block", "row", "rank")}
        return StepRows(order=self.order, trained=self.trained, **columns)

    def values(self, most: int | None = None, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Values of the first `most` rows, or of all, as the files have them: column to value.

        Raises:
            SourceChanged: A file is missing, or is not the version that the run was trained on.
            MissingColumn: The run did not read such a column.
            CorruptFile, ReadFailed: A file cannot be read.
        """
        return row_values(self.order.manifests, self.block[:most], self.row[:most], columns)


def rows_of_step(path: str, step: int, *, is_skipped: bool = False) -> StepRows:
    """Rows of `step` of the run in the folder `path`, or those that a monitor left out at it. Reads no data.

    Raises:
        InvalidOption: Not a run, a step that was not trained, or an order that is not recorded.
    """
    recorded, timeline, result = load_order(path), load_timeline(path) or Timeline(), load_result(path)
    ended = result.epochs[-1].step if result and result.epochs else 0
    steps = TrainedSteps(timeline, recorded.order, recorded.last, last_step=max(timeline.last_step, ended))
    trained = steps.find_skipped(step) if is_skipped else steps.find(step)
    order, every = recorded.order, range(recorded.order.lanes)
    parts = [order.positioned_rows(*span, every) for span in trained.spans]
    lanes = [order.row_lanes(*span, every) for span in trained.spans]
    return StepRows(
        order=order,
        trained=trained,
        block=np.concatenate([part.block for part in parts]),
        row=np.concatenate([part.row for part in parts]),
        rank=_rank_of_lanes(order, trained.world_size)[np.concatenate(lanes)],
    )


def _rank_of_lanes(order: Order, world_size: int) -> NDArray[np.int64]:
    """Rank that reads each lane, int64 [lanes]."""
    found = np.empty(order.lanes, dtype=np.int64)
    for rank in range(world_size):
        found[list(order.owned_lanes(World(rank=rank, size=world_size)))] = rank
    return found
