"""Scans that keep footers: the second one reads none, a changed file is read again, and both give one manifest."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet import footer_store, reading
from forebay.data.parquet.footer import FooterCache, fetch_footer
from forebay.data.parquet.footer_store import FooterStore
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources import file_scan
from forebay.data.sources.scan import scan
from forebay.errors import CorruptFile, SourceChanged

Folder = Callable[..., Path]
OLD_NS = 1_700_000_000_123_456_789


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """Folder of a node's cache."""
    yield tmp_path / "cache"
    footer_store._open.cache_clear()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URIs of the footers that are read from their files."""
    found: list[str] = []

    def counted(uri: str, file: pa.NativeFile, *sizes: Any) -> pa.Buffer:
        found.append(Path(uri).name)
        return fetch_footer(uri, file, *sizes)

    monkeypatch.setattr(file_scan, "fetch_footer", counted)
    monkeypatch.setattr(reading, "fetch_footer", counted)
    return found


def settle() -> None:
    """Wait until no later change can have the times of the files that were just written."""
    time.sleep(0.25)


def same(one: Manifest, other: Manifest) -> bool:
    return one == other and (one.bytes == other.bytes).all() and (one.source_bytes == other.source_bytes).all()


def test_the_second_scan_reads_no_footer_and_gives_the_same_manifest(
    parquet_folder: Folder, cache: Path, fetched: list[str]
) -> None:
    root = parquet_folder({"day=0/a.parquet": [3, 0, 2], "day=1/b.parquet": [4], "day=2/c.parquet": [0]})
    settle()
    selections: list[dict[str, object]] = [
        {},
        {"columns": ["x1", "day"]},
        {"columns": ["tags"]},
        {"where": "id >= 2 and x0 < 100"},
        {"columns": ["id"], "where": "day == 1"},
        {"skip": ["day=0/a.parquet:0:1"]},
    ]
    plain = [scan(root, footers=False, partitions=True, **each) for each in selections]  # type: ignore[arg-type]
    fetched.clear()
    assert same(scan(root, footers=cache), plain[0])
    assert sorted(fetched) == ["a.parquet", "b.parquet", "c.parquet"]
    fetched.clear()
    for each, expected in zip(selections, plain, strict=True):
        calls: list[tuple[int, int]] = []
        found = scan(root, footers=str(cache), progress=lambda *done: calls.append(done), **each)  # noqa: B023
        assert same(found, expected)
        assert calls[:3] == [(1, 3), (2, 3), (3, 3)]
    assert fetched == []


def test_a_reader_uses_the_footers_of_the_scan_and_keeps_its_own(
    parquet_folder: Folder, cache: Path, fetched: list[str]
) -> None:
    root = parquet_folder({"a.parquet": [3, 2], "b.parquet": [4]})
    settle()
    manifest = scan(root / "a.parquet", footers=cache)
    fetched.clear()
    reader = RowGroupReader(scan(root, footers=False), footers=FooterCache(FooterStore(cache)))
    fetched.clear()
    tables = [reader.read(index) for index in range(3)]
    assert fetched == ["b.parquet"]
    assert tables[0].equals(RowGroupReader(manifest).read(0))
    fetched.clear()
    assert RowGroupReader(reader.manifest, footers=FooterCache(FooterStore(cache))).read(2).equals(tables[2])
    assert fetched == []


def test_blocks_of_local_files_are_built_with_the_footers_of_the_files(
    parquet_folder: Folder, cache: Path, fetched: list[str]
) -> None:
    """To open the store for one local footer takes longer than to read it: 7 % of the CPU time of a cold epoch."""
    root = parquet_folder({"a.parquet": [8, 8]})
    settle()
    manifest = scan(root, footers=cache)
    fetched.clear()
    disk = fb.DiskCache(cache, quota_bytes=1 << 26, min_free_bytes=0)
    plan = fb.build_plan(manifest, seed=0, lanes=1)
    with fb.Loader(plan, fb.Transform(x=fb.Dense("x0")), disk, global_batch=4) as loader:
        assert len(next(iter(loader))["x"]) == 4
    assert set(fetched) == {"a.parquet"}


def rewrite(path: Path, values: list[int], **options: object) -> None:
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), path, **options)


def test_a_changed_file_is_read_again(tmp_path: Path, cache: Path, fetched: list[str]) -> None:
    path = tmp_path / "a.parquet"
    rewrite(path, [1, 2, 3])
    settle()
    scan(path, footers=cache)
    rewrite(path, [1, 2, 3, 4])
    assert scan(path, footers=cache).num_rows == 4
    assert fetched == ["a.parquet"] * 2


@pytest.mark.parametrize("in_place", [True, False])
def test_a_change_that_keeps_size_and_time_is_seen(
    tmp_path: Path, cache: Path, fetched: list[str], in_place: bool
) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    rewrite(path, [1, 2, 3, 4, 5, 6], row_group_size=2)
    rewrite(other, [1, 2, 3, 4, 5, 6], row_group_size=3)
    size = max(path.stat().st_size, other.stat().st_size)
    contents = []
    for each in (path, other):  # equal sizes: bytes that no one reads are added behind the magic number
        content = each.read_bytes()
        contents.append(b"PAR1" + bytes(size - len(content)) + content[4:])
    path.write_bytes(contents[0])
    os.utime(path, ns=(OLD_NS, OLD_NS))
    settle()
    before = scan(path, footers=cache)
    assert scan(path, footers=cache) == before
    if in_place:
        path.write_bytes(contents[1])
    else:
        other.write_bytes(contents[1])
        other.replace(path)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (before.files[0].size, before.files[0].mtime_ns)
    assert len(scan(path, footers=cache)) == len(scan(path, footers=False)) != len(before)


def test_a_file_that_changed_a_moment_ago_is_not_kept(
    tmp_path: Path, cache: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    rewrite(path, [1, 2, 3])
    written_ns = path.stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: written_ns + 50_000_000)
    for _ in range(2):
        scan(path, footers=cache)
    assert fetched == ["a.parquet"] * 2
    os.utime(path, ns=(written_ns, written_ns))
    monkeypatch.setattr(time, "time_ns", lambda: path.stat().st_ctime_ns + 4_000_000_000)
    for _ in range(2):
        scan(path, footers=cache)
    assert fetched == ["a.parquet"] * 3


def test_a_file_that_is_replaced_during_the_read_is_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    rewrite(path, [1, 2, 3])
    old = path.read_bytes()
    settle()

    def replacing(uri: str, file: pa.NativeFile, *sizes: Any) -> pa.Buffer:
        rewrite(path, [1])
        return fetch_footer(uri, file, *sizes)

    with monkeypatch.context() as patch:
        patch.setattr(file_scan, "fetch_footer", replacing)
        with suppress(CorruptFile):
            scan(path, footers=cache)
    path.write_bytes(old)
    settle()
    assert scan(path, footers=cache).num_rows == 3
    assert scan(path, footers=cache).num_rows == 3


def test_a_store_without_reliable_versions_is_not_kept(
    parquet_folder: Folder, cache: Path, fetched: list[str], memory: object
) -> None:
    root = parquet_folder({"a.parquet": [3]})
    memory.put(str(root / "a.parquet"), "/kept/a.parquet")  # type: ignore[attr-defined]
    for _ in range(2):
        scan("memory://kept", footers=cache)
    assert fetched == ["a.parquet"] * 2


def forge(cache: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(cache.with_name("cache-footers") / "cache.db")) as connection:
        connection.execute(statement, values)
        connection.commit()


def test_facts_and_footers_that_are_not_what_was_stored_are_read_again(
    parquet_folder: Folder, cache: Path, fetched: list[str]
) -> None:
    root = parquet_folder({"a.parquet": [3, 2]})
    settle()
    expected = scan(root, footers=cache)
    rng = np.random.default_rng(0)
    with closing(sqlite3.connect(cache.with_name("cache-footers") / "cache.db")) as connection:
        rows = connection.execute("SELECT rowid, value FROM Cache").fetchall()
    for _ in range(60):
        for rowid, value in rows:
            damaged = bytearray(value)
            damaged[int(rng.integers(len(value)))] ^= 1 << int(rng.integers(8))
            forge(cache, "UPDATE Cache SET value = ? WHERE rowid = ?", bytes(damaged), rowid)
        assert scan(root, footers=cache) == expected
        assert scan(root, where="id >= 0", footers=cache).num_rows == 5


def test_a_stored_footer_of_rubbish_with_a_right_checksum_is_read_again(
    parquet_folder: Folder, cache: Path, fetched: list[str]
) -> None:
    root = parquet_folder({"a.parquet": [3, 2]})
    settle()
    expected = scan(root, footers=cache)
    store = FooterStore(cache)
    file = expected[0]
    found = footer_store.FoundFile(uri=file.uri, size=file.file_size, mtime_ns=file.file_mtime_ns)
    version = footer_store.kept_version(found)
    names = footer_store.footer_name(found, version), footer_store.facts_name(found, version)
    footer, facts = (store.get(name) for name in names)
    assert footer
    assert facts
    contents = [
        b"",
        b"PAR1",
        footer[:-9],
        bytes(len(footer)),
        footer[:40] + b"\xa5" * (len(footer) - 52) + footer[-12:],
    ]
    for content in contents:
        store.put([(names[0], content)])
        fetched.clear()
        assert scan(root, where="id >= 0", footers=cache).num_rows == 5
        store.put([(names[0], content)])
        assert RowGroupReader(expected, footers=FooterCache(store)).read(0).num_rows == 3
        assert fetched.count("a.parquet") >= 2
    for content in [b"", b"x", facts[:8], facts[:-1], b"\xff" * 40, facts.replace(b"[", b"{")]:
        store.put([(names[1], content)])
        assert scan(root, footers=cache) == expected


def test_a_reader_that_finds_a_wrong_version_drops_what_is_kept(parquet_folder: Folder, cache: Path) -> None:
    root = parquet_folder({"a.parquet": [3, 2]})
    settle()
    manifest, store = scan(root, footers=cache), FooterStore(cache)
    forgotten: list[str] = []
    store.forget = forgotten.append  # type: ignore[method-assign]
    os.truncate(root / "a.parquet", 100)
    with pytest.raises(SourceChanged):
        RowGroupReader(manifest, footers=FooterCache(store)).read(0)
    assert forgotten == []  # its version is another one now


def test_two_processes_and_many_threads_scan_at_once(
    parquet_folder: Folder, cache: Path, python: Callable[..., subprocess.Popen[str]]
) -> None:
    root = parquet_folder({f"{number}.parquet": [number + 1] for number in range(40)})
    settle()
    expected = scan(root, footers=False)
    code = "import sys, forebay as fb; print(fb.scan(sys.argv[1], footers=sys.argv[2]).id)"
    processes = [python(code, root, cache) for _ in range(2)]
    found: list[Manifest] = []
    threads = [threading.Thread(target=lambda: found.append(scan(root, footers=cache))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one == expected for one in found)
    assert [process.communicate()[0].strip() for process in processes] == [expected.id] * 2
