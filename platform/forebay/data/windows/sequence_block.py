"""Block of sequences: sorted steps, runs and value summaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.decoded_table import Columns, as_table
from forebay.data.transform.block import ATTACHED, ArraySchema, Block, BlockArray
from forebay.data.transform.features.hashing import Hashes, hash_integers
from forebay.data.transform.fingerprint.values import Identity, canonical, digest
from forebay.data.transform.transform import LAYOUT_VERSION, Transform
from forebay.data.windows.statistics import RESTS as NUM_RESTS
from forebay.data.windows.statistics import summarize
from forebay.data.windows.steps import StepColumns, Steps, sorted_steps
from forebay.data.windows.views import WindowViews
from forebay.errors import BadSeries

SEQUENCE_VERSION = 2
"""Increased when the same columns give other arrays."""

TIME = f"{ATTACHED}time"
VALUES = f"{ATTACHED}values."
RESTS = f"{ATTACHED}rests."
SUMMARY = f"{ATTACHED}summary."
STATIC = f"{ATTACHED}static."
RUN_ENDS = f"{ATTACHED}runs.ends"
RUN_TIMES = f"{ATTACHED}runs.times"
RUN_ENTITIES = f"{ATTACHED}runs.entities"
RUN_TEXTS = f"{ATTACHED}runs.texts"
RUN_TEXT_ENDS = f"{ATTACHED}runs.text_ends"


@dataclass(frozen=True, init=False, slots=True, eq=False)
class SequenceTransform(Transform):
    """Transform of row groups into blocks of sequences.

    All arrays are attached (`ATTACHED`), since the runs and, of list columns, the steps are not as many as the rows:
    - `@values.<dtype>` [steps, columns]: the steps, sorted by (entity, time, row in the file).
    - `@rests.<dtype>` float32 [steps, columns]: what the values lost when they were rounded. Left out if all are 0.
    - `@time` int64 [steps]: time in the unit of its column. Left out without a time column.
    - `@runs.ends` int64 [runs]: end of each run. A run holds all steps of one entity.
    - `@runs.times` int64 [runs, 2]: first and last time of each run.
    - `@runs.entities` int64 [runs], or `@runs.texts` uint8 and `@runs.text_ends` int64 [runs]: entity of each run.
    - `@static.<name>` [runs, ...]: static features of each run.
    - `@summary.<dtype>` float64 [columns, 8]: see `summarize`.
    """

    step_columns: StepColumns
    views: WindowViews
    """Arrays that a batch of windows has. Blocks do not depend on them."""

    def __init__(self, step_columns: StepColumns, views: WindowViews | None = None) -> None:
        identity: Identity = [LAYOUT_VERSION, SEQUENCE_VERSION, step_columns.identity()]
        values: dict[str, Any] = {
            "features": {},
            "fn": None,
            "version": None,
            "fingerprint": digest(canonical(identity).encode()),
            "_identity": identity,
            "step_columns": step_columns,
            "views": views or WindowViews(views=()),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read, each once."""
        return self.step_columns.columns

    def check(self, manifest: Manifest) -> None:
        """Raise `MissingColumn` or `WrongType` for an unusable column."""
        self.step_columns.check({field.name: parse_type(field.type) for field in manifest.fields})

    def array_schema(self, manifest: Manifest) -> ArraySchema:
        """Schema of a batch of windows.

        Name, dtype and trailing shape of each array. Raises as `check`.
        """
        self.check(manifest)
        schema = pa.schema([(field.name, parse_type(field.type)) for field in manifest.fields])
        static: ArraySchema = ()
        for name, feature in self.step_columns.static.items():
            static += Block.of(feature.arrays(name, schema.empty_table()), 0).schema
        return self.views.array_schema + static

    def apply(self, table: Columns) -> Block:
        """Transform `table` into a block.

        Raises the errors of `check`, and `BadSeries`.
        """
        table, columns = as_table(table), self.step_columns
        columns.check(dict(zip(table.schema.names, table.schema.types, strict=True)))
        steps = sorted_steps(columns, table)
        first = np.concatenate([[0], steps.ends[:-1]]).astype(np.int64)[: len(steps.ends)]
        arrays: dict[str, BlockArray] = {f"{VALUES}{dtype}": values for dtype, values in steps.values.items()}
        if columns.time is not None:
            arrays[TIME] = steps.time
        arrays[RUN_ENDS] = steps.ends
        arrays[RUN_TIMES] = np.stack([steps.time[first], steps.time[steps.ends - 1]], axis=1)
        arrays |= _entity_arrays(steps.entities)
        arrays |= _static_arrays(columns, table, steps, first)
        for dtype, values in steps.values.items():
            arrays |= _summary_arrays(dtype, values, steps.wide.get(dtype))
        return Block(table.num_rows, {name: np.ascontiguousarray(array) for name, array in arrays.items()})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Runs of one block, ascending by entity.

    Attributes:
        ends: End of each run on the steps of the block, int64 [runs].
        times: First and last time of each run, int64 [runs, 2].
        entities: Entity of each run, int64 or large_string [runs].
    """

    ends: NDArray[np.int64]
    times: NDArray[np.int64]
    entities: pa.Array

    @classmethod
    def of(cls, block: Block) -> Runs:
        """Runs of a block made by a `SequenceTransform`.

        Reads nothing else of it.
        """
        arrays = block.arrays
        if RUN_ENTITIES in arrays:
            entities = pa.array(arrays[RUN_ENTITIES])
        else:
            ends = arrays[RUN_TEXT_ENDS]
            offsets = np.concatenate([[0], ends]).astype(np.int64)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(arrays[RUN_TEXTS]))]
            entities = pa.Array.from_buffers(pa.large_string(), len(ends), buffers)
        return cls(ends=arrays[RUN_ENDS], times=arrays[RUN_TIMES], entities=entities)

    def __len__(self) -> int:
        return len(self.ends)


def _summary_arrays(dtype: str, values: BlockArray, wide: NDArray[np.float64] | None) -> dict[str, BlockArray]:
    """Summary of an array of steps, and its rests."""
    summary = summarize(values if wide is None else wide)
    if wide is None:
        return {f"{SUMMARY}{dtype}": summary}
    rests = np.where(np.isfinite(wide), wide - values, 0).astype(np.float32)
    summary[:, NUM_RESTS] = np.count_nonzero(rests, axis=0)
    return {f"{SUMMARY}{dtype}": summary, f"{RESTS}{dtype}": rests}


def exact_values(block: Block, dtype: str) -> BlockArray:
    """Values of a block before they were rounded.

    float64 [steps, columns], to 48 bits. The array of `dtype` itself if it rounds none.
    """
    values, rests = block.arrays[f"{VALUES}{dtype}"], block.arrays.get(f"{RESTS}{dtype}")
    return values if rests is None else values.astype(np.float64) + rests


def static_hashes(block: Block) -> dict[str, Hashes]:
    """Hash of each run's value of each static array, uint64 [runs].

    Equal values have equal hashes: also NaN, and zero of either sign.
    """
    found: dict[str, Hashes] = {}
    for name, array in block.arrays.items():
        if not name.startswith(STATIC):
            continue
        values = array.reshape(len(array), math.prod(array.shape[1:]))
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.nan, values + 0).astype(np.float64).view(np.uint64)
        hashes = np.zeros(len(array), np.uint64)
        for column in values.T:
            hashes = hash_integers(hashes ^ column.astype(np.uint64), 0)
        found[name.removeprefix(STATIC)] = hashes
    return found


def _entity_arrays(entities: pa.Array) -> dict[str, BlockArray]:
    if pa.types.is_integer(entities.type):
        return {RUN_ENTITIES: entities.to_numpy()}
    texts = [text.encode() for text in entities.to_pylist()]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return {RUN_TEXTS: np.frombuffer(b"".join(texts), np.uint8), RUN_TEXT_ENDS: ends}


def _static_arrays(
    columns: StepColumns, table: pa.Table, steps: Steps, first: NDArray[np.int64]
) -> dict[str, BlockArray]:
    """Static arrays of each run.

    Raises `BadSeries` for a feature that changes within a run.
    """
    kept: dict[str, BlockArray] = {}
    for feature_name, feature in columns.static.items():
        for name, array in feature.arrays(feature_name, table).items():
            per_step = array[steps.row]
            after, before = per_step[1:], per_step[:-1]
            differs = after != before
            if per_step.dtype.kind == "f":  # NaN is not equal to itself
                differs &= ~(np.isnan(after) & np.isnan(before))
            changes = differs.any(axis=tuple(range(1, per_step.ndim)))
            changes[first[1:] - 1] = False
            if changes.any():
                at = int(np.flatnonzero(changes)[0])
                run = int(np.searchsorted(steps.ends, at, side="right"))
                raise BadSeries(
                    f"Static feature {name!r} ({', '.join(feature.columns)}) changes within entity "
                    f"{steps.entities[run].as_py()!r}, between rows {steps.row[at]} and {steps.row[at + 1]}. A static "
                    "value holds for all steps of an entity: use it as a column of fb.History instead.",
                    rows=(int(steps.row[at]), int(steps.row[at + 1])),
                )
            kept[f"{STATIC}{name}"] = per_step[first]
    return kept
