"""Series of a dataset, cut into windows.

`fb.Sequences`, its splits, and the arrays of their batches.
"""

from __future__ import annotations

import datetime
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.source import SourceProvider
from forebay.data.cache.spec import CacheSpec
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.plan.permute import derive
from forebay.data.transform.features.columns import column_type
from forebay.data.transform.features.groups import Feature
from forebay.data.transform.features.ragged import is_list
from forebay.data.transform.fingerprint.values import digest
from forebay.data.windows.arrangement import arranged_manifest, has_short_runs
from forebay.data.windows.index import WindowIndex, WindowShape, require_windows
from forebay.data.windows.sequence_block import SequenceTransform
from forebay.data.windows.sequence_part import SequencePart, TrainingPart, validate_quantiles
from forebay.data.windows.series_blocks import Series, SeriesBlocks, first_steps_at, read_series
from forebay.data.windows.splits import TargetBounds, fraction_cuts, parts_of_cuts, parts_of_entities, step_cuts
from forebay.data.windows.statistics import (
    NULLS,
    RESTS,
    ColumnStatistics,
    Scale,
    any_of,
    needs_rests,
    saved_statistics,
    scaling_of,
)
from forebay.data.windows.steps import StepColumns
from forebay.data.windows.times import duration_ticks, ticks_of
from forebay.data.windows.views import Fill, FillOptions, History, Horizon, View, WindowViews
from forebay.errors import InvalidOption

log = logging.getLogger(__name__)


# Without slots: `cached_property` needs the instance's __dict__.
@dataclass(frozen=True, eq=False)
class Sequences:
    """Windows over the series of a dataset.

    Rows may lie in any order in any file. A row is one step of one series, or, with list columns, a series. The first
    use of `windows`, `split` or `statistics` makes a pass over all row groups: through `cache`, it is also the last one
    that reads the source.

    Attributes:
        manifest: Row groups, from `scan`.
        past: Columns and steps that a model looks back on.
        entity: Column of integers or strings that names the series. None: all rows are one series.
        time: Column of timestamps, dates or integers. None: the order of the files.
        future: Columns and steps to predict. None: a window predicts within its past, as language models do.
        static: Feature that is constant within a series, array `static`, or features by name.
        stride: Steps between the starts of two windows.
        min_steps: Least real steps of the past. Windows with fewer than `past.steps` are padded on the left, and
            `past_lengths` int32 [rows] counts the real ones.
        max_gap: Longest distance in time of two steps of a window: `"2h"`, or a whole number of the column's unit.
        shift: Cut windows elsewhere in each epoch, by a number of steps below `stride`.
        context: "own" makes the windows of a split look back on steps of their own part only.
        fill: "forward" replaces a missing float32 value by the last one before it in its window, and without one by the
            mean of the training part. "both" takes the next value of the past before the mean. None keeps NaN.
        scale: "standard", "minmax" or "robust" scale float32 values by the statistics of the training part.
        observed: Add masks of the values that were not filled: `past_observed`, `future_observed`.
        quantiles: Shares of quantiles to count for `statistics`.
        cache: Cache of the blocks, the one of the run. None makes them again for training.

    Raises:
        InvalidOption: An option that can never work.
        MissingColumn, WrongType: A column that cannot be used.
        BadSeries: With the first use: a null entity or time, a repeated step, or runs of an entity that overlap.
    """

    manifest: Manifest
    _: KW_ONLY
    past: History
    entity: str | None = None
    time: str | None = None
    future: Horizon | None = None
    static: Feature | Mapping[str, Feature] | None = None
    stride: int = 1
    min_steps: int | None = None
    max_gap: str | int | datetime.timedelta | None = None
    shift: bool = False
    context: Literal["any", "own"] = "any"
    fill: Fill | None = "forward"
    scale: Scale | None = None
    observed: bool = False
    quantiles: Sequence[float] = ()
    cache: DiskCache | CacheSpec | SourceProvider | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.manifest, Manifest):
            raise InvalidOption(f"Sequences was given {self.manifest!r:.200}. Give it the manifest of fb.scan().")
        if self.context not in ("any", "own"):
            raise InvalidOption(f'context={self.context!r}: choose "any" or "own".', context=self.context)
        FillOptions(fill=self.fill)
        scaling_of({}, (), self.scale)
        validate_quantiles(self.quantiles)
        _ = self.shape, self.max_gap_ticks
        self._refuse_equal_names()
        self._block_transform.check(self.manifest)
        if self.scale and (dtypes := {view.dtype for view in self._views} - {"float32"}) & {"float64", "float16"}:
            raise InvalidOption(
                f"scale={self.scale!r} works on float32, but a part of the windows has {', '.join(sorted(dtypes))}. "
                "Use the default dtype, or scale=None.",
                scale=self.scale,
            )

    @cached_property
    def shape(self) -> WindowShape:
        """Steps of a window."""
        return WindowShape(
            past=self.past.steps,
            ahead=self.future.ahead if self.future else (),
            gap=self.future.gap if self.future else 0,
            stride=self.stride,
            min_steps=self.min_steps,
            shift=self.shift,
        )

    @cached_property
    def max_gap_ticks(self) -> int | None:
        """`max_gap` in the unit of the time column."""
        if self.max_gap is None:
            return None
        return duration_ticks("max_gap", self.max_gap, self.time_type("max_gap"))

    @cached_property
    def series(self) -> Series:
        """All series.

        The first use reads the data, and warns of short runs.
        """
        found = read_series(self.blocks, self.max_gap_ticks)
        if self._has_short_runs(found):
            runs, steps = len(found.times), found.whole.num_steps
            log.warning(
                "The %d runs of %s hold %.1f steps on average, and a window has %d, so it reads many row groups. Sort "
                'the data by entity and time first, once: series = series.arrange(into="runs/prepared").',
                *(runs, self.manifest.root, steps / runs, self.shape.length),
            )
        return found

    @property
    def needs_arranging(self) -> bool:
        """Whether `arrange` would spare reads of row groups."""
        return self._has_short_runs(self.series)

    @cached_property
    def blocks(self) -> SeriesBlocks:
        """Blocks of the series, through the cache."""
        cache = self.cache.open() if isinstance(self.cache, CacheSpec) else self.cache
        return SeriesBlocks(self.manifest, self._block_transform, cache)

    @cached_property
    def whole(self) -> SequencePart:
        """All windows, as one part."""
        bounds = TargetBounds.all_of(self.series.whole)
        return self._part("the data", bounds, self._training(bounds))

    @property
    def windows(self) -> WindowIndex:
        """Index of all windows."""
        return self.whole.windows

    @property
    def transform(self) -> SequenceTransform:
        """Transform of all windows.

        It scales by the statistics of all steps.
        """
        return self.whole.transform

    @property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Statistics of each column over all steps."""
        return self.whole.statistics

    def split(
        self,
        *,
        time: Sequence[object] | None = None,
        steps: Sequence[int] | None = None,
        fractions: Sequence[float] | None = None,
        entities: float | None = None,
        gap: int = 0,
        seed: int = 0,
    ) -> tuple[SequencePart, ...]:
        """Split the windows.

        Cut by one of `time`, `steps`, `fractions` and `entities`. Statistics are computed over the first part. A window
        belongs to the part that holds all its targets. What it looks back on may lie in an earlier part.

        Args:
            time: Cuts in time: a part ends before each.
            steps: Cuts after so many steps of each series.
            fractions: Shares of each series' steps, of all parts but the last.
            entities: Share of the entities to hold out, chosen by a hash of each. A new entity moves no other one.
            gap: Steps at the end of all parts but the last that are left out.
            seed: Seed of the hashes of `entities`.

        Raises:
            InvalidOption: None or several kinds of cuts, cuts that can never work, or a part without a window.
        """
        given = [name for name, cuts in _named(time, steps, fractions, entities).items() if cuts is not None]
        if len(given) != 1:
            raise InvalidOption(
                f"split() was given {', '.join(given) or 'no cut'}. Give one of time, steps, fractions and entities."
            )
        cuts_given = _named(time, steps, fractions, entities)[given[0]]
        if entities is None and not isinstance(cuts_given, Iterable):
            raise InvalidOption(f"{given[0]}={cuts_given!r}: give a sequence of cuts, such as ({cuts_given!r},).")
        line = self.series.whole
        if entities is not None:
            bounds: tuple[TargetBounds, ...] = parts_of_entities(line, self._held_out(entities, seed))
        else:
            if time is not None:
                cuts = self._time_cuts(time)
            else:
                cuts = step_cuts(line, steps) if steps is not None else fraction_cuts(line, fractions or ())
            bounds = parts_of_cuts(line, cuts, gap=gap, own_context=self.context == "own")
        training = self._training(bounds[0])
        names = [f"part {number} of the split" for number in range(1, len(bounds) + 1)]
        parts = tuple(self._part(name, each, training) for name, each in zip(names, bounds, strict=True))
        for part in parts:
            require_windows(part.windows, part.name)
        return parts

    def time_type(self, option: str = "this") -> pa.DataType:
        """Type of the time column.

        Raises `InvalidOption`, which names `option`, without a time column.
        """
        if self.time is None:
            raise InvalidOption(f"{option} needs a time column. Give Sequences(time=...), or cut by steps.")
        return self._block_transform.step_columns.time_type(self._schema)

    def arrange(self, into: str, *, row_group_rows: int | None = None) -> Sequences:
        """Sort the data by entity and time.

        Returns the same windows over the sorted data. It is sorted once, out of core, into a folder of its own in
        `into`. A second call with the same data reads one small file. For data whose entities are interleaved over many
        row groups, a few steps in each, and for runs that overlap. Reads each row group once, and keeps all columns of
        the manifest. Needs as much local disk as the data while it sorts, and memory that does not grow with the data.

        Args:
            into: Folder or URI, as of `fb.prepare`: `forebay prepare ls` and `rm` list and remove what is there.
            row_group_rows: Rows per row group. By default 65,536, and for list columns as many as in the manifest on
                average.

        Raises:
            InvalidOption: Neither an entity nor a time column.
            BadSeries: A null entity or time.
            WriteFailed: Storage or the local disk refused a file.
        """
        manifest = arranged_manifest(
            self.manifest, self._block_transform.step_columns, into=into, row_group_rows=row_group_rows
        )
        return replace(self, manifest=manifest)

    def entity_names(self, numbers: ArrayLike) -> list[int | str]:
        """Names of entities by number, as in `batch.windows[:, 0]`."""
        names: list[int | str] = self.series.entities.take(pa.array(np.asarray(numbers, dtype=np.int64))).to_pylist()
        return names

    def views_of(self, statistics: Mapping[str, ColumnStatistics]) -> WindowViews:
        """Arrays of a batch, scaled and filled by `statistics`."""
        options = FillOptions(fill=self.fill, observed=self.observed)
        nulls_of = {dtype: any_of(NULLS, kept) for dtype, kept in self.series.summaries.items()}
        summaries = self.series.summaries.get("float32")
        is_rounded = any_of(RESTS, summaries) if summaries else np.zeros(0, np.bool_)
        views = []
        for view in self._views:
            nulls = bool(nulls_of[view.dtype][list(view.columns)].any())
            if view.dtype != "float32":
                _refuse_fill(view, options, nulls)
                views.append(view)
                continue
            if self.scale is None and not self.observed and not (self.fill and nulls):
                views.append(view)
                continue
            names = [self._block_transform.step_columns.values["float32"][number] for number in view.columns]
            shift, factor = scaling_of(statistics, names, self.scale)
            means = (np.nan_to_num([statistics[name].mean for name in names]) - shift) * factor
            # A column without nulls has nothing to fill, in no batch.
            kinds = np.where(nulls_of["float32"][list(view.columns)], options.kind(view.name), 0)
            short = shift.astype(np.float32)
            lost = np.subtract(shift, short, out=np.zeros_like(shift), where=np.isfinite(short))
            scaling = np.stack([short, factor, means, kinds, lost]).astype(np.float32)
            rounded = zip(names, factor.tolist(), is_rounded[list(view.columns)].tolist(), strict=True)
            with_rests = self.scale is not None and any(
                loses and needs_rests(statistics[name], each) for name, each, loses in rounded
            )
            views.append(replace(view, scaling=scaling, with_rests=with_rests))
        uses_statistics = any(view.scaling is not None for view in views)
        return WindowViews(
            views=tuple(views),
            static=tuple(name for key, feature in self._static.items() for name in feature.array_names(key)),
            past=self.past.steps if self.shape.least_steps < self.past.steps else None,
            observed=self.observed,
            statistics=saved_statistics(statistics, scale=self.scale, fill=self.fill) if uses_statistics else {},
        )

    def _has_short_runs(self, series: Series) -> bool:
        can_be_sorted = self.entity is not None or self.time is not None
        return can_be_sorted and has_short_runs(series, self.shape)

    @cached_property
    def _block_transform(self) -> SequenceTransform:
        values: dict[str, dict[str, None]] = {self.past.dtype: dict.fromkeys(self.past.columns)}
        if self.future is not None:
            values.setdefault(self.future.dtype, {}).update(dict.fromkeys([*self.future.columns, *self.future.known]))
        columns = StepColumns(
            entity=self.entity,
            time=self.time,
            values={dtype: tuple(names) for dtype, names in values.items()},
            static=self._static,
            is_list=is_list(column_type("History", self.past.columns[0], self._schema)),
        )
        return SequenceTransform(columns)

    @cached_property
    def _schema(self) -> dict[str, pa.DataType]:
        return {field.name: parse_type(field.type) for field in self.manifest.fields}

    @cached_property
    def _static(self) -> dict[str, Feature]:
        if self.static is None:
            return {}
        return dict(self.static) if isinstance(self.static, Mapping) else {"static": self.static}

    @property
    def _views(self) -> list[View]:
        """Arrays of a batch before scaling."""
        shape = self.shape
        views = [self._view("past", self.past.dtype, self.past.columns, tuple(range(shape.past)))]
        if self.future is not None:
            steps = tuple(shape.past + shape.gap + step - 1 for step in shape.ahead)
            views.append(self._view("future", self.future.dtype, self.future.columns, steps))
            if self.future.known:
                views.append(self._view("known", self.future.dtype, self.future.known, steps))
        return views

    def _refuse_equal_names(self) -> None:
        """Raise `InvalidOption` for a static array with the name of another array."""
        names = [view.name for view in self._views]
        names += [f"{name}_observed" for name in names] if self.observed else []
        names += ["past_lengths"] if self.shape.least_steps < self.past.steps else []
        names += [array for name, feature in self._static.items() for array in feature.array_names(name)]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InvalidOption(
                f"static={list(self._static)} makes array {twice[0]!r}, and a batch has another one of this name. "
                "Rename the static feature.",
                array=twice[0],
            )

    def _view(self, name: str, dtype: str, columns: Sequence[str], steps: tuple[int, ...]) -> View:
        names = self._block_transform.step_columns.values[dtype]
        numbers = tuple(names.index(column) for column in columns)
        return View(name=name, dtype=dtype, columns=numbers, width=len(names), steps=steps)

    def _part(self, name: str, bounds: TargetBounds, training: TrainingPart) -> SequencePart:
        facts = repr([self.manifest.id, self.entity, self.time]).encode()
        return SequencePart(
            name=name,
            shape=self.shape,
            bounds=bounds,
            training=training,
            views_of=self.views_of,
            data_id=digest(facts),
        )

    def _training(self, bounds: TargetBounds) -> TrainingPart:
        shares = validate_quantiles(self.quantiles)
        if self.scale == "robust":
            shares = tuple(sorted({*shares, 0.25, 0.5, 0.75}))
        return TrainingPart(blocks=self.blocks, series=self.series, bounds=bounds, quantiles=shares)

    def _time_cuts(self, times: Sequence[object]) -> NDArray[np.int64]:
        kind = self.time_type("split(time=...)")
        ticks = [ticks_of("time", each, kind) for each in ([times] if isinstance(times, str) else times)]
        if not ticks or ticks != sorted(set(ticks)):
            raise InvalidOption(f"time={times!r}: give ascending times, such as ('2017-07-01', '2017-11-01').")
        return np.stack([first_steps_at(self.blocks, self.series, each) for each in ticks], axis=1)

    def _held_out(self, share: float, seed: int) -> NDArray[np.bool_]:
        if not (isinstance(share, Real) and 0 < share < 1):
            raise InvalidOption(f"entities={share!r}: hold out a share between 0 and 1, e.g. 0.1.", entities=share)
        hashes = [derive(seed, int(digest(repr(name).encode())[:16], 16)) for name in self.series.entities.to_pylist()]
        is_held_out = np.array([each < share * 2**64 for each in hashes], dtype=bool)
        if is_held_out.all() or not is_held_out.any():
            raise InvalidOption(
                f"entities={share!r} holds out {is_held_out.sum()} of {len(hashes)} entities, by the hash of each with "
                f"seed={seed}. Give another share or another seed.",
                entities=share,
            )
        return is_held_out


def _named(*cuts: object) -> dict[str, object]:
    return dict(zip(("time", "steps", "fractions", "entities"), cuts, strict=True))


def _refuse_fill(view: View, options: FillOptions, has_nulls: bool) -> None:
    """Raise `InvalidOption` for missing values that cannot be filled.

    Only float32 is filled.
    """
    if options.fill and has_nulls and view.dtype.startswith("float"):
        raise InvalidOption(
            f"fill={options.fill!r} works on float32, but {view.name} has {view.dtype} with missing values. Use the "
            "default dtype, or fill=None to keep NaN.",
            fill=options.fill,
        )
