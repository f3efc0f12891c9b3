"""Row groups as they were scanned, or an error that says why not."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.runtime.memory.counting_pool import CountingPool

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet import fetch as fetch_module
from forebay.data.parquet import reading
from forebay.data.parquet.footer import Footer, FooterCache
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan
from forebay.errors import (
    Cancelled,
    CorruptFile,
    LimitReached,
    MissingColumn,
    ReadFailed,
    SourceChanged,
    UnsupportedColumn,
)
from forebay.runtime.memory import pool as memory_pool
from forebay.runtime.metrics import Counters
from forebay.storage.deadline import Cancellation
from forebay.storage.retry import ReadPolicy

PATIENCE_S = 60.0
Folder = Callable[..., Path]
Write = Callable[..., Path]
Alter = Callable[[Path, dict[int, int]], None]
Opener = Callable[[str], object]


@pytest.fixture
def checked_file(write_table: Write) -> Callable[..., Path]:
    """A file of two row groups of 150 rows: numbers, text and lists."""

    def write(**options: object) -> Path:
        columns = {
            "id": np.arange(300),
            "x": np.random.default_rng(0).random(300, dtype=np.float32),
            "s": [f"é{number % 7}" for number in range(300)],
            "l": [[number] * (number % 4) for number in range(300)],
        }
        return write_table("a.parquet", columns, 150, **options)

    return write


def test_rows_and_columns(parquet_folder: Folder) -> None:
    root = parquet_folder({"a.parquet": [3, 0, 2], "b.parquet": [4]})
    manifest = scan(root)
    tables = [RowGroupReader(manifest).read(index) for index in range(3)]
    assert pa.concat_tables(tables).equals(
        pa.concat_tables([pq.read_table(root / "a.parquet"), pq.read_table(root / "b.parquet")])
    )
    part = RowGroupReader(manifest).read(1, ["tags", "id"])
    assert part.column_names == ["tags", "id"]
    assert part["id"].to_pylist() == [3, 4]


def test_the_selection_of_the_scan_is_the_default(parquet_folder: Folder) -> None:
    reader = RowGroupReader(scan(parquet_folder({"a.parquet": [3]}), columns=["clicked", "id"]))
    assert reader.read(0).column_names == ["clicked", "id"]
    with pytest.raises(MissingColumn, match="no column 'x0' among the 2 columns"):
        reader.read(0, ["x0"])


def test_what_is_counted(parquet_folder: Folder) -> None:
    manifest, counters = scan(parquet_folder({"a.parquet": [30, 20]})), Counters()
    reader = RowGroupReader(manifest, counters=counters)
    reader.read(0)
    reader.read(1)
    counted = counters.as_dict()
    assert counted.pop("remote_read_s") > 0 and counted.pop("decode_s") > 0
    assert counted == {"parquet_opens": 2, "source_bytes": int(manifest.source_bytes.sum())}
    reader.read(0, ["x0"])
    chunk = pq.read_metadata(manifest[0].uri).row_group(0).column(1)
    assert counters["source_bytes"] == manifest.source_bytes.sum() + chunk.total_compressed_size


def test_many_threads_share_a_reader(parquet_folder: Folder) -> None:
    manifest = scan(parquet_folder({f"{name}.parquet": [5, 7, 3] for name in "abcdefgh"}))
    reader, found = RowGroupReader(manifest), {}

    def work(worker: int) -> None:
        for index in range(worker, len(manifest), 4):
            found[index] = reader.read(index, ["id"])["id"].to_pylist()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [number for index in range(len(manifest)) for number in found[index]] == list(range(manifest.num_rows))


@pytest.mark.parametrize("codec", ["snappy", "none"])
def test_any_flipped_bit_in_a_checked_page_is_found(
    checked_file: Callable[..., Path], alter: Alter, codec: str
) -> None:
    path = checked_file(compression=codec, write_page_checksum=True)
    manifest, good = scan(path).for_copies(), path.read_bytes()
    expected = RowGroupReader(manifest).read(0)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    end = chunk.dictionary_page_offset or chunk.data_page_offset
    rng, facts = np.random.default_rng(1), []
    for position, bit in zip(rng.integers(4, end, 200), rng.integers(8, size=200), strict=True):
        alter(path, {int(position): 1 << int(bit)})
        try:
            # A bit of a page header that decoding does not use, such as the page's own minimum, may go unseen.
            assert RowGroupReader(manifest).read(0).equals(expected)
        except CorruptFile as error:
            facts.append(error.facts)
        path.write_bytes(good)
        os.utime(path, ns=(manifest.files[0].mtime_ns,) * 2)
    assert len(facts) > 150
    assert all(fact == {"uri": str(path), "row_group": 0} for fact in facts)


def test_nothing_of_a_row_group_stays_behind(parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = CountingPool()
    monkeypatch.setattr(memory_pool, "array_pool", arrays)
    manifest = scan(parquet_folder({f"{name}.parquet": [20_000] for name in "abcdef"}))
    reader, pool = RowGroupReader(manifest), pa.default_memory_pool()
    before = pool.bytes_allocated()
    for index in range(len(manifest)):
        assert reader.read(index).num_rows == 20_000
    assert arrays.peak_bytes > 20_000 * 4
    # Measured in the pools: objects in a leaked exception's frames are not garbage to Python. The thread of the last
    # read may hold its pages until it has ended.
    deadline = time.monotonic() + PATIENCE_S
    while (left := pool.bytes_allocated() - before + arrays.used_bytes) >= 100_000:
        assert time.monotonic() < deadline, f"{left} bytes are left"
        time.sleep(0.01)


def test_a_corrupt_page_harms_its_row_group_only(checked_file: Callable[..., Path], alter: Alter) -> None:
    path = checked_file(write_page_checksum=True)
    reader = RowGroupReader(scan(path).for_copies())
    alter(path, {pq.read_metadata(path).row_group(1).column(1).data_page_offset + 60: 0x10})
    assert reader.read(0).num_rows == 150
    with pytest.raises(
        CorruptFile, match=r"Row group 1 of .*a\.parquet is corrupt: .*CRC.*Write or copy the file again"
    ):
        reader.read(1)


def test_without_checksums_wrong_text_is_found(write_table: Write, alter: Alter) -> None:
    path = write_table(
        "a.parquet", {"s": ["abcdefgh"]}, compression="none", use_dictionary=False, write_statistics=False
    )
    manifest = scan(path).for_copies()
    alter(path, {path.read_bytes().index(b"abcdefgh") + 3: 0x80})
    with pytest.raises(CorruptFile, match="column 's': .*UTF8"):
        RowGroupReader(manifest).read(0)


def test_without_checksums_broken_encodings_are_found(checked_file: Callable[..., Path], alter: Alter) -> None:
    path = checked_file(compression="zstd")
    manifest = scan(path).for_copies()
    start = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    alter(path, {start + place: 0xFF for place in range(20, 120)})
    with pytest.raises(CorruptFile, match="Row group 0"):
        RowGroupReader(manifest).read(0)


@pytest.mark.soak  # 4 GB of memory, for it takes more than 2 GiB of text
def test_more_nested_text_than_arrow_decodes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    text = pa.array([[("k", "a" * 2**30)]], pa.map_(pa.string(), pa.string()))
    both = pa.chunked_array([text, text])
    pq.write_table(pa.table({"id": [1, 2], "m": both}), path, compression="zstd", use_dictionary=False)
    del text, both
    reader = RowGroupReader(scan(path))
    with pytest.raises(UnsupportedColumn, match=r"Row group 0 of .*a\.parquet.* 2 GiB .*'m'.*row_group_size=") as found:
        reader.read(0)
    assert found.value.facts == {"uri": str(path), "row_group": 0, "columns": ("m",)}
    assert reader.read(0, ["id"]).num_rows == 2


def test_a_rewritten_file(parquet_folder: Folder) -> None:
    manifest = scan(parquet_folder({"a.parquet": [5]}))
    parquet_folder({"a.parquet": [6]})
    with pytest.raises(
        SourceChanged, match=rf"the manifest has {manifest.files[0].size} bytes.*now the file has.*Scan again"
    ) as caught:
        RowGroupReader(manifest).read(0)
    assert caught.value.uri == manifest[0].uri


def test_a_touched_and_a_deleted_file(parquet_folder: Folder) -> None:
    path = parquet_folder({"a.parquet": [5]}) / "a.parquet"
    reader = RowGroupReader(scan(path))
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged, match="modified at 1 ns"):
        reader.read(0)
    path.unlink()
    with pytest.raises(SourceChanged, match="now the file no longer exists"):
        reader.read(0)


def test_a_file_replaced_while_it_is_read(parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sees the old version, and the pages come from the new one."""
    manifest = scan(parquet_folder({"a.parquet": [5]}))
    open_input = reading.open_input

    def replaced(uri: str) -> pa.NativeFile:
        parquet_folder({"a.parquet": [5]}, seed=1)
        return open_input(uri)

    monkeypatch.setattr(reading, "open_input", replaced)
    with pytest.raises(SourceChanged):
        RowGroupReader(manifest).read(0)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_mapped_pages_are_those_that_are_read(checked_file: Callable[..., Path], compression: str) -> None:
    checked_file(compression=compression)
    manifest = scan(checked_file(compression=compression))
    mapping, copying = RowGroupReader(manifest, maps_files=True), RowGroupReader(manifest)
    for index in range(len(manifest)):
        for columns in (None, ["l"], ["s", "id"]):
            assert mapping.read(index, columns).equals(copying.read(index, columns))
        mapping.check_unchanged(index)


def test_a_file_replaced_while_its_mapped_pages_are_decoded(checked_file: Callable[..., Path]) -> None:
    path = checked_file()
    reader = RowGroupReader(scan(path), maps_files=True)
    fetched = reader.fetch(0)
    before = path.read_bytes()
    path.write_bytes(before)  # in place: the mapped pages have the new content
    assert reader.decode(fetched).num_rows == 150
    with pytest.raises(SourceChanged):
        reader.check_unchanged(0)


def test_where_files_cannot_be_mapped_they_are_read(
    checked_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = scan(checked_file())
    expected = RowGroupReader(manifest).read(1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(19, "no such device")

    monkeypatch.setattr(fetch_module.mmap, "mmap", refuse)
    assert RowGroupReader(manifest, maps_files=True).read(1).equals(expected)


def test_a_rewrite_that_storage_does_not_show(parquet_folder: Folder) -> None:
    """Some stores have no modification times. A changed number of row groups or rows is noticed there too."""
    path = parquet_folder({"a.parquet": [5, 7]}) / "a.parquet"
    scanned = scan(path)
    for rows in ([5], [5, 8]):
        now = scan(parquet_folder({"a.parquet": rows}) / "a.parquet")
        forged = Manifest(
            root=now.root, files=now.files, fields=now.fields, columns=now.columns, file_of=[0, 0], group_of=[0, 1],
            rows=[5, 7], bytes=scanned.bytes, source_bytes=scanned.source_bytes,
        )  # fmt: skip
        with pytest.raises(SourceChanged, match="number 1 has (no|8) rows"):
            RowGroupReader(forged).read(1)


@pytest.mark.parametrize(
    ("columns", "found"),
    [({"x": [1.5]}, "has column 'id' as nothing, not int64"), ({"id": [1.5]}, "has column 'id' as double, not int64")],
)
def test_a_rewrite_with_other_columns_that_storage_does_not_show(
    write_table: Write, columns: dict[str, object], found: str
) -> None:
    scanned = scan(write_table("a.parquet", {"id": [1]}))
    now = scan(write_table("a.parquet", columns))
    forged = dataclasses.replace(scanned, files=now.files)
    with pytest.raises(SourceChanged, match=found):
        RowGroupReader(forged).read(0)


class Faulty(io.RawIOBase):
    """A file whose reads fail while `left` is positive."""

    def __init__(self, path: str, left: list[str]) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115
        self._left = left

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()

    def read(self, size: int = -1) -> bytes:
        if self._left:
            raise OSError(self._left.pop())
        return self._file.read(size)


@pytest.mark.parametrize("faults", [1, 2])
def test_storage_that_fails_while_pages_are_read(
    parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch, quick: ReadPolicy, faults: int
) -> None:
    manifest, left, counters = scan(parquet_folder({"a.parquet": [5, 6]})), [], Counters()
    monkeypatch.setattr(reading, "open_input", lambda uri: pa.PythonFile(Faulty(uri, left), mode="r"))
    reader = RowGroupReader(manifest, quick, counters)
    reader.read(0)  # the footer is known from here on, so the next reads are of pages
    left += ["connection reset"] * faults
    assert reader.read(1, ["id"])["id"].to_pylist() == list(range(5, 11))
    assert counters["retries"] >= 1


def test_storage_that_keeps_failing_is_not_called_corrupt(
    parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch, quick: ReadPolicy
) -> None:
    manifest, left = scan(parquet_folder({"a.parquet": [5, 6]})), []
    monkeypatch.setattr(reading, "open_input", lambda uri: pa.PythonFile(Faulty(uri, left), mode="r"))
    reader = RowGroupReader(manifest, quick)
    reader.read(0)
    left += ["connection reset"] * 100
    with pytest.raises(ReadFailed, match=r"row group 1 of .*3 attempts.*connection reset"):
        reader.read(1)


def flaky(*errors: OSError) -> Opener:
    open_input, left = reading.open_input, list(errors)

    def open_later(uri: str) -> object:
        if left:
            raise left.pop(0)
        return open_input(uri)

    return open_later


def test_retries_are_counted(parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch, quick: ReadPolicy) -> None:
    manifest, counters = scan(parquet_folder({"a.parquet": [5]})), Counters()
    monkeypatch.setattr(reading, "open_input", flaky(OSError("reset"), TimeoutError("slow")))
    assert RowGroupReader(manifest, quick, counters).read(0).num_rows == 5
    assert (counters["retries"], counters["parquet_opens"]) == (2, 3)


def test_no_permission(parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch, quick: ReadPolicy) -> None:
    manifest, counters = scan(parquet_folder({"a.parquet": [5]})), Counters()
    monkeypatch.setattr(reading, "open_input", flaky(PermissionError(13, "Permission denied")))
    with pytest.raises(ReadFailed, match=r"a\.parquet may not be read.*read access"):
        RowGroupReader(manifest, quick, counters).read(0)
    assert counters["retries"] == 0


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The first read hangs until the test ends."""
    open_input, release, asked = reading.open_input, threading.Event(), []

    def hang_once(uri: str) -> pa.NativeFile:
        asked.append(uri)
        if len(asked) == 1:
            release.wait(2 * PATIENCE_S)
        return open_input(uri)

    monkeypatch.setattr(reading, "open_input", hang_once)
    yield asked
    release.set()


def test_a_stuck_read_is_replaced(parquet_folder: Folder, stuck: list[str]) -> None:
    policy = ReadPolicy(attempts=100, deadline_s=0.3, first_wait_s=0.0, max_wait_s=0.0)
    reader = RowGroupReader(scan(parquet_folder({"a.parquet": [5]})), policy)
    start = time.monotonic()
    assert reader.read(0).num_rows == 5
    assert time.monotonic() - start < PATIENCE_S, "the stuck one was waited for"
    assert len(stuck) >= 2


def test_a_stuck_read_can_be_cancelled(parquet_folder: Folder, stuck: list[str]) -> None:
    cancelled = Cancellation()
    policy = ReadPolicy(deadline_s=2 * PATIENCE_S)
    reader = RowGroupReader(scan(parquet_folder({"a.parquet": [5]})), policy, cancelled=cancelled)
    timer = threading.Timer(0.1, cancelled.set)
    timer.start()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        reader.read(0)
    assert time.monotonic() - start < PATIENCE_S, "the stuck one was waited for"
    timer.join()


def test_the_footer_cache_keeps_what_was_used_last(write_table: Write) -> None:
    footer = Footer(pq.read_metadata(write_table("a.parquet", {"x": [1]})), None)
    cache = FooterCache(most_bytes=2 * footer.metadata.serialized_size)
    for uri in "ab":
        cache.put(uri, footer)
    assert cache.get("a") is footer
    cache.put("c", footer)
    assert [uri for uri in "abc" if cache.get(uri) is not None] == ["a", "c"]


def test_a_footer_over_the_limit_is_still_kept_alone(write_table: Write) -> None:
    footer = Footer(pq.read_metadata(write_table("a.parquet", {"x": [1]})), None)
    cache = FooterCache(most_bytes=1)
    for uri in "ab":
        cache.put(uri, footer)
    assert [uri for uri in "ab" if cache.get(uri) is not None] == ["b"]


@pytest.mark.parametrize("kind", ["int32", "float64", "bool", "text", "list"])
def test_a_row_group_above_the_limit_is_refused_before_its_pages_are_read(kind: str, tmp_path: Path) -> None:
    rows = 100_000
    array = {
        "int32": pa.array(np.zeros(rows, np.int32)),
        "float64": pa.array(np.zeros(rows)),
        "bool": pa.array(np.zeros(rows, np.bool_)),
        "text": pa.array([""] * rows),
        "list": pa.array([[]] * rows, pa.list_(pa.int8())),
    }[kind]
    least = {"int32": 32, "float64": 64, "bool": 1, "text": 32, "list": 32}[kind] * rows // 8
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": array, "id": np.arange(rows, dtype=np.int8)}), path)
    assert path.stat().st_size < 300_000
    manifest = scan(path)
    assert RowGroupReader(manifest, ReadPolicy(most_row_group_bytes=least + rows)).read(0).num_rows == rows
    reader = RowGroupReader(manifest, ReadPolicy(most_row_group_bytes=least + rows - 1))
    with pytest.raises(LimitReached, match=rf"Row group 0 of {path} has {rows} rows.*most_row_group_bytes") as caught:
        reader.fetch(0)
    assert caught.value.bytes == least + rows
    assert reader.read(0, ["id"]).num_rows == rows, "fewer columns"


_READ_LITTLE = """
import resource, sys
import forebay as fb
manifest = fb.scan(sys.argv[1], footers=False)
transform = fb.Transform(x=fb.Dense(["x"]))
with fb.Loader(fb.build_plan(manifest.take([True, False])), transform, None, global_batch=8, as_numpy=True) as loader:
    next(iter(loader))
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (60 << 20),) * 2)
try:
    with fb.Loader(fb.build_plan(manifest), transform, None, global_batch=8, as_numpy=True) as loader:
        for _ in loader:
            pass
except fb.ForebayError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.variation
def test_a_row_group_that_memory_does_not_hold_is_named(tmp_path: Path) -> None:
    """57 kB of a file that take 160 MB."""
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema([("x", pa.int64())])) as writer:
        for rows in (10, 20_000_000):
            writer.write_table(pa.table({"x": np.zeros(rows, np.int64)}), row_group_size=rows)
    done = subprocess.run([sys.executable, "-c", _READ_LITTLE, path], capture_output=True, text=True, check=False)
    assert f"LimitReached Row group 1 of {path} with 20000000 rows" in done.stdout, done.stdout + done.stderr
