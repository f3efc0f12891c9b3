"""Training data: a plan, a transform and the size of a global batch."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import BatchTooSmall, CursorMismatch, InvalidOption, whole_number
from forebay.plan.cursor import Cursor
from forebay.plan.plan import Last, Plan
from forebay.transform.dataset import Dataset
from forebay.transform.transform import Transform
from forebay.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Rows in the order of `plan`, as the arrays of `transform`, cut into global batches.

    Attributes:
        plan: Order of the rows, from `build_plan`.
        transform: Turns a row group into arrays.
        global_batch: Rows per step over all ranks.
        last: "balance" trains on every row. "drop" makes all batches equally large and drops the rest of each epoch.

    Raises:
        InvalidOption: A batch without rows, an unknown policy, or one that leaves nothing to train on.
    """

    plan: Plan
    transform: Transform
    global_batch: int
    last: Last = "balance"

    def __post_init__(self) -> None:
        if self.num_batches == 0:
            raise InvalidOption(
                f"global_batch={self.global_batch} with last='drop' drops all {self.plan.num_rows} rows of the plan. "
                f"Set global_batch <= {self.plan.num_rows}, or last='balance'.",
                global_batch=self.global_batch,
                rows=self.plan.num_rows,
            )

    @property
    def num_batches(self) -> int:
        """Number of steps of one full epoch."""
        return self.plan.num_batches(self.global_batch, last=self.last)

    @property
    def start(self) -> Cursor:
        """Cursor before the first row of the first epoch."""
        return Cursor(plan_id=self.plan.id, epoch=0, position=0, global_batch=self.global_batch)

    @property
    def dropped_rows(self) -> int:
        """Number of rows of each epoch that are not trained on."""
        return self.plan.num_rows - self.num_batches * self.global_batch if self.last == "drop" else 0

    @property
    def dataset(self) -> Dataset:
        """Rows of the plan as arrays, without their order, as a cache stores them."""
        return Dataset(self.plan.manifest, self.transform)

    def validate_columns(self) -> None:
        """Compare the transform's columns with the manifest's schema. Raises `MissingColumn` or `WrongType`."""
        self.dataset.validate_columns()

    def validate_batch_size(self, option: str, rows: int) -> None:
        """Check that epochs can be cut into batches of `rows`, the value of `option`. Raises `InvalidOption`."""
        whole_number(option, rows, least=1)
        if self.plan.num_batches(rows, last=self.last) == 0:
            raise InvalidOption(
                f"{option} asks for batches of {rows} rows, which with last='drop' would drop all {self.plan.num_rows} "
                f"rows of the plan. Use at most {self.plan.num_rows}, or last='balance'.",
                global_batch=rows,
                rows=self.plan.num_rows,
            )

    def validate_cursor(self, cursor: Cursor, *, step: int) -> None:
        """Check that the checkpoint of `step` was made with this plan. Raises `CursorMismatch` otherwise."""
        if cursor.plan_id != self.plan.id:
            raise CursorMismatch(
                f"the checkpoint of step {step} was made with plan {cursor.plan_id[:8]} (global batch "
                f"{cursor.global_batch}); this job builds {self.plan} (global batch {self.global_batch}). Give the "
                "same data, seed, lanes, window_rows and shuffle as then, or give the run a new name.",
                step=step,
            )

    def validate_world_size(self, size: int) -> None:
        """Check a world of `size` ranks.

        Raises `TooManyRanks` for more than lanes, `BatchTooSmall` for more than rows of a batch.
        """
        self.plan.owned_lanes(World(size=size))
        if self.global_batch < size:
            raise BatchTooSmall(
                f"global_batch={self.global_batch} has fewer rows than there are workers ({size}). "
                f"Use global_batch={size} or more, or fewer workers.",
                global_batch=self.global_batch,
                world_size=size,
            )
