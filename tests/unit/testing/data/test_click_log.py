from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from forebay.errors import InvalidOption
from forebay.testing.data import click_log
from forebay.testing.data.click_log import _Scores, _shares, write_click_log
from forebay.testing.data.hidden_towers import CARDINALITIES, EXPONENT, NUM_FLOATS, HiddenTowers, PowerLaw


def _row_group_rows(folder: Path) -> list[list[int]]:
    footers = [pq.read_metadata(path) for path in sorted(folder.glob("*.parquet"))]
    return [[footer.row_group(i).num_rows for i in range(footer.num_row_groups)] for footer in footers]


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_shape_and_columns(tmp_path: Path) -> None:
    log = write_click_log(tmp_path / "log", rows=2_000, files=2, row_groups_per_file=3)
    assert (log.path, log.rows) == (tmp_path / "log", 2_000)
    assert _row_group_rows(log.path) == [[334, 333, 333], [334, 333, 333]]
    table = pa.concat_tables(pq.read_table(path) for path in sorted(log.path.glob("*.parquet")))
    assert [str(kind) for kind in table.schema.types] == ["float"] * 13 + ["int64"] * 26 + ["int8"]
    assert table.column_names == [*(f"f{i}" for i in range(13)), *(f"c{i}" for i in range(26)), "clicked"]
    assert all(column.null_count == 0 for column in table.columns)
    assert set(table["clicked"].to_pylist()) == {0, 1}
    assert pq.read_metadata(log.path / "part-00000.parquet").row_group(0).column(0).compression == "SNAPPY"


def test_fewer_rows_than_row_groups(tmp_path: Path) -> None:
    log = write_click_log(tmp_path / "log", rows=5, files=3, row_groups_per_file=4)
    assert _row_group_rows(log.path) == [[1, 1], [1, 1], [1]]
    assert write_click_log(tmp_path / "one", rows=1, files=8, row_groups_per_file=15).best_auc == 0.5


def test_click_rate_best_auc_and_power_law(tmp_path: Path) -> None:
    log = write_click_log(tmp_path / "log", rows=60_000, files=1, row_groups_per_file=4, seed=3)
    table = pq.read_table(log.path / "part-00000.parquet")
    clicked = table["clicked"].to_numpy()
    assert 0.2 < clicked.mean() < 0.3
    assert 0.77 < log.best_auc < 0.82
    ids = table["c12"].to_numpy()
    assert ids.min() >= 0 and ids.max() < 50_000
    counts = np.bincount(ids, minlength=50_000)
    falloff = counts[90:110].mean() / counts[9:11].mean()
    assert falloff == pytest.approx(10**-EXPONENT, rel=0.3), "ten times the rank, a share smaller by the power"


def test_best_auc_is_that_of_the_true_probabilities() -> None:
    rng = np.random.default_rng(5)
    towers = HiddenTowers.draw(rng)
    floats = rng.standard_normal((20_000, NUM_FLOATS)).astype(np.float32)
    ids = np.stack([PowerLaw(num_ids=n, exponent=EXPONENT).ids(rng.random(20_000)) for n in CARDINALITIES])
    probabilities = towers.probabilities(floats, ids)
    clicked = rng.random(20_000) < probabilities
    scores = _Scores()
    scores.add(probabilities[:7_000], clicked[:7_000])
    scores.add(probabilities[7_000:], clicked[7_000:])
    assert scores.auc() == pytest.approx(roc_auc_score(clicked, probabilities), abs=1e-4)


def test_bytes_depend_on_the_arguments_alone(tmp_path: Path) -> None:
    sizes = {"rows": 600, "files": 2, "row_groups_per_file": 2}
    first = write_click_log(tmp_path / "first", **sizes, seed=1)
    np.random.default_rng(0).random()
    again = write_click_log(tmp_path / "again", **sizes, seed=1)
    other = write_click_log(tmp_path / "other", **sizes, seed=2)
    assert _digests(first.path) == _digests(again.path)
    assert not set(_digests(first.path).values()) & set(_digests(other.path).values())
    files = list(_digests(first.path).values())
    assert len(set(files)) == len(files)


def test_a_finished_log_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write_click_log(tmp_path / "log", rows=100, files=2, row_groups_per_file=1)
    monkeypatch.setattr(click_log, "_write_files", lambda *_: pytest.fail("wrote again"))
    assert write_click_log(str(tmp_path / "log"), rows=100, files=2, row_groups_per_file=1) == log
    assert json.loads((log.path / "click_log.json").read_text())["best_auc"] == log.best_auc


def test_another_log_or_folder_is_left_alone(tmp_path: Path) -> None:
    write_click_log(tmp_path / "log", rows=100, files=1, row_groups_per_file=1)
    before = _digests(tmp_path / "log")
    with pytest.raises(InvalidOption, match="'seed': 9.*'seed': 0"):
        write_click_log(tmp_path / "log", rows=100, files=1, row_groups_per_file=1, seed=9)
    assert _digests(tmp_path / "log") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InvalidOption, match="not a click log"):
        write_click_log(tmp_path / "mine", rows=100)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    assert write_click_log(tmp_path, rows=10, files=1, row_groups_per_file=1).path == tmp_path
    assert len(_row_group_rows(tmp_path)) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_an_interrupted_log_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def progress(done: int, total: int) -> None:
        assert not (tmp_path / "log").exists(), "a half-written log must not be visible"
        if done > 50:
            raise error

    with pytest.raises((KeyboardInterrupt, OSError)):
        write_click_log(tmp_path / "log", rows=100, files=2, row_groups_per_file=2, progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_one_wins(tmp_path: Path) -> None:
    sizes = {"rows": 40, "files": 1, "row_groups_per_file": 2}
    inner: list[object] = []

    def other_writer_finishes_first(done: int, total: int) -> None:
        if done == total:
            inner.append(write_click_log(tmp_path / "log", **sizes))

    outer = write_click_log(tmp_path / "log", **sizes, progress=other_writer_finishes_first)
    assert inner == [outer]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_progress_counts_rows(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_click_log(
        tmp_path / "log", rows=10, files=2, row_groups_per_file=2, progress=lambda *counts: seen.append(counts)
    )
    assert seen == [(3, 10), (5, 10), (8, 10), (10, 10)]


@pytest.mark.parametrize("option", [{"rows": 0}, {"files": 0}, {"row_groups_per_file": -1}, {"seed": -1}])
def test_impossible_sizes(tmp_path: Path, option: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(option))):
        write_click_log(tmp_path / "log", **option)
    assert list(tmp_path.iterdir()) == []


@given(rows=st.integers(0, 10_000), parts=st.integers(1, 200))
def test_shares_add_up_and_differ_by_one_at_most(rows: int, parts: int) -> None:
    shares = list(_shares(rows, parts))
    assert sum(shares) == rows
    assert len(shares) == min(rows, parts)
    assert not shares or max(shares) - min(shares) <= 1


@given(num_ids=st.integers(1, 60_000), exponent=st.sampled_from([0.5, 1.1, 1.5, 2.0]))
def test_power_law_stays_in_range(num_ids: int, exponent: float) -> None:
    law = PowerLaw(num_ids=num_ids, exponent=exponent)
    ids = law.ids(np.array([0.0, 0.5, np.nextafter(1.0, 0.0)]))
    assert ids[0] == 0 and ids[-1] == num_ids - 1 and 0 <= ids[1] < num_ids
    assert law.shares().sum() == pytest.approx(1.0)
    assert (np.diff(law.shares()) <= 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_every_seed_is_as_hard(seed: int) -> None:
    rng = np.random.default_rng(seed)
    towers = HiddenTowers.draw(rng)
    floats = rng.standard_normal((20_000, NUM_FLOATS)).astype(np.float32)
    ids = np.stack([PowerLaw(num_ids=n, exponent=EXPONENT).ids(rng.random(20_000)) for n in CARDINALITIES])
    probabilities = towers.probabilities(floats, ids)
    assert 0.23 < probabilities.mean() < 0.27
