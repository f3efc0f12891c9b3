"""`batch.rows()` of windows names the rows of the files whose values are in the batch, for every layout of series."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.windows.conftest import random_series, write_series

import forebay as fb
from forebay.data.manifest.file_windows import FileWindow, RowSpan
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import SourceChanged

LAYOUTS = ("entity", "day", "interleaved", "lists")
OPTIONS: list[dict[str, Any]] = [
    {"future": fb.Horizon(["load"], steps=(1, 3), gap=2), "min_steps": 4, "max_gap": "3h"},
    {"future": None, "stride": 5, "shift": True},
]


def windows_over(manifest: fb.Manifest, **options: Any) -> Any:
    past = fb.History(["load", "temp"], steps=6)
    return fb.Sequences(manifest, past=past, entity="meter", time="ts", fill=None, **options).whole


@cache
def row_group(path: Path, number: int) -> pa.Table:
    return pq.ParquetFile(path).read_row_group(number)


def table_of(manifest: fb.Manifest, window: FileWindow) -> pa.Table:
    """Rows of a window, read by pyarrow by the text of its name alone."""
    parts = []
    for text in str(window).split(", "):
        found = re.fullmatch(r"(.+):(\d+):(\d+)(?:\.\.(\d+))?", text)
        assert found is not None, text
        group = row_group(Path(manifest.root) / found[1], int(found[2]))
        first, last = int(found[3]), int(found[4] or found[3])
        assert last < group.num_rows
        parts.append(group.slice(first, last - first + 1))
    return pa.concat_tables(parts)


def assert_named(batch: fb.Batch, manifests: dict[str, fb.Manifest], shape: Any) -> None:
    """Compare all values of the batch with the rows of the files that it names."""
    rows = batch.rows()
    assert len(rows) == len(batch["past"])
    for number, window in enumerate(rows):
        assert isinstance(window, FileWindow)
        table = table_of(manifests[window.source], window)
        columns = [table[name] for name in ("load", "temp")]
        start = int(batch.windows[number, 1])
        real = int(batch["past_lengths"][number]) if "past_lengths" in batch else shape.past
        if pa.types.is_list(table["load"].type):
            # One row holds the whole series.
            assert table.num_rows == 1
            columns = [pa.array(each[0].as_py(), pa.float32())[start + shape.past - real :] for each in columns]
        values = np.stack([each.to_numpy(zero_copy_only=False).astype(np.float32) for each in columns], axis=1)
        np.testing.assert_array_equal(values[:real], batch["past"][number][shape.past - real :])
        if not pa.types.is_list(table["load"].type):
            assert len(values) == shape.length - shape.past + real
        if "future" in batch:
            targets = [real + shape.gap + ahead - 1 for ahead in shape.ahead]
            np.testing.assert_array_equal(values[targets, :1], batch["future"][number])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_have_the_rows_that_are_named_at_any_world_and_after_a_resume(
    layout: str, options: dict[str, Any], tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    manifest = write_series(tmp_path / "data", random_series(rng, nulls=0.0), layout, rng)
    part = windows_over(manifest, **options)
    plan = fb.build_plan(part, seed=2, lanes=4, shuffle_rows=8)
    names: dict[int, list[list[str]]] = {}
    for size in (1, 2, 3):
        named: dict[int, list[str]] = {}
        for rank in range(size):
            world = fb.World(rank=rank, size=size)
            with fb.Loader(plan, part.transform, world=world, global_batch=16, as_numpy=True, epoch=1) as loader:
                for number, batch in enumerate(loader):
                    assert_named(batch, {"": manifest}, part.shape)
                    named.setdefault(number, []).extend(map(str, list(batch.rows())[: batch.num_rows]))
                    if number == 1:
                        cursor = loader.cursor()
            with fb.Loader(plan, part.transform, world=world, global_batch=16, as_numpy=True) as resumed:
                resumed.seek(cursor)
                again = next(iter(resumed))
                assert_named(again, {"": manifest}, part.shape)
        names[size] = [sorted(each) for _, each in sorted(named.items())]
    assert names[1] == names[2] == names[3]
    if layout == "entity":
        groups = [{span.row_group for span in each.spans} for each in batch.rows()]
        assert max(map(len, groups)) > 1, "no window crosses the end of a row group"
    if layout in ("interleaved", "day"):
        assert max(len(each.spans) for each in batch.rows()) > 2


def test_steps_in_the_order_of_the_files_are_named_without_reading(tmp_path: Path) -> None:
    for number, file in enumerate("ab"):
        table = pa.table({"token": pa.array(np.arange(100) + 100 * number, pa.uint16())})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=30)
    text = fb.Sequences(fb.scan(tmp_path), past=fb.History(["token"], steps=65, dtype="uint16"), stride=32, shift=True)
    with fb.Loader(fb.build_plan(text), text.transform, global_batch=3, epoch=1) as loader:
        batches = list(loader)
    for file in "ab":
        (tmp_path / f"{file}.parquet").unlink()
    for batch in batches:
        for window, tokens in zip(batch.rows(), batch["past"][:, :, 0].tolist(), strict=True):
            ids = [100 * "ab".index(s.file[0]) + 30 * s.row_group + row for s in window.spans for row in span_rows(s)]
            assert ids == tokens and len(window.spans) >= 3


def span_rows(span: RowSpan) -> range:
    return range(span.first, span.last + 1)


def test_a_mixture_names_the_data_set_of_each_window(tmp_path: Path) -> None:
    manifests, parts = {}, {}
    for number, layout in enumerate(LAYOUTS):
        rng = np.random.default_rng(number)
        manifests[layout] = write_series(tmp_path / layout, random_series(rng, nulls=0.0), layout, rng)
        parts[layout] = windows_over(manifests[layout], **OPTIONS[1])
    plans = {name: fb.build_plan(part, lanes=4, seed=number) for number, (name, part) in enumerate(parts.items())}
    mix = fb.Mixture(plans, dict.fromkeys(LAYOUTS, 0.25), rows=120)
    transforms = {name: part.transform for name, part in parts.items()}
    with fb.Loader(mix, transforms, global_batch=24, as_numpy=True, epochs=3) as loader:
        for batch in [*loader, *loader, *loader]:
            assert [each.source for each in batch.rows()] == [mix.names[source] for source in batch.source.tolist()]
            assert_named(batch, manifests, parts["day"].shape)


def three_series(steps: int) -> Iterator[pa.Table]:
    for start in range(0, steps, 50):
        ids = np.arange(start, start + 50)
        yield pa.table({"meter": ids % 3, "ts": ids, "load": ids.astype(np.float32)})


def test_windows_over_prepared_data_name_its_rows(tmp_path: Path) -> None:
    prepared = fb.prepare(three_series, steps=200, into=str(tmp_path), row_group_rows=16, inputs=[])
    past = fb.History(["load"], steps=6)
    part = fb.Sequences(prepared.manifest, past=past, entity="meter", time="ts").whole
    with fb.Loader(fb.build_plan(part), part.transform, global_batch=16) as loader:
        batch = next(iter(loader))
    for window, ids in zip(batch.rows()[:3], batch["past"][:3, :, 0].tolist(), strict=True):
        kept = RowGroupReader(fb.scan(prepared.folder, skip=[window]))
        found = [value for index in range(len(kept.manifest)) for value in kept.read(index)["load"].to_pylist()]
        assert sorted(set(range(200)) - set(found)) == ids and len(found) == 200 - len(ids)


@pytest.fixture
def batch(tmp_path: Path) -> fb.Batch:
    rng = np.random.default_rng(1)
    part = windows_over(write_series(tmp_path / "data", random_series(rng, nulls=0.0), "day", rng))
    with fb.Loader(fb.build_plan(part), part.transform, global_batch=16) as loader:
        return next(iter(loader))


def test_copies_and_parts_have_their_windows(batch: fb.Batch) -> None:
    part = batch.take(np.array([5, 0, 11]), weight=1.0).take(np.array([2, 1]), weight=1.0)
    unread = pickle.loads(pickle.dumps(batch))
    assert list(part.rows()) == [batch.rows()[11], batch.rows()[0]]
    assert list(batch.rows()[2:4]) == [batch.rows()[2], batch.rows()[3]] and batch.rows()[-1] == batch.rows()[15]
    for copy in (batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        assert list(copy.rows()) == list(batch.rows())
    # A pickle reads no file.
    with pytest.raises(fb.errors.InvalidOption, match="this batch knows none"):
        unread.rows()


def test_files_that_changed_are_refused(batch: fb.Batch, tmp_path: Path) -> None:
    for file in (tmp_path / "data").iterdir():
        file.write_bytes(file.read_bytes())
    with pytest.raises(SourceChanged, match="changed since the scan"):
        batch.rows()


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([RowSpan("a", 0, 3, 9)], "a:0:3..9"),
        ([RowSpan("a", 0, 9, 9, "web"), RowSpan("day=1/b", 1, 0, 1, "web")], "a:0:9, day=1/b:1:0..1"),
    ],
)
def test_text_of_a_window(spans: list[RowSpan], text: str) -> None:
    window = FileWindow(tuple(spans))
    assert str(window) == text and window.source == spans[0].source
