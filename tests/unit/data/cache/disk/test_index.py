"""The index: transactions over processes, and a lost or damaged file is replaced, never unpickled."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from forebay.data.cache.disk import index as index_module
from forebay.data.cache.disk.index import Index, IndexFull, IndexTable
from forebay.errors import CacheUnusable

COUNT = """
import sys, pathlib
from forebay.data.cache.disk.index import Index
folder = pathlib.Path(sys.argv[1])
index = Index(folder, folder / "lock")
print("ready", flush=True)
input()
for _ in range(50):
    index.transact(lambda rows: rows.set("n", (rows.get("n") or 0) + 1))
"""


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path, tmp_path / "lock")


def count_up(rows: IndexTable) -> int:
    number = (rows.get("n") or 0) + 1
    rows.set("n", number)
    return int(number)


def test_changes_are_kept_unless_the_work_raises(index: Index) -> None:
    assert index.transact(count_up) == 1

    def fail(rows: IndexTable) -> None:
        rows.set("n", 99)
        raise KeyError("x")

    with pytest.raises(KeyError):
        index.transact(fail)
    assert index.transact(lambda rows: rows.get("n")) == 1
    index.transact(lambda rows: rows.delete("n"))
    assert index.transact(lambda rows: list(rows.names())) == []


def test_no_update_is_lost_between_processes_and_threads(
    tmp_path: Path, index: Index, python: Callable[..., subprocess.Popen[str]]
) -> None:
    others = [python(COUNT, tmp_path) for _ in range(3)]
    for other in others:
        assert other.stdout and other.stdout.readline() == "ready\n"
    for other in others:
        assert other.stdin
        other.stdin.write("\n")
        other.stdin.flush()
    threads = [threading.Thread(target=lambda: [index.transact(count_up) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        other.communicate(timeout=60)
    assert index.transact(count_up) == 3 * 50 + 4 * 10 + 1


def fill_up(rows: IndexTable) -> None:
    for number in range(300):
        rows.set(f"name{number}", "x" * 100)


@pytest.mark.parametrize("damage", ["removed", "emptied", "garbage", "torn"])
def test_lost_index_is_replaced_by_an_empty_one(index: Index, damage: str) -> None:
    index.transact(fill_up)
    content = index.file.read_bytes()
    if damage == "removed":
        index.file.unlink()
    else:
        index.file.write_bytes({"emptied": b"", "garbage": os.urandom(20_000), "torn": content[:5000]}[damage])
    assert index.transact(count_up) == 1
    assert index.transact(count_up) == 2


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.abort, ()


@pytest.mark.parametrize("column", ["name", "value"])
def test_pickles_in_the_index_are_never_loaded(index: Index, column: str) -> None:
    index.transact(count_up)
    with closing(sqlite3.connect(index.file)) as connection, connection:
        connection.execute(f"UPDATE rows SET {column} = ?", (pickle.dumps(Bomb()),))
    assert index.transact(lambda rows: [*rows.names(), rows.get("n")]) == [None]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE rows SET value = CAST(x'ff' AS TEXT)",
        "UPDATE rows SET value = 'no JSON'",
        "UPDATE rows SET value = replace(hex(zeroblob(20000)), '0', '[')",
        "UPDATE rows SET name = CAST(x'ff' AS TEXT)",
    ],
)
def test_rows_that_forebay_did_not_write_are_replaced_with_the_whole_index(index: Index, change: str) -> None:
    index.transact(count_up)
    with closing(sqlite3.connect(index.file)) as connection, connection:
        connection.execute(change)
    assert index.transact(lambda rows: [*rows.names(), rows.get("n")]) == [None]
    assert index.transact(count_up) == 1


@pytest.mark.parametrize(
    "changes",
    [
        ["CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END"],
        ["DROP TABLE rows", "CREATE VIEW rows AS SELECT 'n' AS name, '7' AS value"],
        ["DROP TABLE rows", "CREATE TABLE rows (name TEXT, other TEXT)"],
        ["CREATE TABLE others (name TEXT)"],
        ["PRAGMA writable_schema = ON", "UPDATE sqlite_master SET name = CAST(x'ff' AS TEXT), sql = 'x'"],
    ],
    ids=["trigger", "view", "columns", "table", "name"],
)
def test_a_database_with_anything_else_is_replaced(index: Index, changes: list[str]) -> None:
    index.transact(count_up)
    with closing(sqlite3.connect(index.file)) as connection, connection:
        for change in changes:
            connection.execute(change)
    again = Index(index.file.parent, index.file.parent / "lock")
    assert again.transact(count_up) == 1
    assert again.transact(count_up) == 2


def test_the_index_of_earlier_revisions_is_removed(index: Index) -> None:
    earlier = index.file.with_name("cache.db")
    earlier.write_bytes(b"x")
    assert index.transact(count_up) == 1
    assert not earlier.exists()


def test_a_full_disk_has_its_own_error(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(rows: IndexTable) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(IndexFull):
        index.transact(full)


def test_locked_index_is_an_error_with_a_remedy(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BUSY_S", 0.2)
    index.transact(count_up)
    holder = sqlite3.connect(index.file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    other = Index(index.file.parent, index.file.parent / "lock2")
    with pytest.raises(CacheUnusable, match="End the process that holds it"):
        other.transact(count_up)
    holder.close()


def test_no_connection_outlives_a_transaction(index: Index) -> None:
    index.transact(count_up)
    open_files = {str(link.resolve()) for link in Path("/proc/self/fd").iterdir()}
    assert str(index.file.resolve()) not in open_files


def test_fork_waits_for_the_transaction_and_both_go_on(index: Index) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(rows: IndexTable) -> int:
        number = count_up(rows)
        begun.set()
        go.wait(120)
        return number

    thread = threading.Thread(target=index.transact, args=(slow,))
    thread.start()
    assert begun.wait(60)
    threading.Timer(0.2, go.set).start()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if index.transact(count_up) in (2, 3) else 2
        finally:
            os._exit(status)
    thread.join()
    index.transact(count_up)
    assert os.waitpid(child, 0)[1] == 0
    assert index.transact(count_up) == 4
