"""`batch.rows()` names the row of the file whose values are in the batch, for every kind of data."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.manifest.file_rows import FileRow
from forebay.data.plan.order import Order
from forebay.errors import InvalidOption

FILES = {"day=1/a.parquet": [30, 1, 0, 50], "day=2/b.parquet": [7, 64]}
TRANSFORM = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense("x0"))
Folder = Callable[..., Path]


def planned(manifest: fb.Manifest) -> fb.Plan:
    return fb.build_plan(manifest, seed=7, lanes=6, shuffle_rows=16)


def plain(folder: Folder) -> Order:
    return planned(fb.scan(folder(FILES)))


def filtered(folder: Folder) -> Order:
    return planned(fb.scan(folder(FILES), where="c1 < 600 and id != 3 and day != 3"))


def several_roots(folder: Folder) -> Order:
    paths = [folder({"a.parquet": [9, 4]}, folder="one"), folder({"a.parquet": [20]}, seed=1, folder="two")]
    return planned(fb.scan([str(path / "a.parquet") for path in paths]))


def sampled(folder: Folder) -> Order:
    return fb.Sampled(planned(fb.scan(folder(FILES), where="c1 < 900")), balance="c0", rows=90)


def mixed(folder: Folder) -> Order:
    plans = {
        "web": filtered(folder),
        "code": planned(fb.scan(folder({"a.parquet": [20, 25]}, seed=1, folder="code"))),
    }
    return fb.Mixture(plans, {"web": 0.7, "code": 0.3}, rows=101)


def few_rows(folder: Folder) -> Order:
    return fb.build_plan(fb.scan(folder({"a.parquet": [3, 2]})), seed=1, lanes=6)


def lake(folder: Folder) -> Order:
    deltalake = pytest.importorskip("deltalake")
    table = pq.read_table(folder({"a.parquet": [40]}, folder="rows"))
    path = folder({}, folder="lake")
    for part in (table.slice(0, 25), table.slice(25)):
        deltalake.write_deltalake(path, part, mode="append")
    deltalake.DeltaTable(path).delete("id % 5 = 0")
    return planned(fb.scan(path))


def prepared(folder: Folder) -> Order:
    data = fb.scan(folder({"a.parquet": [40, 30]}, folder="rows"))
    return planned(fb.prepare(rows_backwards, into=str(folder({}, folder="into")), data=data).manifest)


def rows_backwards(data: fb.Manifest) -> pa.Table:
    return pq.read_table(data.root).sort_by([("id", "descending")])


KINDS = (plain, filtered, several_roots, sampled, mixed, few_rows, lake, prepared)


def values_at(order: Order, rows: Sequence[FileRow]) -> list[int]:
    """Ids of rows, read by pyarrow from the files that are named."""
    roots = {name: Path(manifest.root) for name, manifest in zip(order.names or [""], order.manifests, strict=True)}
    groups = {(row.source, row.file, row.row_group) for row in rows}
    tables = {
        (source, file, group): pq.ParquetFile(roots[source] / file).read_row_group(group)["id"]
        for source, file, group in groups
    }
    return [tables[each.source, each.file, each.row_group][each.row].as_py() for each in rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 4])
def test_rows_are_those_whose_values_are_in_the_batch(
    kind: Callable[[Folder], Order], size: int, parquet_folder: Folder
) -> None:
    order = kind(parquet_folder)
    for rank in range(size):
        world = fb.World(rank=rank, size=size)
        with fb.Loader(order, TRANSFORM, world=world, global_batch=16, epoch=1, epochs=3) as loader:
            for batch in [*loader, *loader]:
                ids = batch["id"].tolist()
                assert values_at(order, batch.rows()) == ids
                # A rank whose part is empty has one real row of weight 0.
                assert len(batch.rows()) == len(ids) == max(batch.num_rows, 1)


@pytest.mark.parametrize("kind", [filtered, mixed])
def test_copies_and_parts_have_their_rows(kind: Callable[[Folder], Order], parquet_folder: Folder) -> None:
    with fb.Loader(kind(parquet_folder), TRANSFORM, global_batch=16) as loader:
        batch = next(iter(loader))
    part = batch.take(np.array([5, 0, 11]), weight=1.0).take(np.array([2, 1]), weight=1.0)
    assert list(part.rows()) == [batch.rows()[11], batch.rows()[0]]
    assert list(batch.rows()[2:4]) == [batch.rows()[2], batch.rows()[3]]
    for copy in (batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        assert list(copy.rows()) == list(batch.rows())
    assert len(pickle.dumps(batch)) < len(pickle.dumps(loader.plan)) + 4000


def test_text_of_a_row_and_of_rows(parquet_folder: Folder) -> None:
    with fb.Loader(plain(parquet_folder), TRANSFORM, global_batch=4) as loader:
        rows = next(iter(loader)).rows()
    assert str(FileRow("day=1/a.parquet", 3, 17)) == "day=1/a.parquet:3:17"
    assert repr(rows) == f"FileRows(4: {rows[0]}, {rows[1]}, {rows[2]}, ...)"
    assert repr(rows[:1]) == f"FileRows(1: {rows[0]})"


def test_batches_of_others_say_that_they_have_no_rows() -> None:
    with pytest.raises(InvalidOption, match=r"this batch knows none.*batch\.to\(device\)"):
        fb.Batch({}).rows()
