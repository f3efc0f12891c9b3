"""Batches of windows equal pandas to the bit, over random layouts, shapes, fills, scales and splits."""

from __future__ import annotations

import itertools
import math
import pickle
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tests.unit.data.windows.conftest import random_series, write_series
from tests.unit.data.windows.oracle import ExpectedWindow, windows_of

import forebay as fb

NUM_CASES, NUM_USUAL = 300, 16
LAYOUTS = ("entity", "day", "lists", "interleaved")


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    past = int(rng.integers(1, 10))
    ahead = int(rng.integers(1, 6)) if rng.random() < 0.6 else tuple(sorted({int(s) for s in rng.integers(1, 9, 3)}))
    return {
        "past": fb.History(["load", "temp"] if rng.random() < 0.7 else ["temp"], steps=past),
        "future": fb.Horizon(["load"], steps=ahead, gap=int(rng.integers(0, 3)), known=["hour"])
        if rng.random() < 0.8
        else None,
        "stride": int(rng.integers(1, 4)),
        "min_steps": int(rng.integers(1, past + 1)) if rng.random() < 0.5 else None,
        "max_gap": "3h" if rng.random() < 0.4 else None,
        "fill": [None, "forward", "both"][rng.integers(3)],
        "scale": [None, "standard", "minmax", "robust"][rng.integers(4)],
        "observed": bool(rng.random() < 0.3),
        "context": "own" if rng.random() < 0.3 else "any",
        "static": fb.Dense(["region"], dtype="int64"),
    }


def random_cuts(rng: np.random.Generator) -> dict[str, Any]:
    day = f"2020-01-0{rng.integers(1, 3)}T{rng.integers(10, 20)}:00"
    gap = int(rng.integers(0, 3))
    cuts: list[dict[str, Any]] = [
        {"time": (day,), "gap": gap},
        {"steps": (int(rng.integers(3, 30)),), "gap": gap},
        {"fractions": (0.7,)},
        {"entities": 0.4},
    ]
    return cuts[rng.integers(4)]


def cases(count: int, usual: int) -> list[Any]:
    """Numbers of random cases. Those from `usual` on are variations."""
    return [pytest.param(case, marks=pytest.mark.variation if case >= usual else ()) for case in range(count)]


@pytest.mark.parametrize("case", cases(NUM_CASES, NUM_USUAL))
def test_batches_equal_pandas(case: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(case)
    frame = random_series(rng)
    manifest = write_series(tmp_path / "data", frame, LAYOUTS[case % 4], rng)
    options = random_options(rng)
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    series = fb.Sequences(manifest, entity="meter", time="ts", cache=cache, **options)
    try:
        parts = series.split(**random_cuts(rng))
    except fb.errors.InvalidOption:
        parts = (series.whole,)
        if not sum(len(list(_expected(frame, series, part))) for part in parts):
            return
    for part in parts:
        expected = {(window.entity, window.start): window for window in _expected(frame, series, part)}
        found = []
        with fb.Loader(fb.build_plan(part, seed=case), part.transform, cache, global_batch=16, as_numpy=True) as loader:
            for batch in loader:
                for row in range(batch.num_rows):
                    entity, start = batch.windows[row].tolist()
                    found.append((entity, start))
                    steps = frame[frame.meter == series.entity_names([entity])[0]]
                    _check_window(batch, row, steps, expected[entity, start], series, part)
        assert sorted(found) == sorted(expected), "each window once"


def _expected(frame: pd.DataFrame, series: fb.Sequences, part: Any) -> list[ExpectedWindow]:
    found: list[ExpectedWindow] = []
    for entity, (_, steps) in enumerate(frame.groupby("meter")):
        low, high = int(part.bounds.low[entity]), int(part.bounds.high[entity])
        own, hours = series.context == "own" and part is not series.whole, steps.hours.to_numpy()
        gap = 3 if series.max_gap else None
        found += windows_of(hours, entity, series.shape, low=low, high=high, own=own, max_gap=gap)
    return found


def _check_window(
    batch: Any, row: int, steps: pd.DataFrame, window: ExpectedWindow, series: fb.Sequences, part: Any
) -> None:
    assert batch["static"][row].tolist() == [steps.region.iloc[0]]
    if "past_lengths" in batch:
        assert batch["past_lengths"][row] == len(window.past)
    parts = {"past": (series.past.columns, window.past)}
    if series.future is not None:
        parts |= {"future": (series.future.columns, window.targets), "known": (series.future.known, window.targets)}
    for name, (columns, own) in parts.items():
        for number, column in enumerate(columns):
            statistics = part.statistics[column]
            values, seen, is_mean = _values(steps[column].to_numpy(np.float32), window, own, name, series)
            shift, factor = _scaling(statistics, series.scale)
            mean = np.nan_to_num(statistics.mean)
            exact = (np.where(is_mean, mean, values.astype(np.float64)) - shift) * factor
            short = np.float32(shift)
            scaled = ((values - short) - np.float32(shift - float(short))) * np.float32(factor)
            scaled[is_mean] = np.float32((mean - shift) * factor)
            np.testing.assert_allclose(scaled, exact, rtol=2e-6, atol=2e-6)
            padding = batch[name].shape[1] - len(own)
            np.testing.assert_array_equal(batch[name][row, padding:, number], scaled)
            assert not batch[name][row, :padding, number].any()
            if series.observed:
                assert batch[f"{name}_observed"][row, padding:, number].tolist() == seen


def _values(
    values: NDArray[np.float32], window: ExpectedWindow, own: tuple[int, ...], name: str, series: Any
) -> tuple[NDArray[np.float32], list[bool], NDArray[np.bool_]]:
    """Filled values by the definition: the last one before, then, in the past, the next one, then the mean.

    Where it is the mean, which is scaled in float64, the last array is True.
    """
    seen = [not np.isnan(values[step]) for step in own]
    found, is_mean = [], np.zeros(len(own), np.bool_)
    for step, is_seen in zip(own, seen, strict=True):
        value = values[step]
        if not is_seen and series.fill:
            before = [values[at] for at in range(step, window.past[0] - 1, -1) if not np.isnan(values[at])]
            after = [values[at] for at in own if at > step and not np.isnan(values[at])]
            after = after if name == "past" and series.fill == "both" else []
            is_mean[len(found)] = not before and not after
            value = before[0] if before else (after[0] if after else np.float32(0))
        found.append(value)
    return np.array(found, np.float32), seen, is_mean


def _scaling(statistics: Any, scale: str | None) -> tuple[float, float]:
    if scale is None or not statistics.count:
        return 0.0, 1.0
    shift, width = {
        "standard": (statistics.mean, statistics.std),
        "minmax": (statistics.min, statistics.max - statistics.min),
        "robust": tuple((statistics.quantiles or {}).get(share, 0.0) for share in (0.5, 0.75)),
    }[scale]
    if scale == "robust":
        width = statistics.quantile(0.75) - statistics.quantile(0.25)
    return shift, 1 / width if width > 0 else 1.0


_RNG = np.random.default_rng(7)
WIDE: dict[str, pa.Array] = {
    "1e9 and a spread of 1": pa.array(1e9 + _RNG.normal(size=120)),
    "-3e12 and a spread of 0.1": pa.array(-3e12 + 0.1 * _RNG.normal(size=120)),
    "100 and a spread of 0.01": pa.array(100 + 0.01 * _RNG.normal(size=120)),
    "usual numbers": pa.array(20 + 5 * _RNG.normal(size=120)),
    "a constant": pa.array(np.full(120, 1e9 + 0.1)),
    "one value apart": pa.array(np.where(np.arange(120) == 17, 1e9 + 1, 1e9)),
    "int32": pa.array(_RNG.integers(2**30, 2**30 + 100, 120), pa.int32()),
    "microseconds": pa.array(1_700_000_000_000_000 + _RNG.integers(0, 1000, 120)),
    "nanoseconds": pa.array(1_700_000_000_000_000_000 + _RNG.integers(0, 10**9, 120)),
    "uint64": pa.array((2**63 + _RNG.integers(0, 2**40, 120).astype(np.uint64)), pa.uint64()),
    "decimals": pa.array([Decimal(10**9) + Decimal(int(each)) / 100 for each in _RNG.integers(0, 300, 120)]),
    "with nulls": pa.array(1e9 + _RNG.normal(size=120), mask=_RNG.random(120) < 0.2),
    "float32": pa.array((1e7 + _RNG.normal(size=120)).astype(np.float32)),
}


@pytest.mark.parametrize(
    ("scale", "is_cut"),
    [
        *((scale, True) for scale in ("standard", "robust")),
        *((scale, False) for scale in (None, "minmax")),
        *(pytest.param(scale, True, marks=pytest.mark.variation) for scale in (None, "minmax")),
        *(pytest.param(scale, False, marks=pytest.mark.variation) for scale in ("standard", "robust")),
    ],
)
@pytest.mark.parametrize("name", WIDE)
def test_statistics_and_scaled_values_are_those_of_float64(name: str, scale: Any, is_cut: bool, tmp_path: Path) -> None:
    """The rounding of float32 changes neither the statistics nor a scaled value."""
    column = WIDE[name]
    exact = np.array([np.nan if value is None else float(value) for value in column.to_pylist()])
    table = pa.table({"t": np.arange(120), "x": column, "other": np.arange(120.0)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    past = fb.History(["x", "other"] if name != "int32" else ["x"], steps=6)
    shares = (0.1, 0.5)
    series = fb.Sequences(
        fb.scan(tmp_path), time="t", past=past, scale=scale, quantiles=shares, stride=6, fill="forward"
    )
    part = series.split(steps=(72,))[0] if is_cut else series.whole
    own = exact[:72] if is_cut else exact
    found, present = part.statistics["x"], np.sort(own[~np.isnan(own)]).astype(np.longdouble)
    size = float(np.abs(present).max())
    assert (found.count, found.nulls) == (len(present), len(own) - len(present))
    assert abs(found.mean - float(present.mean())) <= 1e-14 * size
    assert abs(found.std - float(present.std())) <= 1e-12 * float(present.std()) + size * 2**-47
    assert np.allclose([found.min, found.max], [float(present[0]), float(present[-1])], rtol=2**-48, atol=0)
    for share in shares:
        assert abs(found.quantile(share) - float(present[round(share * (len(present) - 1))])) <= size * 2**-48
    if not is_cut:
        assert (found.min, found.max) == (float(present[0]), float(present[-1]))
    shift, factor = _scaling(found, scale)
    with fb.Loader(fb.build_plan(part, shuffle=False), part.transform, None, global_batch=4, as_numpy=True) as loader:
        arrays = [(batch.windows[:, 1], batch["past"][:, :, 0]) for batch in itertools.islice(loader, 3)]
    for starts, values in arrays:
        for start, window in zip(starts.tolist(), values, strict=True):
            steps = pd.Series(exact[start : start + 6]).ffill().fillna(found.mean).to_numpy()
            expected = (steps - shift) * factor if scale else steps
            atol = 1e-6 + factor * size * 2**-47 if scale else 0.0
            np.testing.assert_allclose(window, expected, rtol=1e-6, atol=atol)


@pytest.mark.parametrize(("dtype", "value"), [("float32", 1e39), ("float32", -(10**40)), ("float16", 70_000)])
def test_a_value_beyond_the_dtype_is_refused(dtype: str, value: float, tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": [0, 1], "x": [1.0, float(value)]}), tmp_path / "a.parquet")
    series = fb.Sequences(fb.scan(tmp_path), time="t", past=fb.History(["x"], steps=1, dtype=dtype), scale=None)
    with pytest.raises(fb.errors.BadSeries, match=rf"a\.parquet.*: Column 'x' has the value .*{dtype} ends at"):
        _ = series.statistics


@pytest.mark.parametrize("case", cases(32, 8))
def test_statistics_are_those_of_the_training_part(case: int, tmp_path: Path) -> None:
    """1.5.5: counts, extremes and quantiles exact, mean and deviation within 1e-12 of those in long double."""
    rng = np.random.default_rng(case)
    frame = random_series(rng)
    wild = np.where(rng.random(len(frame)) < 0.1, np.inf, rng.lognormal(3, 3, len(frame)))
    frame["temp"] = [frame.temp, 5.0, np.nan, wild][case // 4 % 4]
    frame["temp"] = frame.temp.astype(np.float32)
    manifest = write_series(tmp_path / "data", frame, LAYOUTS[case % 4], rng)
    options: dict[str, Any] = {"past": fb.History(["load"], steps=2), "future": fb.Horizon(["temp"], steps=1)}
    shares = (0.0, 0.25, 0.5, 0.99, 1.0)
    series = fb.Sequences(manifest, entity="meter", time="ts", quantiles=shares, **options)
    train, test = series.split(fractions=(0.7,), gap=2)
    step, steps = frame.groupby("meter").cumcount(), frame.groupby("meter").ts.transform("size")
    own = frame[step < (steps * 7 // 10 - 2)]
    for column in ("load", "temp"):
        values = np.sort(own[column].dropna().to_numpy())
        found = train.statistics[column]
        assert (found.count, found.nulls) == (len(values), len(own) - len(values))
        finite = values[np.isfinite(values)].astype(np.longdouble)
        assert found.infinite == len(values) - len(finite)
        if not len(finite):
            assert math.isnan(found.mean) and math.isnan(found.quantile(0.5))
            continue
        assert abs(found.mean - finite.mean()) <= 1e-12 * abs(finite).max()
        assert abs(found.std - finite.std()) <= 1e-12 * abs(finite).max()
        assert (found.min, found.max) == (values[0], values[-1])
        assert found.quantiles == {share: values[round(share * (len(values) - 1))] for share in shares}
    assert test.statistics == train.statistics


@pytest.mark.parametrize("case", cases(24, 6))
def test_nothing_after_the_cut_reaches_training(case: int, tmp_path: Path) -> None:
    """1.5.4: other values after the cut change no bit of the training batches and of the statistics."""
    rng = np.random.default_rng(case)
    frame = random_series(rng)
    cuts: dict[str, Any] = [{"time": ("2020-01-02",)}, {"steps": (20,)}, {"fractions": (0.6,)}][case % 3]
    options = random_options(rng) | {"future": fb.Horizon(["load"], steps=2), "fill": "both", "scale": "robust"}
    step, steps = frame.groupby("meter").cumcount(), frame.groupby("meter").ts.transform("size")
    later = [frame.ts >= "2020-01-02", step >= 20, step >= (steps * 0.6).astype(int)][case % 3]
    changed = frame.assign(
        load=np.where(later, 1e6, frame.load).astype(np.float32), temp=np.where(later, np.nan, frame.temp)
    )
    made = []
    for number, each in enumerate((frame, changed)):
        manifest = write_series(tmp_path / str(number), each, LAYOUTS[case % 4], np.random.default_rng(5))
        train, _ = fb.Sequences(manifest, entity="meter", time="ts", **options).split(**cuts)
        plan = fb.build_plan(train, shuffle=False)
        with fb.Loader(plan, train.transform, global_batch=16, as_numpy=True) as loader:
            arrays = [(batch.windows.tobytes(), *(batch[name].tobytes() for name in sorted(batch))) for batch in loader]
        made.append((arrays, repr(train.statistics)))
    assert made[0] == made[1]
    assert made[0][0], "there are batches"


@pytest.mark.parametrize("case", cases(24, 6))
def test_targets_of_a_part_come_before_those_of_the_next(case: int, tmp_path: Path) -> None:
    """1.5.4: by the windows' own ids, for every entity and pair of parts, with the gap between them."""
    rng = np.random.default_rng(case)
    manifest = write_series(tmp_path / "data", random_series(rng), LAYOUTS[case % 4], rng)
    gap, past = int(rng.integers(0, 4)), int(rng.integers(1, 6))
    options: dict[str, Any] = {"past": fb.History(["load"], steps=past), "stride": int(rng.integers(1, 4))}
    future = fb.Horizon(["load"], steps=int(rng.integers(1, 4)), gap=int(rng.integers(0, 3)))
    series = fb.Sequences(manifest, entity="meter", time="ts", future=future, min_steps=1, **options)
    parts = series.split(fractions=(0.5, 0.25), gap=gap)
    spans: list[dict[int, tuple[int, int]]] = []
    for part in parts:
        found: dict[int, tuple[int, int]] = {}
        with fb.Loader(fb.build_plan(part), part.transform, global_batch=16, as_numpy=True) as loader:
            for entity, start in np.concatenate([batch.windows for batch in loader]).tolist():
                first = start + past + future.gap
                low, high = found.get(entity, (first, first))
                found[entity] = min(low, first), max(high, first + future.ahead[-1] - 1)
        spans.append(found)
    pairs = [(left[entity], right[entity]) for left, right in pairwise(spans) for entity in left.keys() & right.keys()]
    assert pairs and all(before[1] + gap < after[0] for before, after in pairs)


def test_a_batch_travels_with_its_windows_and_not_with_their_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    manifest = write_series(tmp_path / "data", random_series(rng), "day", rng)
    series = fb.Sequences(manifest, entity="meter", time="ts", past=fb.History(["load"], steps=4))
    with fb.Loader(fb.build_plan(series.whole), series.transform, global_batch=16) as loader:
        batch = next(iter(loader))
    copies = [pickle.loads(pickle.dumps(batch)), batch.to("cpu"), batch.take(np.arange(16), weight=1.0)]
    assert len(pickle.dumps(batch)) < 8192
    for copy in copies:
        assert copy.windows.tolist() == batch.windows.tolist()
        assert copy.position == batch.position
    assert batch.windows is batch.windows


def test_only_columns_that_can_be_nan_are_filled(tmp_path: Path) -> None:
    """A scaled infinity stays one."""
    rng = np.random.default_rng(3)
    frame = random_series(rng, nulls=0).assign(hour=1.0)
    frame.loc[5, "load"], frame.loc[9, "temp"] = np.nan, -np.inf
    manifest = write_series(tmp_path / "data", frame, "day", rng)
    past = fb.History(["hour", "load", "temp"], steps=4)
    series = fb.Sequences(manifest, entity="meter", time="ts", past=past, scale="standard")
    (view,) = series.transform.views.views
    assert view.scaling is not None and view.scaling[3].tolist() == [0, 1, 0]
    with fb.Loader(fb.build_plan(series.whole), series.transform, global_batch=16, as_numpy=True) as loader:
        assert not any(np.isnan(batch["past"]).any() for batch in loader)
