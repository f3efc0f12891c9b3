"""Errors of sequences: each names the files and the values, before training."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.windows.conftest import random_series, write_series

import forebay as fb
from forebay.errors import BadSeries, InvalidOption, MissingColumn, WrongType

PAST = fb.History(["load"], steps=2)


def written(folder: Path, *frames: pd.DataFrame) -> fb.Manifest:
    for number, frame in enumerate(frames):
        pq.write_table(pa.Table.from_pandas(frame), folder / f"{number}.parquet")
    return fb.scan(str(folder))


def frame_of(times: list[Any], meter: Any = 1) -> pd.DataFrame:
    return pd.DataFrame({"meter": meter, "ts": times, "load": np.arange(len(times), dtype=np.float32)})


def test_a_step_in_two_files_names_both(tmp_path: Path) -> None:
    manifest = written(tmp_path, frame_of([1, 2, 3]), frame_of([3, 4]))
    with pytest.raises(BadSeries, match=r"row group 0 of .*0.parquet and row group 0 of .*1.parquet both hold step 3"):
        _ = fb.Sequences(manifest, entity="meter", time="ts", past=PAST).windows


def test_a_step_twice_in_a_file_names_the_file_and_the_rows(tmp_path: Path) -> None:
    manifest = written(tmp_path, frame_of([1, 2, 3]), frame_of([4, 5, 4]))
    with pytest.raises(BadSeries, match=r"^1.parquet:0: Rows 0 and 2 are both step 4") as raised:
        _ = fb.Sequences(manifest, entity="meter", time="ts", past=PAST).windows
    assert (raised.value.file, raised.value.row_group, raised.value.rows) == ("1.parquet", 0, (0, 2))


def test_runs_that_overlap_are_refused(tmp_path: Path) -> None:
    manifest = written(tmp_path, frame_of([1, 5, 9]), frame_of([6, 7]))
    with pytest.raises(BadSeries, match="which overlap.*Sort the data"):
        _ = fb.Sequences(manifest, entity="meter", time="ts", past=PAST).windows


@pytest.mark.parametrize("layout", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("values", "is_refused"),
    [((1, 2), True), ((1.0, float("nan")), True), ((7, 7), False), ((float("nan"),) * 2, False), ((0.0, -0.0), False)],
)
def test_a_static_value_that_changes_between_files_names_both(
    values: tuple[float, float], is_refused: bool, layout: tuple[int, int], tmp_path: Path
) -> None:
    frames = [frame_of([1, 2, 3]).assign(x=values[0]), frame_of([4, 5]).assign(x=values[1])]
    other = frame_of([9], meter=2).assign(x=5.0)
    manifest = written(tmp_path, *(frames[index] for index in layout), other.astype({"x": frames[0].x.dtype}))
    static = {"kind": fb.Dense(["x"]), "meter": fb.Categorical(["meter"], buckets=50)}
    series = fb.Sequences(manifest, entity="meter", time="ts", past=PAST, static=static)
    if not is_refused:
        assert series.windows.num_windows == 4
        return
    first, second = (f"row group 0 of .*{layout.index(number)}.parquet" for number in (0, 1))
    with pytest.raises(BadSeries, match=f"'kind' changes within entity 1, between {first} and {second}"):
        _ = series.windows


def test_nulls_name_the_file(tmp_path: Path) -> None:
    manifest = written(tmp_path, frame_of([1, 2], meter=["a", None]))
    with pytest.raises(BadSeries, match=r"^0.parquet:0:1: Row 1 has a null in the entity column"):
        _ = fb.Sequences(manifest, entity="meter", time="ts", past=PAST).windows


def test_a_window_longer_than_every_series(tmp_path: Path) -> None:
    manifest = written(tmp_path, frame_of([1, 2, 3]))
    with pytest.raises(InvalidOption, match="the longest series has 3 steps, and a window needs 5"):
        _ = fb.Sequences(manifest, time="ts", past=PAST, future=fb.Horizon(["load"], steps=2, gap=1)).windows


def test_rows_that_a_filter_leaves_out_are_refused_until_they_are_arranged(tmp_path: Path) -> None:
    written(tmp_path, frame_of(list(range(9))))
    some = fb.Sequences(fb.scan(str(tmp_path), where="load != 4"), time="ts", past=PAST)
    with pytest.raises(InvalidOption, match="leaves out rows.*arrange"):
        _ = some.windows
    assert some.arrange(into=str(tmp_path / "arranged")).manifest.num_rows == 8


@pytest.mark.parametrize("max_gap", [None, 1])
def test_skipped_rows_are_in_no_window_of_arranged_series(max_gap: int | None, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    written(tmp_path / "data", frame_of(list(range(12))))
    given = {"time": "ts", "past": PAST, "max_gap": max_gap}
    skipped = fb.scan(str(tmp_path / "data"), skip=["0.parquet:0:4..5", "0.parquet:0:9"])
    with pytest.raises(InvalidOption, match=r"leaves out rows \(where='', 0 deleted, 3 skipped, 0 rejected\).*arrange"):
        _ = fb.Sequences(skipped, **given).windows
    series = fb.Sequences(skipped, **given).arrange(into=str(tmp_path / "arranged"))
    with fb.Loader(fb.build_plan(series), series.transform, global_batch=4) as loader:
        found = sorted(tuple(window) for batch in loader for window in batch["past"][:, :, 0].tolist())
    left = [0, 1, 2, 3, 6, 7, 8, 10, 11]
    pairs = [pair for pair in pairwise(left) if max_gap is None or pair[1] - pair[0] == 1]
    assert found == pairs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fill": "backward"}, "shows the model what it is to predict"),
        ({"scale": "mean"}, "choose"),
        ({"stride": 0}, "stride=0"),
        ({"min_steps": 3}, "min_steps=3"),
        ({"max_gap": 2}, "max_gap needs a time column"),
        ({"time": "ts", "max_gap": "2h"}, "the time column is int64"),
        ({"context": "all"}, "choose"),
        ({"quantiles": (2,)}, "shares from 0 to 1"),
        ({"quantiles": 0.5}, "shares from 0 to 1"),
        ({"static": {"past": fb.Dense(["meter"])}}, "makes array 'past'"),
        ({"static": {"past_lengths": fb.Dense(["meter"])}, "min_steps": 1}, "makes array 'past_lengths'"),
        ({"static": {"past_observed": fb.Dense(["meter"])}, "observed": True}, "makes array 'past_observed'"),
        ({"past": fb.History(["load"], steps=2, dtype="float64"), "scale": "standard"}, "works on float32"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    manifest = written(tmp_path, frame_of([1, 2, 3]))
    with pytest.raises(InvalidOption, match=words):
        fb.Sequences(manifest, **({"past": PAST} | options))


def test_columns_that_cannot_work_are_refused_at_once(tmp_path: Path) -> None:
    manifest = written(tmp_path, frame_of([1, 2, 3]).assign(name="a"))
    with pytest.raises(MissingColumn):
        fb.Sequences(manifest, past=fb.History(["lod"], steps=2))
    with pytest.raises(WrongType):
        fb.Sequences(manifest, past=PAST, time="load")
    with pytest.raises(WrongType):
        fb.Sequences(manifest, past=fb.History(["name"], steps=2))


@pytest.mark.parametrize(
    ("zone", "time", "words"),
    [
        (None, "2020-01-01T01:00+00:00", "has an offset from UTC"),
        ("Europe/Berlin", "2020-01-01T01:00", "has no offset from UTC"),
        (None, "2020-01-01T01:00:00.0000001", "lies between two values"),
        (None, "first of May", "is not a time"),
    ],
)
def test_times_of_a_cut_fit_the_column(zone: str | None, time: str, words: str, tmp_path: Path) -> None:
    times = pd.date_range("2020-01-01", periods=8, freq="h", tz=zone).as_unit("us")
    series = fb.Sequences(written(tmp_path, frame_of(list(times))), time="ts", past=PAST)
    with pytest.raises(InvalidOption, match=words):
        series.split(time=(time,))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_a_cut_in_time_is_exact_in_every_unit(unit: str, zone: str | None, tmp_path: Path) -> None:
    times = pd.date_range("2020-01-01", periods=8, freq="h", tz="UTC").tz_convert(zone).as_unit(unit)
    frame = frame_of([1] * 8).assign(ts=times)
    series = fb.Sequences(written(tmp_path, frame), time="ts", past=PAST, max_gap="1h")
    cut = "2020-01-01T06:00+01:00" if zone else "2020-01-01T05:00"
    train, rest = series.split(time=(cut,))
    assert (train.num_windows, rest.num_windows) == (4, 2)
    assert fb.Sequences(series.manifest, time="ts", past=PAST, max_gap="2h").windows.num_windows == 7


def test_splits_that_cannot_work_are_refused(tmp_path: Path) -> None:
    series = fb.Sequences(written(tmp_path, frame_of([1, 2, 3, 4])), time="ts", past=PAST)
    for cuts in (
        *({}, {"steps": (2,), "fractions": (0.5,)}, {"time": (3, 2)}, {"entities": 1.0}),
        *({"steps": 2}, {"fractions": 0.5}, {"time": 2}, {"entities": (0.5,)}),
    ):
        with pytest.raises(InvalidOption):
            series.split(**cuts)
    with pytest.raises(InvalidOption, match="part 2 of the split holds no window"):
        series.split(steps=(4,))
    with pytest.raises(InvalidOption, match=r"entities=0\.001 holds out 0 of 1 entities"):
        series.split(entities=0.001)


@pytest.mark.parametrize("steps", [(), [], 0, (0,)])
def test_a_horizon_has_look_aheads(steps: Any) -> None:
    with pytest.raises(InvalidOption, match="Horizon"):
        fb.Horizon(["load"], steps=steps)


def test_a_new_entity_moves_no_other_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    (tmp_path / "a").mkdir()
    frames = [frame_of([1, 2, 3], meter=f"m{number}") for number in range(40)]
    held_out = []
    for count in (39, 40):
        folder = tmp_path / str(count)
        folder.mkdir()
        series = fb.Sequences(written(folder, *frames[:count]), entity="meter", time="ts", past=PAST)
        rest, out = series.split(entities=0.3, seed=int(rng.integers(1)))
        assert rest.num_windows + out.num_windows == 2 * count
        held_out.append({*series.entity_names(np.flatnonzero(out.bounds.high))} - {"m39"})
    assert held_out[0] == held_out[1] != set()


def test_rows_and_windows_are_not_mixed_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    manifest = write_series(tmp_path / "data", random_series(rng), "day", rng)
    series = fb.Sequences(manifest, entity="meter", time="ts", past=PAST)
    for plan, transform in (
        (fb.build_plan(manifest), series.transform),
        (fb.build_plan(series), fb.Transform(x=fb.Dense(["load"]))),
    ):
        with pytest.raises(InvalidOption, match="makes the other kind"):
            fb.Loader(plan, transform, global_batch=4)
        with pytest.raises(InvalidOption, match="makes the other kind"):
            fb.Data(plan=plan, transform=transform, global_batch=4)
