"""Streams: trained on while they are prepared, each row once, and resumable at any point in any world."""

from __future__ import annotations

import gc
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.manifest.prepared import find_prepared, list_prepared
from forebay.data.manifest.stream_files import RECORDS
from forebay.data.preparation.stream import PreparedStream, wait_for_streams
from forebay.errors import InvalidOption, PreparationFailed
from forebay.world import World

Start = Callable[..., PreparedStream]
ROWS = 1000
FILE_ROWS = 128
TRANSFORM = fb.Transform(number=fb.Dense(["number"], dtype="int64"))


class RowGate:
    """Lets the function of a stream yield the rows below a number, and counts its calls."""

    def __init__(self) -> None:
        self.calls = self.add = 0
        self.failing_call = 0
        self._rows = 0
        self._changed = threading.Condition()

    def open_to(self, rows: int = 10 * ROWS) -> None:
        with self._changed:
            self._rows = rows
            self._changed.notify_all()

    def wait_for(self, row: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: row < self._rows, 240)


@pytest.fixture
def gate() -> Iterator[RowGate]:
    made = RowGate()
    yield made
    made.open_to()


@pytest.fixture
def streamed(gate: RowGate, tmp_path: Path) -> Iterator[Start]:
    """`start(count=1000, rows=1000, add=0) -> PreparedStream` of rows `add` to `count + add`, 50 at a time."""
    started: list[PreparedStream] = []

    def numbered(count: int) -> Iterator[pa.Table]:
        gate.calls += 1
        call = gate.calls
        for start in range(0, count, 50):
            gate.wait_for(start)
            if call == gate.failing_call and start > 4 * FILE_ROWS:
                raise ValueError("the source is gone")
            yield pa.table({"number": [row + gate.add for row in range(start, min(start + 50, count))]})

    def start(count: int = ROWS, rows: int | None = ROWS, add: int = 0) -> PreparedStream:
        gate.add = add
        started.append(
            fb.prepare_stream(
                numbered,
                count=count,
                rows=rows,
                into=str(tmp_path / "into"),
                row_group_rows=FILE_ROWS // 4,
                inputs=[],
                version="1",
                fit=fb.preparation.Moments("number"),
            )
        )
        return started[-1]

    yield start
    gate.open_to()
    for stream in started:
        stream.close(timeout_s=60)


def loader(stream: PreparedStream, rank: int = 0, size: int = 1) -> fb.Loader:
    plan = fb.build_plan(stream.manifest, seed=3, lanes=4)
    world = World(rank=rank, size=size)
    return fb.Loader(plan, TRANSFORM, world=world, global_batch=90, epochs=2, as_numpy=True)


def numbers(batch: Any) -> list[int]:
    return list(batch["number"][:, 0].tolist())


def test_rows_of_a_stream_are_in_files_whose_names_begin_so(streamed: Start, gate: RowGate) -> None:
    gate.open_to()
    stream = streamed()
    with loader(stream) as batches:
        found = [
            (str(row), number) for batch in batches for row, number in zip(batch.rows(), numbers(batch), strict=True)
        ]
    folder = Path(stream.wait().folder)
    tables = {file.name: pq.ParquetFile(file) for file in folder.glob("*.parquet")}
    assert len(found) == ROWS
    for text, number in found[::37]:
        begin, group, row = text.rsplit(":", 2)
        table = next(tables[name] for name in tables if name.startswith(begin)).read_row_group(int(group))
        assert table["number"][int(row)].as_py() == number


def test_training_begins_before_preparation_is_half_done(streamed: Start, gate: RowGate) -> None:
    gate.open_to(3 * FILE_ROWS)
    stream = streamed()
    assert (stream.rows, len(stream.manifest)) == (ROWS, 32)
    with loader(stream) as batches:
        epoch = iter(batches)
        first = [numbers(next(epoch)) for _ in range(3)]
        assert find_prepared(stream.folder) is None and max(map(max, first)) < 3 * FILE_ROWS
        gate.open_to()
        rest = [numbers(batch) for batch in epoch]
        assert sorted(sum(first + rest, [])) == list(range(ROWS))
        later = sum((numbers(batch) for batch in batches), [])
    assert sorted(later) == list(range(ROWS)) and later != sum(first + rest, [])
    assert stream.wait().statistics["number"].mean == (ROWS - 1) / 2
    assert gate.calls == 1


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.variation)])
def test_batches_are_the_same_after_a_stop_in_mid_preparation(
    streamed: Start, gate: RowGate, tmp_path: Path, is_restarted: bool, size: int
) -> None:
    gate.open_to(4 * FILE_ROWS)
    stream = streamed()
    with loader(stream) as stopped:
        found = [sorted(numbers(batch)) for batch in itertools.islice(stopped, 4)]
        cursor = stopped.cursor()
    if is_restarted:
        stream.close(0.0)
        gate.open_to()
        stream._thread.join()
        assert find_prepared(stream.folder) is None
        gate.open_to(2 * FILE_ROWS)  # behind the reader: it goes on from the files of before
        stream = streamed()
    ranks = [loader(stream, rank, size) for rank in range(size)]
    for each in ranks:
        each.seek(cursor)
    epochs = [iter(each) for each in ranks]
    found.append(sorted(sum((numbers(next(epoch)) for epoch in epochs), [])))
    gate.open_to()
    found += [sorted(sum(map(numbers, parts), [])) for parts in zip(*epochs, strict=True)]
    for each in ranks:
        each.close()
    stream.wait()
    with loader(stream) as whole:
        assert found == [sorted(numbers(batch)) for batch in whole]
    assert gate.calls == 1 + is_restarted


def test_a_sealed_stream_has_the_same_plan_and_calls_nothing(streamed: Start, gate: RowGate) -> None:
    gate.open_to()
    first = streamed()
    before = fb.build_plan(first.manifest, seed=3).id
    first.wait()
    again = streamed()
    assert again.wait().sealed_at == first.wait().sealed_at
    assert fb.build_plan(again.manifest, seed=3).id == before
    assert gate.calls == 1


def test_rows_that_were_not_announced_end_the_run(streamed: Start, gate: RowGate) -> None:
    gate.open_to(3 * FILE_ROWS)
    stream = streamed(count=700)
    gate.open_to()
    with (
        loader(stream) as batches,
        pytest.raises(PreparationFailed, match="file 5 is missing.*gave only 700 rows, and rows=1000"),
    ):
        list(batches)
    with pytest.raises(InvalidOption, match="gave only 700 rows"):
        stream.wait()
    with pytest.raises(InvalidOption, match="gave more than 100 rows, and rows=100 were announced"):
        streamed(count=110, rows=100)
    with pytest.raises(InvalidOption, match="needs rows="):
        streamed(rows=None)


def test_other_rows_after_a_stop_are_refused(streamed: Start, gate: RowGate, tmp_path: Path) -> None:
    gate.open_to(4 * FILE_ROWS)
    stream = streamed()
    stream.close(0.0)
    gate.open_to()
    stream._thread.join()
    changed = streamed(add=1)
    with pytest.raises(InvalidOption, match="File 0 of .* has other rows than when it was prepared before"):
        changed.wait()
    with loader(changed) as batches, pytest.raises(PreparationFailed, match="other rows"):
        list(batches)
    assert [found for _, found in list_prepared(str(tmp_path / "into"))] == [None]


def test_a_run_ends_when_its_stream_is_closed(streamed: Start, gate: RowGate) -> None:
    gate.open_to(3 * FILE_ROWS)
    stream = streamed()
    with loader(stream) as batches:
        epoch = iter(batches)
        next(epoch)
        stream.close(0.0)
        gate.open_to()
        with pytest.raises(PreparationFailed, match="file . is missing: Cancelled: .* was closed"):
            list(epoch)


def test_a_run_goes_on_when_its_own_process_takes_over_from_one_that_failed(streamed: Start, gate: RowGate) -> None:
    gate.failing_call = 1
    gate.open_to(3 * FILE_ROWS)
    first, second = streamed(), streamed()
    with loader(second) as batches:
        epoch = iter(batches)
        found = numbers(next(epoch))
        gate.open_to()
        with pytest.raises(ValueError, match="the source is gone"):
            first.wait()
        found += sum(map(numbers, epoch), [])
    assert sorted(found) == list(range(ROWS))
    assert second.wait().rows == ROWS and gate.calls == 2


def test_a_sealed_stream_needs_no_records(streamed: Start, gate: RowGate) -> None:
    gate.open_to()
    first = streamed()
    first.wait()
    shutil.rmtree(Path(first.folder) / RECORDS)
    again = streamed()
    assert again.manifest == first.manifest
    assert fb.build_plan(again.manifest).id == fb.build_plan(first.manifest).id
    with loader(again) as batches:
        assert sorted(sum(map(numbers, batches), [])) == list(range(ROWS))


def test_the_failure_of_a_stream_that_nobody_holds_is_raised_once(gate: RowGate, tmp_path: Path) -> None:
    def short() -> Iterator[pa.Table]:
        yield pa.table({"number": list(range(FILE_ROWS))})
        gate.wait_for(FILE_ROWS)

    options: dict[str, Any] = {"row_group_rows": FILE_ROWS // 4, "inputs": [], "version": "1"}
    plan = fb.build_plan(fb.prepare_stream(short, rows=ROWS, into=str(tmp_path), **options).manifest)
    gate.open_to()
    for thread in threading.enumerate():
        if thread.name == "forebay-prepare-stream":
            thread.join()
    gc.collect()
    assert plan.num_rows == ROWS
    with pytest.raises(InvalidOption, match=f"gave only {FILE_ROWS} rows"):
        wait_for_streams()
    wait_for_streams()


def test_what_reads_files_itself_refuses_a_stream(streamed: Start, gate: RowGate, tmp_path: Path) -> None:
    gate.open_to()
    stream = streamed()
    plan = fb.build_plan(stream.manifest)
    series = fb.Sequences(stream.manifest, time="number", past=fb.History(["number"], steps=3))
    reads: list[Callable[[], object]] = [
        lambda: fb.fit_vocabulary(stream.manifest, ["number"]),
        lambda: fb.Sampled(plan, balance="number"),
        lambda: series.arrange(str(tmp_path / "arranged")),
    ]
    for read in reads:
        with pytest.raises(InvalidOption, match=r"its files have no names yet.*stream\.wait\(\)\.manifest"):
            read()
    assert fb.fit_vocabulary(stream.wait().manifest, ["number"])


def test_a_record_without_content_is_not_there_yet(streamed: Start, gate: RowGate) -> None:
    gate.open_to()
    stream = streamed()
    stream.wait()
    for name in ("prepared.json", f"{RECORDS}/000000.json", f"{RECORDS}/layout.json"):
        (Path(stream.folder) / name).write_bytes(b"")
    again = streamed()
    assert again.wait().rows == ROWS and again.manifest == stream.manifest
    assert gate.calls == 2
