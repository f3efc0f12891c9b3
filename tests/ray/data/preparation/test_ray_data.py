"""Preparation with Ray Data: only rows decide the files, and a sealed dataset needs no Ray."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import ray
from ray.data.preprocessors import OrdinalEncoder, StandardScaler

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation.ray_data import _of_one_schema
from forebay.errors import InvalidOption, MissingColumn, MixedSchemas

ROWS = 6000
TEN = pa.table({"row": range(10)})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    row = rng.permutation(ROWS)
    table = pa.table({"row": row, "user": row % 41, "city": [f"c{number % 7}" for number in row.tolist()]})
    (tmp_path / "lake").mkdir()
    # Few files: each block is a task, and each task may start a worker.
    for number in range(2):
        pq.write_table(table.slice(number * 3000, 3000), tmp_path / "lake" / f"c{number}.parquet")
    return tmp_path / "lake"


def scaled(batch: dict[str, Any], by: float, killed: str) -> dict[str, Any]:
    """Kills its own worker once, if `killed` names a file that is not there yet."""
    if killed and not Path(killed).exists():
        Path(killed).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch | {"price": batch["row"] * by}


def features(root: Path, by: float = 0.5, blocks: int = 2, killed: str = "") -> ray.data.Dataset:
    clicks = ray.data.read_parquet(str(root)).repartition(blocks)
    return clicks.random_shuffle().map_batches(partial(scaled, by=by, killed=killed))


def plain(root: Path) -> ray.data.Dataset:
    return ray.data.read_parquet(str(root))


def by_hand(root: Path, by: float) -> Iterator[pa.Table]:
    table = pq.read_table(root)
    yield table.append_column("price", pc.multiply(pc.cast(table["row"], pa.float64()), by))


FITS = (fb.Vocabulary("city"), fb.preparation.Moments(["price"]), fb.preparation.Quantiles("price", (0.1, 0.9)))


def make(root: Path, into: Path, **options: Any) -> fb.Prepared:
    # With a version, because a worker kills itself.
    given = {"key": "row", "row_group_rows": 256, "fit": FITS, "inputs": [root], "version": "1"} | options
    return fb.preparation.from_ray_data(features, root=root, into=str(into), **given)


def test_files_are_those_of_the_same_rows_prepared_without_ray_and_are_found_again(
    ray_session: None, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fb.prepare(
        by_hand, root=lake, by=0.5, into=str(tmp_path / "a"), key="row", row_group_rows=256, fit=FITS, inputs=[lake]
    )
    first = make(lake, tmp_path / "b")
    marker = tmp_path / "killed"
    second = make(lake, tmp_path / "c", blocks=3, killed=str(marker))
    assert marker.exists()
    assert first.files == second.files == expected.files
    assert first.manifest == second.manifest == expected.manifest
    assert first.statistics == second.statistics == expected.statistics
    assert first.vocabularies == second.vocabularies == expected.vocabularies
    assert sum(len(file.rows) for file in first.files) == 24
    assert len(first.origin.inputs) == 2
    monkeypatch.setattr("forebay.data.preparation.ray_data._build", None)
    assert make(lake, tmp_path / "b", inputs=[str(lake)]).sealed_at == first.sealed_at


def standardised(root: Path) -> tuple[ray.data.Dataset, dict[str, object]]:
    rows = ray.data.read_parquet(str(root))
    scaler, encoder = StandardScaler(["user"]).fit(rows), OrdinalEncoder(["city"]).fit(rows)
    return encoder.transform(scaler.transform(rows)), {"scaler": scaler, "encoder": encoder}


def test_preprocessors_of_ray_are_saved_with_what_they_fitted(ray_session: None, lake: Path, tmp_path: Path) -> None:
    into = str(tmp_path / "into")
    made = fb.preparation.from_ray_data(
        standardised, root=lake, into=into, key="row", row_group_rows=1000, inputs=[lake]
    )
    found = fb.Prepared.load(made.folder)
    assert list(found.preprocessors) == ["scaler", "encoder"]
    served = pq.read_table(lake)  # not a data frame: before Ray 2.59, the encoder gives text for it under pandas 3
    for name in found.preprocessors:
        served = fb.preparation.load_preprocessor(found, name).transform_batch(served)
    reader = RowGroupReader(found.manifest)
    trained = pa.concat_tables(reader.read(index) for index in range(len(found.manifest))).to_pandas()
    served = served.sort_by("row").to_pandas()
    assert served["city"].tolist() == trained["city"].tolist()
    np.testing.assert_allclose(served["user"], trained["user"], rtol=1e-12)
    with pytest.raises(InvalidOption, match=r"holds no preprocessor 'sclaer', but \['encoder', 'scaler'\]"):
        fb.preparation.load_preprocessor(found, "sclaer")


def test_what_the_driver_says(ray_session: None, lake: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    into = tmp_path / "into"
    with pytest.raises(InvalidOption, match="A Dataset has no source"):
        fb.preparation.from_ray_data(ray.data.range(3), into=str(into))
    with pytest.raises(InvalidOption, match=r"has no known inputs.*inputs=\[\] if it reads none"):
        fb.preparation.from_ray_data(lambda: ray.data.range(3), into=str(into), version="1")
    with pytest.raises(InvalidOption, match="returned a list, not a ray.data.Dataset"):
        fb.preparation.from_ray_data(lambda: [1], into=str(into), version="1", inputs=[])
    with pytest.raises(MissingColumn, match="Did you mean 'city'"):
        fb.preparation.from_ray_data(plain, root=lake, into=str(into), inputs=[lake], fit=fb.Vocabulary("citty"))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        given = {"root": lake, "into": str(into), "inputs": [lake], "key": "user", "row_group_rows": 256}
        assert fb.preparation.from_ray_data(plain, **given).rows == ROWS
        assert fb.preparation.from_ray_data(ray.data.from_arrow(TEN), into=str(into), version="1", inputs=[]).rows == 10
    said = [record.getMessage() for record in caplog.records if record.name.startswith("forebay")]
    assert said[0].startswith(f"plain: {ROWS - 41} rows have the key of the row before them")
    assert "has no key: its rows stay in order of arrival" in said[1]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("names", [("id", "price"), ()])
def test_a_column_of_some_blocks_only_is_not_left_out(number: int, names: tuple[str, ...]) -> None:
    first = pa.table({"id": [1]})
    other = pa.table({name: [2] for name in names})
    with pytest.raises(MixedSchemas, match=f"{'price' if names else 'id'}' is in some blocks only"):
        _of_one_schema(number, [first, other], first.schema if number else None)
