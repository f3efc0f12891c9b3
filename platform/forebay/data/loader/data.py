"""Training data: a plan, its transforms and global batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from forebay.data.plan.cursor import Cursor
from forebay.data.plan.order import Last, Order
from forebay.data.plan.plan import Plan
from forebay.data.transform.augment import Augment, AugmentFunction, as_augment
from forebay.data.transform.block import ArraySchema
from forebay.data.transform.dataset import Dataset, validate_augment
from forebay.data.transform.features.ragged import LIST_OFFSETS, LIST_VALUES
from forebay.data.transform.transform import Transform
from forebay.data.windows.index import window_indices
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.data.windows.statistics import join_statistics
from forebay.errors import BatchTooSmall, CursorMismatch, InvalidOption, validate_type, whole_number
from forebay.world import World

LEAST_SHUFFLED_BATCHES = 100
"""Batches that a shuffle of windows covers. On tinyshakespeare 42 cost 0.04 of the validation loss, 5,461 nothing."""

Transforms: TypeAlias = Transform | Mapping[str, Transform]
"""One transform for all datasets of a plan, or one by name of each."""


def datasets_of(plan: Order, transform: Transforms) -> tuple[Dataset, ...]:
    """Each dataset of `plan` with its transform.

    Raises `InvalidOption` for names that the plan does not have, and for windows without a transform of sequences.
    """
    makers = transform.values() if isinstance(transform, Mapping) else (transform,)
    if any(bool(plan.windows) != isinstance(each, SequenceTransform) for each in makers):
        ordered = "windows" if plan.windows else "rows of row groups"
        raise InvalidOption(
            f"the plan orders {ordered}, but transform= makes the other kind. Give plan=build_plan(part) and "
            "transform=part.transform of one part of fb.Sequences, or neither."
        )
    if not isinstance(transform, Mapping):
        return tuple(Dataset(manifest, transform) for manifest in plan.manifests)
    if set(transform) != set(plan.names):
        raise InvalidOption(
            f"transform= has entries for {sorted(transform)}, but the plan mixes the datasets {sorted(plan.names)}. "
            "Give one transform for all of them, or one for each name.",
            names=plan.names,
        )
    return tuple(Dataset(manifest, transform[name]) for name, manifest in zip(plan.names, plan.manifests, strict=True))


def validate_datasets(plan: Order, datasets: tuple[Dataset, ...]) -> None:
    """Validate columns, and that all datasets give equal arrays.

    Reads no data.

    Arrays of a transform with `fn` are known when its first row group arrives.

    Raises `MissingColumn` or `WrongType`, or `InvalidOption` for datasets with different arrays.
    """
    # Equal columns need one look for each transform: a look takes 1 ms, which the first batch waits for.
    alike = {(id(dataset.transform), dataset.manifest.fields): dataset for dataset in datasets}
    for dataset in alike.values():
        dataset.validate_columns()
    found = {kind: dataset.array_schema() for kind, dataset in alike.items()} if plan.names else {}
    kinds = [(id(dataset.transform), dataset.manifest.fields) for dataset in datasets]
    schemas = {name: found[kind] for name, kind in zip(plan.names, kinds, strict=False)}
    known = {name: schema for name, schema in schemas.items() if schema is not None}
    first = next(iter(known), "")
    for name, schema in known.items():
        if schema != known[first]:
            raise InvalidOption(
                f"the transforms give {first!r} the arrays {_shown(known[first])}, but {name!r} {_shown(schema)}. A "
                "batch holds rows of all datasets: give them the same names, dtypes and trailing shapes, in the same "
                "order.",
                names=(first, name),
            )


def _shown(schema: ArraySchema) -> ArraySchema:
    """Arrays by the names of their features.

    Lists without padding have other names in a block.
    """
    found = []
    for name, dtype, tail in schema:
        if name.startswith(LIST_VALUES):
            found.append((f"{name.removeprefix(LIST_VALUES)} without padding", dtype, tail))
        elif not name.startswith(LIST_OFFSETS):
            found.append((name, dtype, tail))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Training data of a run.

    Rows in the order of `plan`, as the arrays of `transform`, cut into global batches.

    Attributes:
        plan: Order of the rows, from `build_plan`, or of several datasets.
        transform: Turns a row group into arrays. For several datasets one transform, or one by name of the dataset.
        global_batch: Rows per step over all ranks.
        last: "balance" trains on every row. "drop" makes all batches equally large and drops the rest of each epoch.
        augment: Function `augment(batch, rng)` that changes batches at random, after the cache. It becomes an
            `Augment`. Held-out data has none.

    Raises:
        InvalidOption: A batch without rows, an unknown policy, or one that leaves nothing to train on.
        Unfingerprintable: An augment that needs a version, or a function that reads what was changed since.
    """

    plan: Order
    transform: Transforms
    global_batch: int
    last: Last = "balance"
    augment: Augment | AugmentFunction | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "augment", as_augment(self.augment))
        validate_type("plan", self.plan, Order, "what fb.build_plan(manifest) returns")
        object.__setattr__(self, "global_batch", whole_number("global_batch", self.global_batch, least=1))
        for dataset in datasets_of(self.plan, self.transform):
            validate_augment(self.augment, dataset.transform)
        self.validate_functions()
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
        """Number of rows dropped in each epoch."""
        return self.plan.num_rows - self.num_batches * self.global_batch if self.last == "drop" else 0

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """Datasets of the plan with their transforms.

        Without their order, as a cache stores them.
        """
        return datasets_of(self.plan, self.transform)

    def validate_columns(self) -> None:
        """Validate transforms against the manifests' schemas.

        Also compares the arrays of all datasets with each other.

        Raises `MissingColumn`, `WrongType`, or `InvalidOption` for datasets with different arrays.
        """
        validate_datasets(self.plan, self.datasets)

    def validate_functions(self) -> None:
        """Validate that the user's functions are what they were.

        Raises `Unfingerprintable` if something that they read was changed since, or is another in this process.
        """
        makers = self.transform.values() if isinstance(self.transform, Mapping) else (self.transform,)
        for transform in {id(each): each for each in makers}.values():
            transform.validate_unchanged()
        if isinstance(self.augment, Augment):
            self.augment.validate_unchanged()

    def validate_batch_size(self, option: str, rows: int) -> None:
        """Validate a batch size.

        `rows` is the value of `option`. Raises `InvalidOption`.
        """
        whole_number(option, rows, least=1)
        if self.plan.num_batches(rows, last=self.last) == 0:
            raise InvalidOption(
                f"{option} asks for batches of {rows} rows, which with last='drop' would drop all {self.plan.num_rows} "
                f"rows of the plan. Use at most {self.plan.num_rows}, or last='balance'.",
                global_batch=rows,
                rows=self.plan.num_rows,
            )

    def validate_cursor(self, cursor: Cursor, *, step: int) -> None:
        """Validate the cursor of a checkpoint.

        Raises `CursorMismatch` unless the checkpoint of `step` was made with this plan.
        """
        if not self.plan.accepts(cursor):
            raise CursorMismatch(
                f"the checkpoint of step {step} was made with plan {cursor.plan_id[:8]} (global batch "
                f"{cursor.global_batch}); this job builds {self.plan} (global batch {self.global_batch}). Give the "
                "same data, seed, lanes, shuffle_rows and shuffle as then, or give the run a new name.",
                step=step,
            )

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Statistics for scaling and filling, with their id.

        Empty without such.

        Statistics of several datasets have columns by `"dataset/column"`, and scale and fill by dataset.
        """
        if isinstance(self.transform, SequenceTransform):
            return self.transform.views.statistics
        if isinstance(self.transform, Mapping):
            makers = sorted(self.transform.items())
            return join_statistics(
                {name: each.views.statistics for name, each in makers if isinstance(each, SequenceTransform)}
            )
        return {}

    def validate_statistics(self, saved: Mapping[str, Any], *, owner: str) -> None:
        """Validate saved statistics against the current ones.

        `owner` was trained with the saved ones, such as "the checkpoint of step 3".

        Raises `CursorMismatch` otherwise.
        """
        if saved.get("id", "") == self.statistics.get("id", ""):
            return
        found, own = saved.get("columns", {}), self.statistics.get("columns", {})
        changed = sorted(name for name in found.keys() | own.keys() if found.get(name) != own.get(name))
        what = ", ".join(changed) or "scale or fill"
        raise CursorMismatch(
            f"{owner} was trained on values scaled or filled by other statistics: {what} changed. Give the same data, "
            "split, scale and fill as then, or give the run a new name.",
            columns=tuple(changed),
        )

    @property
    def shuffle_advice(self) -> str | None:
        """Advice about a shuffle of windows.

        Sentences about one that is too local, None for a good one.

        Neighbouring windows are nearly the same sample. Lanes whose windows are all shuffled together are never too
        local.
        """
        plan = self.plan
        if not isinstance(plan, Plan) or not plan.windows or not plan.shuffle:
            return None
        shape, lane_rows = window_indices(plan)[0].shape, -(-plan.num_rows // plan.lanes)
        covered, batch_steps = plan.shuffle_rows * shape.stride, self.global_batch * shape.length
        if plan.shuffle_rows >= lane_rows or covered >= LEAST_SHUFFLED_BATCHES * batch_steps:
            return None
        needed = min(-(-LEAST_SHUFFLED_BATCHES * batch_steps // shape.stride), lane_rows)
        return (
            f"The plan shuffles {plan.shuffle_rows} neighbouring windows at a time. They cover {covered} steps, and a "
            f"batch of {self.global_batch} windows has {batch_steps}: {covered / batch_steps:.1f} batches, where "
            f"{LEAST_SHUFFLED_BATCHES} are needed for a good mix. Build the plan with shuffle_rows={needed}, or with a "
            "larger stride."
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
