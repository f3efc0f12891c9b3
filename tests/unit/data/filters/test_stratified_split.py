"""A stratified split holds out the same share of each class, as far as whole row groups allow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.errors import InvalidOption, MissingColumn, WrongType


@pytest.fixture
def manifest(tmp_path: Path) -> fb.Manifest:
    """200 row groups of 25 rows, sorted by a label with classes of 3,500, 1,400 and 100 rows."""
    label = pa.array(["many"] * 3500 + [None] * 1400 + ["few"] * 100)
    pq.write_table(pa.table({"label": label, "id": np.arange(5000)}), tmp_path / "a.parquet", row_group_size=25)
    return fb.scan(str(tmp_path))


def classes_of(manifest: fb.Manifest, root: Path) -> Counter[str | None]:
    file = pq.ParquetFile(root / "a.parquet")
    return Counter(sum((file.read_row_group(group.index)["label"].to_pylist() for group in manifest), []))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.variation) for seed in (2, 3, 4))])
def test_every_class_has_its_share(manifest: fb.Manifest, tmp_path: Path, seed: int) -> None:
    rest, held_out = manifest.split(0.25, stratify="label", seed=seed)
    assert classes_of(held_out, tmp_path) == {"many": 875, None: 350, "few": 25}
    assert classes_of(rest, tmp_path) + classes_of(held_out, tmp_path) == classes_of(manifest, tmp_path)
    again = manifest.split(0.25, stratify="label", seed=seed)
    assert (rest.id, held_out.id) == (again[0].id, again[1].id)
    assert len({manifest.split(0.25, stratify="label", seed=other)[1].id for other in range(5)}) == 5


def test_a_plain_split_misses_the_small_class(manifest: fb.Manifest, tmp_path: Path) -> None:
    shares = [classes_of(manifest.split(0.25, seed)[1], tmp_path)["few"] for seed in range(8)]
    assert set(shares) != {25}


def test_each_side_keeps_a_row_group(manifest: fb.Manifest) -> None:
    two = manifest.take([0, 199])
    for fraction in (0.01, 0.5, 0.99):
        assert [len(part) for part in two.split(fraction, stratify="label")] == [1, 1]


def test_impossible_splits_are_refused(manifest: fb.Manifest, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="fraction=1"):
        manifest.split(1, stratify="label")
    with pytest.raises(InvalidOption, match="another value in each of 5000 rows"):
        manifest.split(0.1, stratify="id")
    with pytest.raises(MissingColumn, match="lable"):
        manifest.split(0.1, stratify="lable")
    table = pa.table({"tags": [[1], [2]], "id": [1, 2]})
    pq.write_table(table, tmp_path / "lists.parquet", row_group_size=1)
    with pytest.raises(WrongType, match="stratify='tags' is list"):
        fb.scan(tmp_path / "lists.parquet").split(0.5, stratify="tags")
