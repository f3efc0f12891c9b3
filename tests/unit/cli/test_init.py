"""Job files that `forebay init` writes run as they are."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.conftest import Said

from forebay.cli.guessed_features import guess_features
from forebay.cli.init import job_text
from forebay.data.sources.scan import scan

Call = Callable[..., Said]
SHARED = Path(__file__).parents[4] / "shared" / "data"
ROWS = 240
ODD = 'a "b"\n\\c\'; import os  # """'
DAY = datetime.datetime(2024, 1, 1)


def clicks() -> pa.Table:
    draw = np.random.default_rng(0)
    return pa.table(
        {
            "event_id": [f"e{row}" for row in range(ROWS)],
            "user_id": pa.array([None, *draw.integers(0, 9, ROWS - 1).tolist()]),
            "country": draw.choice(["de", "fr", "us"], ROWS),
            "price": pa.array([None, float("nan"), float("inf"), *draw.normal(1e9, 1e8, ROWS - 3).tolist()]),
            "decimal": [Decimal("1.25")] * ROWS,
            "at": [DAY + datetime.timedelta(hours=row) for row in range(ROWS)],
            "day": pa.array([None, *[DAY.date()] * (ROWS - 1)]),
            "tags": [["x", "y"][: row % 3] for row in range(ROWS)],
            "embedding": pa.array([[1.0, 2.0]] * ROWS, pa.list_(pa.float32(), 2)),
            "scores": [[1.5]] * ROWS,
            "review": ["a long text about something " * 5] * ROWS,
            "where": [{"lat": 1.0}] * ROWS,
            "nothing": pa.nulls(ROWS),
            "clicked": pa.array([None, *(draw.integers(0, 2, ROWS - 1)).tolist()], pa.int8()),
        }
    )


def adult() -> pa.Table:
    names = [f"a{number}" for number in range(14)]
    options = pa.csv.ReadOptions(column_names=[*names, "income"])
    table = pa.csv.read_csv(SHARED / "adult.data", read_options=options).slice(0, 2000)
    return table.append_column("rich", pc.equal(table["income"], " >50K"))


def transformer() -> pa.Table:
    return pa.csv.read_csv(SHARED / "ETTh1.csv").slice(0, 2000)


def odd_names() -> pa.Table:
    return pa.table({ODD: np.arange(50) % 3, "class": np.arange(50) % 2, "c.d": np.arange(50.0), "e\tf": ["x"] * 50})


def fractions(target: str) -> pa.Table:
    values = [None, float("nan"), float("inf"), -float("inf"), *np.arange(96.0)]
    return pa.table({"x": [*np.arange(50.0)] * 2, target: pa.array(values, pa.float32())})


TABLES = {
    "clicks": (clicks, "clicked", 120),
    "one row group": (clicks, "clicked", ROWS),
    "no nulls": (lambda: pa.table({"x": np.arange(40.0), "y": np.arange(40.0) * 1e6}), "y", 10),
    "one row": (lambda: pa.table({"x": [1.0], "flag": [True]}), "flag", 1),
    "odd names": (odd_names, "class", 25),
    "targets that are no numbers": (lambda: fractions("a b"), "a b", 25),
    "only texts": (lambda: pa.table({"s": ["a", "b"] * 10, "n": [2**40, -(2**40)] * 10}), "n", 5),
}


def write(folder: Path, table: pa.Table, rows: int) -> Path:
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet", row_group_size=rows)
    return folder


def runs(forebay: Call, data: Path, *options: str) -> dict[str, Any]:
    """Facts of a file that was written, whose job has trained."""
    made = forebay("init", data, "my_job.py", "--json", *options)
    assert made.code == 0, made.err
    said = forebay("run", "my_job.py", "--driver", "local", "--epochs", "1", "--json")
    assert said.code == 0, said.err + Path("my_job.py").read_text()
    assert json.loads(said.out)["stopped"] is None
    facts: dict[str, Any] = json.loads(made.out)
    return facts


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # of the cache


@pytest.mark.parametrize("name", TABLES)
def test_the_file_runs_as_it_is(forebay: Call, tmp_path: Path, name: str) -> None:
    make, target, rows = TABLES[name]
    assert runs(forebay, write(tmp_path / "data", make(), rows))["target"] == target


@pytest.mark.skipif(not SHARED.exists(), reason="shared/data is not here")
@pytest.mark.parametrize(("make", "target"), [(adult, "rich"), (transformer, "OT")])
def test_real_data_runs(forebay: Call, tmp_path: Path, make: Callable[[], pa.Table], target: str) -> None:
    assert runs(forebay, write(tmp_path / "data", make(), 500))["target"] == target


def test_columns_are_sorted_by_use(forebay: Call, tmp_path: Path) -> None:
    found = guess_features(scan(str(write(tmp_path / "data", clicks(), 120))))
    assert (found.is_binary, found.where, found.is_guessed) == (True, "clicked is not None", True)
    assert (found.numbers, found.ids) == (["price", "decimal"], ["user_id", "country"])
    assert (found.times, found.lists, found.vectors) == (["at", "day"], ["tags"], {"embedding": 2})
    assert set(found.skipped) == {"event_id", "scores", "review", "where", "nothing"}
    assert found.skipped["where"] == "struct<lat: double>. Name a field of it: where.lat"


def test_a_target_is_named(forebay: Call, tmp_path: Path) -> None:
    data = write(tmp_path / "data", clicks(), 120)
    said = forebay("init", data, "--target", "price", "--json")
    assert (json.loads(said.out)["target"], json.loads(said.out)["is_binary"]) == ("price", False)
    again = forebay("init", data)
    assert again.code == 3 and "my_job.py exists" in again.err
    missing = forebay("init", data, "--target", "prise", "--force")
    assert missing.code == 3 and "Did you mean 'price'?" in missing.err
    text = forebay("init", data, "--target", "country", "--force")
    assert text.code == 3 and "WrongType" in text.err


def test_data_without_a_target_or_a_feature_is_refused(forebay: Call, tmp_path: Path) -> None:
    said = forebay("init", write(tmp_path / "texts", pa.table({"s": ["a"]}), 1))
    assert said.code == 3 and "no column of numbers or bools" in said.err
    said = forebay("init", write(tmp_path / "alone", pa.table({"y": [1.0]}), 1))
    assert said.code == 3 and "beside the target 'y'" in said.err
    assert forebay("init", tmp_path / "alone", "my_job.txt").code == 2
    assert not list(tmp_path.glob("*.py"))


@given(names=st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=5, unique=True))
def test_no_name_of_a_column_breaks_the_file(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        table = pa.table({name: [1.5, 2.5] for name in names})
        data = tmp_path_factory.mktemp("data")
        pq.write_table(table, data / "a.parquet")
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return
    manifest = scan(str(data))
    text = job_text(manifest, guess_features(manifest), str(data), "my_job.py")
    made: dict[str, Any] = {}
    exec(compile(text, "my_job.py", "exec"), made)
    assert {made["TARGET"], *made["NUMBERS"]} == set(names)
