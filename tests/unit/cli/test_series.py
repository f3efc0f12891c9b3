"""`forebay series`: series, windows, and errors before training."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.data.windows import series_blocks

Call = Callable[..., Any]


@pytest.fixture
def meters(tmp_path: Path) -> Path:
    """Three meters of 40, 60 and 80 hours.

    The last value of each is missing.
    """
    folder = tmp_path / "meters"
    folder.mkdir()
    for meter, steps in enumerate((40, 60, 80)):
        load = [*np.arange(steps - 1, dtype=float).tolist(), None]
        columns = {"meter": [f"m{meter}"] * steps, "hour": list(range(steps)), "load": load}
        pq.write_table(pa.table(columns), folder / f"{meter}.parquet", row_group_size=20)
    return folder


def test_it_counts_series_and_windows(forebay: Call, meters: Path) -> None:
    shape = ("--entity", "meter", "--time", "hour", "--past", 10, "--future", 2)
    facts = json.loads(forebay("series", meters, *shape, "--split", "0.5", "--json").out)
    assert (facts["entities"], facts["steps"], facts["runs"]) == (3, 180, 9)
    assert (facts["shortest"], facts["median"], facts["longest"], facts["interval"]) == (40, 60, 80, 1)
    assert facts["windows"] == [9 + 19 + 29, 19 + 29 + 39]
    assert (facts["statistics"]["load"]["count"], facts["statistics"]["load"]["nulls"]) == (90, 0)
    assert facts["arrange_first"] is False


def test_people_read_units(forebay: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 80 columns, times as durations, sizes with a unit."""
    monkeypatch.setenv("COLUMNS", "80")
    times = pd.date_range("2020-01-01", periods=80, freq="h")
    for meter, steps in enumerate((40, 60, 80)):
        table = pa.table({"meter": [meter] * steps, "ts": times[:steps], "load": np.arange(steps, dtype=float)})
        pq.write_table(table, tmp_path / f"{meter}.parquet", row_group_size=20)
    shape = ("--entity", "meter", "--time", "ts", "--past", 10, "--future", 2, "--max-gap", "120min")
    said = forebay("series", tmp_path, *shape, "--split", "0.5")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    words = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines[:9])
    assert words.pop("data").endswith(tmp_path.name)
    assert words == {
        "series": "3 of 40 to 80 steps, median 60",
        "steps": "180",
        "interval": "1h",
        "runs": "9 of 20.0 steps on average",
        "gaps": "0 longer than 2h",
        "windows": "57, 87 in the parts of the split",
        "index": "856 B",
        "arrange first": "no",
    }


def test_interleaved_series_are_arranged(
    forebay: Call, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_blocks, "REPORT_EVERY_S", 0.0)
    rows = {"meter": np.tile(np.arange(9), 40), "ts": np.repeat(np.arange(40), 9), "load": np.arange(360.0)}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=9)
    shape = ("--entity", "meter", "--time", "ts", "--past", 20)
    said = forebay("series", tmp_path / "a.parquet", *shape)
    assert "yes: runs are short, add --arrange INTO" in said.out
    assert re.search(r"series: 100 % of 360 rows, .* rows/s, 0:00 left", said.err)
    assert "hold 1.0 steps on average" in caplog.text
    words = ("series", tmp_path / "a.parquet", *shape, "--arrange", tmp_path / "prepared", "--json")
    first, second = (forebay(*words) for _ in range(2))
    assert "arranging: 100 % of 360 rows" in first.err and "reused" in second.err
    facts = json.loads(second.out)
    assert (facts["runs"], facts["windows"], facts["arrange_first"]) == (9, [9 * 21], False)


Rows = dict[str, Any]
HOURS = pd.date_range("2020-01-01", periods=6, freq="h")


def rows_of(**changed: Any) -> Rows:
    return {"meter": ["a"] * 6, "ts": HOURS.as_unit("us"), "load": np.arange(6.0)} | changed


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        pytest.param(
            [rows_of(meter=["a", None, *"aaaa"])],
            (),
            "0.parquet:0:1: Row 1 has a null in the entity",
            id="entity",
        ),
        pytest.param([rows_of(ts=[*HOURS[:5], None])], (), "0.parquet:0:5: Row 5 has a null in the time", id="time"),
        pytest.param(
            [rows_of(ts=[*HOURS[:5], HOURS[2]])],
            (),
            r"0.parquet:0: Rows 2 and 5 are both step 2020-01-01T02:00:00 \(ts\) of entity 'a'",
            id="twice in a row group",
        ),
        pytest.param(
            [rows_of(), rows_of(ts=HOURS + pd.Timedelta("5h"))],
            (),
            "0 of .*0.parquet and row group 0 of .*1.parquet both hold step 2020-01-01T05:00:00 of entity 'a'",
            id="twice in two files",
        ),
        pytest.param(
            [rows_of(), rows_of(ts=HOURS + pd.Timedelta("30min"))],
            (),
            r"T00:00:00 to 2020-01-01T05:00:00 and 2020-01-01T00:30:00 to .* which overlap.*arrange\(",
            id="overlap",
        ),
        pytest.param([rows_of()], ("--past", 9), "longest series has 6 steps, and a window needs 9", id="too long"),
        pytest.param(
            [rows_of()], ("--split", "2020-01-01T03:00+01:00"), "has an offset from UTC.*without one", id="naive column"
        ),
        pytest.param(
            [rows_of(ts=HOURS.tz_localize("Europe/Berlin"))],
            ("--split", "2020-01-01T03:00"),
            "has no offset from UTC.*with its offset",
            id="column with a zone",
        ),
        pytest.param(
            [rows_of()], ("--split", "2020-01-01T03:00:00.0000001"), "lies between two values", id="nanoseconds"
        ),
        pytest.param([rows_of(ts=np.arange(6.0))], (), "A time is a timestamp, a date or an integer", id="floats"),
        pytest.param([rows_of()], ("--max-gap", "2 hours"), 'give a duration such as "2h"', id="duration"),
        pytest.param([rows_of()], ("--entity", "metre"), "Did you mean 'meter'", id="column"),
        pytest.param([rows_of()], ("--columns", "meter"), "It takes integers, floats", id="text"),
    ],
)
def test_errors_come_before_training(
    forebay: Call, files: list[Rows], options: tuple[Any, ...], words: str, tmp_path: Path
) -> None:
    for number, columns in enumerate(files):
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
    said = forebay("series", tmp_path, "--entity", "meter", "--time", "ts", "--past", 2, *options)
    assert said.code == 3
    assert re.search(words, said.err), said.err


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_unsorted_times_of_any_unit(forebay: Call, unit: str, zone: str | None, tmp_path: Path) -> None:
    times = HOURS.as_unit(unit).tz_localize("UTC").tz_convert(zone) if zone else HOURS.as_unit(unit)
    for number in range(2):
        own = times[number * 3 : number * 3 + 3][::-1]
        table = pa.table({"meter": ["a"] * 3, "ts": own, "load": np.arange(3.0)})
        pq.write_table(table, tmp_path / f"{1 - number}.parquet")
    cut = "2020-01-01T05:00+01:00" if zone else "2020-01-01T04:00"
    shape = ("--entity", "meter", "--time", "ts", "--past", 2, "--future", 1)
    said = forebay("series", tmp_path, *shape, "--split", cut)
    assert "interval       1h" in said.out and "2, 2 in the parts of the split" in said.out


def test_a_time_without_a_column(forebay: Call, meters: Path) -> None:
    said = forebay("series", meters, "--entity", "meter", "--past", 4, "--max-gap", "2h")
    assert said.code == 3 and "max_gap needs a time column" in said.err
