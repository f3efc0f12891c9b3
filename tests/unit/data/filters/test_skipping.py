"""Skip lists leave out exactly the rows that they name: all others come once, and every count is exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.cli.app import main
from forebay.data.manifest.file_rows import FileRow, FileRows
from forebay.data.manifest.file_windows import FileWindows
from forebay.errors import CursorMismatch, InvalidOption, NoFiles

FILES = {"day=1/a.parquet": [30, 1, 0, 50], "day=2/b.parquet": [7, 64]}
TRANSFORM = fb.Transform(id=fb.Label("id", dtype="int64"))
Folder = Callable[..., Path]


def plain(folder: Folder) -> tuple[Path, dict[str, Any]]:
    return folder(FILES), {}


def filtered(folder: Folder) -> tuple[Path, dict[str, Any]]:
    return folder(FILES), {"where": "c1 < 600 and id != 3"}


def lake(folder: Folder) -> tuple[Path, dict[str, Any]]:
    deltalake = pytest.importorskip("deltalake")
    table, path = pq.read_table(folder({"a.parquet": [90]}, folder="rows")), folder({}, folder="lake")
    for part in (table.slice(0, 40), table.slice(40)):
        deltalake.write_deltalake(path, part, mode="append")
    return path, {}


@pytest.fixture(params=[plain, filtered, lake])
def source(request: pytest.FixtureRequest, parquet_folder: Folder) -> tuple[Path, dict[str, Any]]:
    return request.param(parquet_folder)


def names_and_ids(manifest: fb.Manifest) -> dict[str, int]:
    """Id of each row that the dataset has, by its name."""
    plan = fb.build_plan(manifest, shuffle=False, lanes=1)
    rows = FileRows.of([manifest], *plan.batch(0, 0, plan.num_rows))
    tables = {
        (row.file, row.row_group): pq.ParquetFile(Path(manifest.root) / row.file).read_row_group(row.row_group)["id"]
        for row in rows
    }
    return {str(row): tables[row.file, row.row_group][row.row].as_py() for row in rows}


def trained_ids(manifest: fb.Manifest, size: int) -> list[int]:
    found: list[int] = []
    for rank in range(size):
        plan = fb.build_plan(manifest, seed=3, lanes=6)
        with fb.Loader(plan, TRANSFORM, global_batch=16, world=fb.World(rank=rank, size=size)) as loader:
            found += [number for batch in loader if batch.weight for number in batch["id"].tolist()]
    return sorted(found)


@pytest.mark.parametrize("seed", range(4))
def test_all_other_rows_come_exactly_once(source: tuple[Path, dict[str, Any]], seed: int, tmp_path: Path) -> None:
    path, options = source
    whole = fb.scan(path, **options)
    ids = names_and_ids(whole)
    rng = np.random.default_rng(seed)
    skip = rng.choice(list(ids), size=[1, 5, 40, len(ids) - 1][seed], replace=False).tolist()
    manifest = fb.scan(path, **options, skip=skip)
    left = sorted(set(ids.values()) - {ids[name] for name in skip})
    assert trained_ids(manifest, 1) == trained_ids(manifest, 3) == left
    assert (manifest.num_rows, manifest.kept.skipped_rows) == (len(left), len(skip))  # type: ignore[union-attr]
    assert names_and_ids(manifest) == {name: ids[name] for name in ids if name not in skip}
    # The list is part of the plan, in any order, with doubles, and as URIs.
    uris = [f"{whole.root}/{name}" for name in reversed(skip)]
    again = fb.scan(path, **options, skip=[*uris, skip[0]])
    assert again == manifest != whole
    assert fb.build_plan(again).id == fb.build_plan(manifest).id != fb.build_plan(whole).id
    manifest.save(tmp_path / "saved.json")
    loaded = fb.Manifest.load(tmp_path / "saved.json")
    assert loaded == manifest and loaded.kept.skipped_rows == len(skip)  # type: ignore[union-attr]


def test_rows_of_spans_and_windows_are_left_out(parquet_folder: Folder) -> None:
    path = parquet_folder(FILES | {"day=3/odd:0:3 name.parquet": [5]})
    series = fb.Sequences(fb.scan(path), past=fb.History(["x1"], steps=9), entity="c0", time="id")
    with fb.Loader(fb.build_plan(series), series.transform, global_batch=4) as loader:
        windows = next(iter(loader)).rows()
    assert isinstance(windows, FileWindows) and max(len(each.spans) for each in windows) > 1
    texts = [str(span) for window in windows for span in window.spans]
    lefts = [
        fb.scan(path, skip=skip)
        for skip in (windows, texts, list(map(str, windows)), [each.spans[0] for each in windows] + texts)
    ]
    rows = {
        f"{span.file}:{span.row_group}:{row}"
        for window in windows
        for span in window.spans
        for row in range(span.first, span.last + 1)
    }
    assert all(left == lefts[0] for left in lefts) and lefts[0] == fb.scan(path, skip=rows)
    assert lefts[0].num_rows == 157 - len(rows)
    odd = fb.scan(path, skip=["day=3/odd:0:3 name.parquet:0:1..3", "day=2/b.parquet:0:6"])
    assert odd.num_rows == 153 and "day=3/odd:0:3 name.parquet:0:4" in names_and_ids(odd)


def test_rows_of_prepared_data_are_left_out_by_name(parquet_folder: Folder, tmp_path: Path) -> None:
    data = fb.scan(parquet_folder({"a.parquet": [40, 30]}))
    prepared = fb.prepare(rows_backwards, data=data, into=str(tmp_path / "into"), row_group_rows=16)
    with fb.Loader(fb.build_plan(prepared.manifest, seed=3), TRANSFORM, global_batch=16) as loader:
        batch = next(iter(loader))
    left = fb.scan(prepared.folder, skip=batch.rows())
    assert sorted(names_and_ids(left).values()) == sorted(set(range(70)) - set(batch["id"].tolist()))


def rows_backwards(data: fb.Manifest) -> Iterator[pa.Table]:
    yield pq.read_table(data.root).sort_by([("id", "descending")])


def test_a_run_does_not_go_on_with_another_skip_list(parquet_folder: Folder) -> None:
    path = parquet_folder(FILES)
    with fb.Loader(fb.build_plan(fb.scan(path)), TRANSFORM, global_batch=16) as loader:
        next(iter(loader))
        cursor = loader.cursor()
    other = fb.build_plan(fb.scan(path, skip=["day=1/a.parquet:0:4"]))
    with fb.Loader(other, TRANSFORM, global_batch=16) as loader, pytest.raises(CursorMismatch):
        loader.seek(cursor)


def test_rows_that_are_left_out_already_change_nothing(parquet_folder: Folder) -> None:
    path = parquet_folder(FILES)
    whole, some = fb.scan(path), fb.scan(path, where="id != 3")
    assert fb.scan(path, skip=[]) == whole
    assert fb.scan(path, where="id != 3", skip=[FileRow("day=1/a.parquet", 0, 3)]) == some


@pytest.mark.parametrize(
    ("skip", "text"),
    [
        (["nope"], "'nope', which names no row. Write each as file:row group:row"),
        (["a.parquet:1:-2"], "which names no row"),
        ([""], "'', which names no row"),
        (["day=1/a.parquet:0:7..3"], "'day=1/a.parquet:0:7..3', which names no row"),
        (["day=1/a.parquet:0:1, nope"], "which names no row"),
        (["day=1/a.parquet:0:1 day=1/a.parquet:0:2x"], "which names no row"),
        (["day=1/a.parquet:0:28..30"], r"names 3 rows that .* such as day=1/a\.parquet:0:28\.\.30"),
        ([7], "holds 7, which names no row"),
        ("day=1/a.parquet:0:1", "is one text. Give a list"),
        (None, "skip=None is no list. Give a list of names"),
        (
            ["day=1/a.parquet:0:30", "day=1/a.parquet:0:1"],
            "names 1 row that .* such as day=1/a.parquet:0:30",
        ),
        (["day=1/a.parquet:2:0"], "does not have, such as day=1/a.parquet:2:0"),
        (["other.parquet:0:0"], "does not have, such as other.parquet:0:0"),
    ],
)
def test_names_of_no_row_are_refused(skip: Any, text: str, parquet_folder: Folder) -> None:
    with pytest.raises(InvalidOption, match=text):
        fb.scan(parquet_folder(FILES), skip=skip)


def test_a_list_of_all_rows_is_refused(parquet_folder: Folder) -> None:
    path = parquet_folder({"a.parquet": [2, 1]})
    with pytest.raises(NoFiles, match="skip= names all 3 rows"):
        fb.scan(path, skip=["a.parquet:0:0", "a.parquet:0:1", "a.parquet:1:0"])


def test_the_command_reads_a_file_of_names(
    parquet_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, names = parquet_folder(FILES), tmp_path / "skip.txt"
    names.write_text("day=1/a.parquet:0:4\n\nday=2/b.parquet:1:63\n")
    out = tmp_path / "clicks.manifest.json"
    with pytest.raises(SystemExit) as ended:
        main(["scan", str(path), "--skip", str(names), "--out", str(out), "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert not ended.value.code and (facts["rows"], facts["skipped_rows"]) == (150, 2)
    assert fb.Manifest.load(out).num_rows == 150
    with pytest.raises(SystemExit):
        main(["scan", str(path), "--skip", str(tmp_path / "missing.txt")])
    assert "missing.txt cannot be read" in capsys.readouterr().err
