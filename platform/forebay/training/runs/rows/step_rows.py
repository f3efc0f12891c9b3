"""Rows of files that a recorded step was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.data.manifest.file_rows import FileRows
from forebay.data.manifest.file_windows import FileWindows
from forebay.data.plan.order import Order
from forebay.data.provenance.order_rows import OrderRows
from forebay.errors import InvalidOption
from forebay.storage.boundary import Uri
from forebay.training.runs.result import load_result
from forebay.training.runs.rows.order_record import load_order
from forebay.training.runs.rows.trained_steps import TrainedStep, TrainedSteps
from forebay.training.runs.run_folder import RunFolder, aside_name
from forebay.training.runs.timeline.timeline import FILE_NAME as TIMELINE
from forebay.training.runs.timeline.timeline import Timeline, load_timeline
from forebay.world import World


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRows:
    """Rows of a step, by batch and position.

    Attributes:
        trained: Batches of the step.
        located: Rows of the order of the run, or windows.
        rank: Rank that each of them was trained on, int64 [n].
    """

    trained: TrainedStep
    located: OrderRows
    rank: NDArray[np.int64]

    @property
    def rows(self) -> FileRows | FileWindows:
        """Return the file, row group and number of each row.

        For windows, their spans of rows. Raises as `OrderRows.named`.
        """
        return self.located.named()

    @property
    def positions(self) -> str:
        """Positions in the order for people: `epoch 2, rows 96 to 128`."""
        noun = self.located.noun
        return "; ".join(f"epoch {epoch}, {noun} {start} to {stop}" for epoch, start, stop in self.trained.spans)

    def of_rank(self, rank: int) -> StepRows:
        """Rows of one rank.

        Raises `InvalidOption` for a rank that the step did not have.
        """
        size = self.trained.world_size
        if not 0 <= rank < size:
            raise InvalidOption(
                f"rank={rank}: step {self.trained.step} was trained by {size} worker{'s' if size > 1 else ''}. Give "
                f"{'0' if size == 1 else f'0 to {size - 1}'}.",
                rank=rank,
                world_size=size,
            )
        own = np.flatnonzero(self.rank == rank)
        return StepRows(trained=self.trained, located=self.located.take(own), rank=self.rank[own])

    def values(self, most: int | None = None, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """Return the values of rows, by column.

        Of the first `most` rows, or of all, as the files have them. Values of windows are lists.

        Raises:
            SourceChanged: A file is missing, or is not the version that the run was trained on.
            MissingColumn: The run did not read such a column.
            CorruptFile, ReadFailed: A file cannot be read.
        """
        return self.located.take(slice(most)).values(columns)


def rows_of_step(
    run: str | RunFolder, step: int, *, is_skipped: bool = False, allow_locations: Uri | Sequence[Uri] = ()
) -> StepRows:
    """Return the rows of a step of a recorded run.

    `run` is its folder. With `is_skipped`, the rows that a monitor left out at it. Reads no data, except
    the column of a `Sampled`.

    Raises:
        InvalidOption: Not a run, a step that was not trained, or an order that is not recorded.
    """
    folder = RunFolder.at(run)
    recorded, timeline, result = (
        load_order(folder, allow_locations),
        load_timeline(folder) or Timeline(),
        load_result(folder),
    )
    if timeline.damaged:
        raise InvalidOption(
            f"{folder.uri}: a damaged timeline.json was set aside when the run continued "
            f"({aside_name(TIMELINE, timeline.damaged)}), so it is not recorded which batches a monitor left out. "
            "batch.rows() names rows during training.",
            path=folder.uri,
        )
    ended = result.epochs[-1].step if result and result.epochs else 0
    steps = TrainedSteps(timeline, recorded.order, recorded.last, last_step=max(timeline.last_step, ended))
    trained = steps.find_skipped(step) if is_skipped else steps.find(step)
    order, every = recorded.order, range(recorded.order.lanes)
    lanes = [order.row_lanes(*span, every) for span in trained.spans]
    return StepRows(
        trained=trained,
        located=OrderRows.at(order, recorded.keys, trained.spans, every),
        rank=_rank_of_lanes(order, trained.world_size)[np.concatenate(lanes)],
    )


def _rank_of_lanes(order: Order, world_size: int) -> NDArray[np.int64]:
    """Rank that reads each lane, int64 [lanes]."""
    found = np.empty(order.lanes, dtype=np.int64)
    for rank in range(world_size):
        found[list(order.owned_lanes(World(rank=rank, size=world_size)))] = rank
    return found
