"""Arranged data: equal to a stable sort of pandas, each row group read once, nothing half done is used."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.windows.conftest import random_series, write_series

import forebay as fb
from forebay.data.manifest.prepared import list_prepared
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation import external_sort, parts
from forebay.data.windows.arrangement import arranged_manifest
from forebay.data.windows.steps import StepColumns
from forebay.errors import BadSeries, InvalidOption, WriteFailed

PAST = fb.History(["load"], steps=6)


def columns_of(**options: Any) -> StepColumns:
    return StepColumns(**({"entity": "meter", "time": "ts", "values": {"float32": ("load",)}} | options))


def rows_of(manifest: fb.Manifest) -> pd.DataFrame:
    reader = RowGroupReader(manifest)
    return pa.concat_tables(reader.read(index) for index in range(len(manifest))).to_pandas()


def windows_of(series: fb.Sequences) -> list[tuple[Any, ...]]:
    """Entity, start and bits of each window, sorted."""
    found = []
    with fb.Loader(fb.build_plan(series), series.transform, global_batch=16, as_numpy=True) as loader:
        for batch in loader:
            names = series.entity_names(batch.windows[:, 0])
            starts = batch.windows[:, 1].tolist()
            found += [(*key, row.tobytes()) for *key, row in zip(names, starts, batch["past"], strict=True)]
    return sorted(found)


def interleaved(folder: Path, *, repeats: int = 1, is_shuffled: bool = True) -> fb.Manifest:
    """40 steps of nine entities, in row groups of seven rows, shuffled by file. Times occur `repeats` times."""
    steps, entities = 40, 9
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"ts": np.repeat(np.arange(steps), entities), "meter": np.tile(np.arange(entities), steps)})
    frame["ts"] //= repeats
    frame["row"] = rng.permutation(len(frame))
    frame["load"] = frame.row.astype(np.float32)
    for number, start in enumerate(range(0, len(frame), 100)):
        part = frame.iloc[start : start + 100]
        part = part.sample(frac=1, random_state=number) if is_shuffled else part
        table = pa.Table.from_pandas(part, preserve_index=False)
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=7)
    return fb.scan(str(folder))


@pytest.mark.parametrize("run_bytes", [external_sort.RUN_BYTES, 2000])
@pytest.mark.parametrize("by", [("meter", "ts"), ("meter", None), (None, "ts")])
def test_rows_equal_a_stable_sort_of_pandas(
    by: tuple[str | None, str | None], run_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sort, "RUN_BYTES", run_bytes)
    manifest = interleaved(tmp_path / "data", repeats=3)
    entity, time = by
    found = arranged_manifest(manifest, columns_of(entity=entity, time=time), into=str(tmp_path), row_group_rows=50)
    expected = rows_of(manifest).sort_values([name for name in by if name], kind="stable", ignore_index=True)
    pd.testing.assert_frame_equal(rows_of(found), expected)
    assert found.rows.tolist() == [50] * 7 + [10]


@pytest.mark.parametrize("layout", ["entity", "day", "interleaved", "lists"])
def test_windows_are_those_of_the_data(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    manifest = write_series(tmp_path / "data", random_series(rng), layout, rng)
    options: dict[str, Any] = {"entity": "meter", "time": "ts", "past": PAST, "max_gap": "3h"}
    series = fb.Sequences(manifest, **options)
    arranged = series.arrange(str(tmp_path / "prepared"), row_group_rows=None if layout == "lists" else 32)
    assert windows_of(arranged) == windows_of(series) != []
    assert arranged.manifest.columns == manifest.columns
    if layout != "lists":
        assert len(arranged.series.times) <= len(series.series.entities) + len(arranged.manifest)


def test_lists_of_a_day_come_in_order_of_time(tmp_path: Path) -> None:
    rows = [(meter, list(range(day * 24, day * 24 + 24))) for day in (2, 0, 3, 1) for meter in ("a", "b")]
    table = {"meter": [meter for meter, _ in rows], "ts": [ts for _, ts in rows]}
    pq.write_table(pa.table(table | {"load": [[float(t) for t in ts] for _, ts in rows]}), tmp_path / "a.parquet")
    series = fb.Sequences(fb.scan(str(tmp_path / "a.parquet")), entity="meter", time="ts", past=PAST)
    arranged = series.arrange(str(tmp_path / "prepared"), row_group_rows=3)
    assert [ts[0] for ts in rows_of(arranged.manifest).ts] == [0, 24, 48, 72] * 2
    assert windows_of(arranged) == windows_of(series)


def test_runs_that_overlap_can_be_arranged(tmp_path: Path) -> None:
    for number, times in enumerate(([1, 5, 9], [6, 7])):
        table = pa.table({"meter": ["a"] * len(times), "ts": times, "load": [float(t) for t in times]})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    series = fb.Sequences(fb.scan(str(tmp_path)), entity="meter", time="ts", past=fb.History(["load"], steps=5))
    with pytest.raises(BadSeries, match=r"which overlap.*arrange\(into="):
        _ = series.windows
    assert series.arrange(str(tmp_path / "prepared")).windows.num_windows == 1


def test_lists_that_overlap_are_not_sent_to_arrange(tmp_path: Path) -> None:
    for number, times in enumerate(([1, 5, 9], [6, 7])):
        table = pa.table({"meter": ["a"], "ts": [times], "load": [[float(t) for t in times]]})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    series = fb.Sequences(fb.scan(str(tmp_path)), entity="meter", time="ts", past=fb.History(["load"], steps=5))
    with pytest.raises(BadSeries, match=r"which overlap.*arrange\(\) cannot help: write lists that do not overlap"):
        _ = series.windows


def test_each_row_group_is_read_once_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = interleaved(tmp_path / "data")
    series = fb.Sequences(manifest, entity="meter", time="ts", past=PAST)
    decoded: list[str] = []
    decode = RowGroupReader.decode

    def counted(self: RowGroupReader, fetched: Any) -> pa.Table:
        decoded.append(self.manifest[fetched.index].uri + str(fetched.index))
        return decode(self, fetched)

    monkeypatch.setattr(RowGroupReader, "decode", counted)
    first = series.arrange(str(tmp_path / "prepared"))
    assert sorted(decoded) == sorted({*decoded}) and len(decoded) == len(manifest)
    other = fb.Sequences(manifest, entity="meter", time="ts", past=fb.History(["row"], steps=3), stride=2)
    assert other.arrange(str(tmp_path / "prepared")).manifest.id == first.manifest.id
    assert len(decoded) == len(manifest), "other windows reuse it"


def test_short_runs_are_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = interleaved(tmp_path / "data", is_shuffled=False)
    series = fb.Sequences(manifest, entity="meter", time="ts", past=fb.History(["load"], steps=30))
    with caplog.at_level(logging.WARNING):
        assert series.split(entities=0.4) and series.windows.num_windows
        assert series.needs_arranging
    (said,) = caplog.messages
    assert "hold 1.0 steps on average, and a window has 30" in said and "arrange(into=" in said
    caplog.clear()
    assert not series.arrange(str(tmp_path / "prepared")).needs_arranging
    assert not fb.Sequences(manifest, entity="meter", time="ts", past=PAST).needs_arranging, "6 / 8 < 1 step"
    assert caplog.messages == []


def test_series_that_are_short_by_themselves_gain_nothing(tmp_path: Path) -> None:
    table = pa.table({"meter": np.repeat(np.arange(50), 2), "ts": np.tile([0, 1], 50), "load": np.zeros(100)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    past = fb.History(["load"], steps=60)
    series = fb.Sequences(fb.scan(str(tmp_path)), entity="meter", time="ts", past=past, min_steps=1)
    assert not series.needs_arranging


def test_what_cannot_be_arranged(tmp_path: Path) -> None:
    table = pa.table({"meter": ["a", None], "ts": [1, 2], "load": [1.0, 2.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    manifest = fb.scan(str(tmp_path))
    with pytest.raises(InvalidOption, match="Sequences has neither"):
        fb.Sequences(manifest, past=PAST).arrange(str(tmp_path / "prepared"))
    with pytest.raises(BadSeries, match=r"row group 0 of .*a.parquet: Row 1 has a null in the entity column"):
        fb.Sequences(manifest, entity="meter", time="ts", past=PAST).arrange(str(tmp_path / "prepared"))
    assert [found for _, found in list_prepared(str(tmp_path / "prepared"))] == [None]


@pytest.mark.parametrize("is_spilled", [False, True])
def test_a_full_disk_says_so(is_spilled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(external_sort, "RUN_BYTES", 2000)
    with monkeypatch.context() as patch:
        patch.setattr(*((pa, "OSFile") if is_spilled else (parts, "write_atomically")), full)
        series = fb.Sequences(interleaved(tmp_path / "data"), entity="meter", time="ts", past=PAST)
        with pytest.raises(WriteFailed, match="No space left on device"):
            series.arrange(str(tmp_path / "prepared"))
    ((_, found),) = list_prepared(str(tmp_path / "prepared"))
    assert found is None
    assert series.arrange(str(tmp_path / "prepared")).windows.num_windows == 9 * 35


SLOW = """
import sys, time
import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation import external_sort

external_sort.RUN_BYTES = 2000
# A profiler, since a function in place of another one would give the arrangement another fingerprint.
def slow(frame, event, _):
    if event == "call" and frame.f_code is RowGroupReader.read.__code__ and frame.f_locals["index"] == 20:
        print("in the middle", flush=True)
        time.sleep(float(sys.argv[3]))
sys.setprofile(slow)
series = fb.Sequences(fb.scan(sys.argv[1]), entity="meter", time="ts", past=fb.History(["load"], steps=6))
print(series.arrange(sys.argv[2]).manifest.id, flush=True)
"""


def test_a_killed_arrangement_is_never_taken_for_finished(
    python: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sort, "RUN_BYTES", 2000)  # counts in the fingerprint
    manifest = interleaved(tmp_path / "data")
    series = fb.Sequences(manifest, entity="meter", time="ts", past=PAST)
    killed = python(SLOW, tmp_path / "data", tmp_path / "prepared", 60)
    assert killed.stdout is not None and killed.stdout.readline() == "in the middle\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    ((folder, found),) = list_prepared(str(tmp_path / "prepared"))
    assert found is None and list(Path(folder).glob("_sort-*/run-*")), "sorted runs are left"
    undisturbed = series.arrange(str(tmp_path / "other"))
    assert series.arrange(str(tmp_path / "prepared")).manifest.id == undisturbed.manifest.id
    assert not list(Path(folder).glob("_sort-*"))


MEASURED = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import forebay as fb
from forebay.data.preparation import external_sort

external_sort.RUN_BYTES = 4 << 20
folder, days = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir()
entities = np.arange(20_000)
for day in range(days):
    order = np.random.default_rng(day).permutation(len(entities))
    table = pa.table({"meter": entities[order], "ts": np.full(len(order), day), "load": order.astype(np.float32)})
    pq.write_table(table, folder / f"{day:05}.parquet")
series = fb.Sequences(fb.scan(str(folder)), entity="meter", time="ts", past=fb.History(["load"], steps=6))
series.arrange(str(folder) + "-prepared")
status = Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.variation  # a minute
def test_memory_does_not_grow_with_the_data(python: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    """1 and 10 million rows of 20,000 entities, one step a day, in runs of 4 MiB: 216 MiB more of data.

    Small runs make it quick. Of the peak, most is imports, and a part grows with the number of files and runs.
    """
    peaks = [int(python(MEASURED, tmp_path / str(days), days).communicate(timeout=280)[0]) for days in (50, 500)]
    assert peaks[1] - peaks[0] < 64 << 10, f"{peaks} KiB"
