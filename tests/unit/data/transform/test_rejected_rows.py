"""Rows that a transform rejects: no error if they are left out, always one if they are not, with every cache."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.transform.rejected_rows import REJECTED, accepted_rows, apply_to_kept, usable
from forebay.errors import NullLabel, TransformFailed

NULL_LABELS = fb.Transform(
    row=fb.Dense("row", dtype="float64"), label=fb.Label("label"), own=fb.Ragged("own", padded=False)
)
LISTS = ["@lists.values.own", "@lists.offsets.own"]
IN_STRUCT = fb.Transform(row=fb.Dense("row", dtype="float64"), label=fb.Label("answer.label"))
SHAPED = fb.Transform(row=fb.Dense("row", dtype="float64"), triple=fb.Array("triple", shape=3))


def positive(batch: pa.RecordBatch) -> Mapping[str, Any]:
    prices = batch["price"].to_numpy(zero_copy_only=False)
    if not (prices > 0).all():
        raise ValueError("a price of 0")
    return {"row": batch["row"].to_numpy().astype("float64"), "log": np.log(prices)}


POSITIVE = fb.Transform(fn=positive, version="1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """10 row groups of 20 rows. The row group 3 has no label, and 4 has no null label."""
    numbers = range(200)
    labels = [
        None if number // 20 == 3 or (number % 3 == 0 and number // 20 != 4) else number % 2 for number in numbers
    ]
    columns = {
        "row": numbers,
        "label": pa.array(labels, pa.int8()),
        "answer": [{"label": label} for label in labels],
        "price": [float(label is not None) * number for label, number in zip(labels, range(1, 201), strict=True)],
        "own": [[number] * (number % 4 + 1) for number in numbers],
        "triple": [[1.0, 2.0, 3.0] if label is not None else [1.0] for label in labels],
    }
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "data" / "a.parquet", row_group_size=20)
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path: Path) -> fb.DiskCache:
    return fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)


def trained_rows(manifest: fb.Manifest, transform: fb.Transform, cache: fb.DiskCache | None, size: int) -> list[float]:
    found: list[float] = []
    for rank in range(size):
        plan = fb.build_plan(manifest, seed=3, lanes=6)
        with fb.Loader(plan, transform, cache, global_batch=16, world=fb.World(rank=rank, size=size)) as loader:
            for batch in loader:
                assert REJECTED not in batch
                if "own" in batch:
                    values, counts = np.asarray(batch["row"]).ravel(), np.asarray(batch["own_lengths"])
                    assert counts.tolist() == (values % 4 + 1).tolist()
                    assert np.asarray(batch["own"]).tolist() == np.repeat(values, counts).tolist()
                found += np.asarray(batch["row"]).ravel().tolist() if batch.weight else []
    return sorted(found)


def with_label(folder: Path) -> list[float]:
    table = pq.read_table(folder)
    return table.filter(table["label"].is_valid())["row"].cast("double").to_pylist()


@pytest.mark.parametrize("transform", [NULL_LABELS, IN_STRUCT, SHAPED, POSITIVE])
def test_rejected_rows_that_are_left_out_are_no_error_and_all_others_come_once(
    folder: Path, cache: fb.DiskCache, transform: fb.Transform
) -> None:
    manifest = fb.scan(folder, where="label is not None")
    assert manifest.kept is not None and manifest.kept.filtered_rows == 200 - len(with_label(folder))
    for size, kept in ((1, None), (3, cache), (2, cache)):
        assert trained_rows(manifest, transform, kept, size) == with_label(folder)


@pytest.mark.parametrize("transform", [NULL_LABELS, POSITIVE])
def test_one_cached_block_serves_every_filter_and_none_that_has_a_rejected_row(
    folder: Path, cache: fb.DiskCache, transform: fb.Transform
) -> None:
    wheres = ("label is not None and row < 100", "label is not None", "label == 1", "row >= 80 and row < 100")
    for where in wheres:
        manifest = fb.scan(folder, where=where)
        table = pq.read_table(folder).to_pylist()
        keep = {wheres[0]: lambda row: row["label"] is not None and row["row"] < 100}
        keep |= {wheres[1]: lambda row: row["label"] is not None, wheres[2]: lambda row: row["label"] == 1}
        kept = keep.get(where, lambda row: 80 <= row["row"] < 100)
        assert trained_rows(manifest, transform, cache, 1) == [row["row"] for row in table if kept(row)]
    assert len(cache.keys()) == 9  # row group 3 has no row
    for where in (None, "label is None or label == 0"):
        with pytest.raises(NullLabel if transform is NULL_LABELS else TransformFailed):
            trained_rows(fb.scan(folder, where=where), transform, cache, 1)


def test_a_block_does_not_depend_on_the_rows_that_are_left_out(folder: Path) -> None:
    table = pq.read_table(folder).slice(0, 20)
    blocks = [
        apply_to_kept(transform, table, fb.scan(folder, where=where), 0)
        for transform in (NULL_LABELS, POSITIVE)
        for where in ("label is not None", "label == 1 and row > 10")
    ]
    for one, other in (blocks[:2], blocks[2:]):
        assert one.schema == other.schema
        assert all(one.arrays[name].tobytes() == other.arrays[name].tobytes() for name in one.arrays)
        assert one.arrays[REJECTED].tolist() == list(range(0, 20, 3))
        assert one.arrays["row"].ravel().tolist() == [0 if row % 3 == 0 else row for row in range(20)]
    values, offsets = (blocks[0].arrays[name] for name in LISTS)
    assert np.diff(offsets).tolist() == [0 if row % 3 == 0 else row % 4 + 1 for row in range(20)]
    assert values.tolist() == np.repeat(np.arange(20), np.diff(offsets)).tolist()
    whole = fb.scan(folder)
    assert usable(blocks[0], whole, 0) is None and usable(None, whole, 0) is None
    served = usable(blocks[0], fb.scan(folder, where="label is not None"), 0)
    assert served is not None and list(served.arrays) == ["row", "label", *LISTS]


def test_accepted_rows_are_judged_one_by_one(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    sink = io.BytesIO()
    image.new("RGB", (8, 8), (1, 2, 3)).save(sink, "PNG")
    good, transform = sink.getvalue(), fb.Transform(pixels=fb.Image("image", size=(8, 8)))
    images = [good, b"no image", None, good, good[:40], good]
    table = pa.table(
        {"image": pa.array(images, pa.binary()), "bad": [each in (images[1], images[4]) for each in images]}
    )
    assert accepted_rows(transform, table.select(["image"])).tolist() == [True, False, True, True, False, True]
    pq.write_table(table, tmp_path / "a.parquet")
    manifest = fb.scan(tmp_path, where="bad == False")
    with fb.Loader(fb.build_plan(manifest), transform, global_batch=4) as loader:
        assert sum(int(batch["pixels"][:, 0].sum() > 0) and len(batch["pixels"]) for batch in loader) == 4


def test_the_number_of_calls_for_a_rejected_row_is_logarithmic() -> None:
    calls: list[int] = []

    def once(batch: pa.RecordBatch) -> Mapping[str, Any]:
        calls.append(batch.num_rows)
        if 777 in batch["x"].to_pylist():
            raise ValueError
        return {"x": batch["x"].to_numpy().copy()}

    accepted = accepted_rows(fb.Transform(fn=once, version="1"), pa.table({"x": range(1024)}))
    assert np.flatnonzero(~accepted).tolist() == [777]
    assert len(calls) == 1 + 2 * 10


def test_nothing_changes_where_no_row_is_left_out(parquet_folder: Callable[..., Path]) -> None:
    manifest = fb.scan(parquet_folder({"a.parquet": [30]}))
    wrong = fb.Transform(label=fb.Label("tags"))
    with pytest.raises(fb.errors.WrongType, match="numbers and bools"):
        apply_to_kept(wrong, pa.table({"tags": [["a"]] * 30}), manifest, 0)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (math.nan, "double"),
        *(
            pytest.param(bad, kind, marks=pytest.mark.variation)
            for bad in (None, math.nan, math.inf, -math.inf)
            for kind in ("halffloat", "float")
        ),
    ],
)
def test_an_unknown_label_is_named_by_file_and_row_and_can_be_left_out(
    tmp_path: Path, cache: fb.DiskCache, bad: float | None, kind: str
) -> None:
    for number, name in enumerate(("a", "b")):
        values = [bad if number and row == 13 else float(row % 2) for row in range(30)]
        columns = {"row": np.arange(30.0) + 30 * number, "label": pa.array(values, pa.float64()).cast(kind)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=10)
    transform = fb.Transform(row=fb.Dense("row", dtype="float64"), label=fb.Label("label"))
    whole = fb.scan(str(tmp_path))
    for manifest in (whole, fb.scan(str(tmp_path), where="row != 41")):
        for kept in (None, cache):
            with pytest.raises(NullLabel, match=r"^b\.parquet:1:3: Label 'label' found 1 .* column 'label'") as refused:
                trained_rows(manifest, transform, kept, 1)
            facts = refused.value.facts
            assert (facts["file"], facts["row_group"], facts["row"]) == ("b.parquet", 1, 3)
    kept_rows = whole.keep(transform)
    assert kept_rows.kept is not None and kept_rows.kept.rejected_rows == 1
    assert trained_rows(kept_rows, transform, cache, 2) == [row for row in range(60) if row != 43]
