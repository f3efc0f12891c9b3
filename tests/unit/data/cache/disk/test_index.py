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
from forebay.data.cache.disk.accounts import IndexTables, Reservation
from forebay.data.cache.disk.index import Index, IndexFull
from forebay.errors import CacheUnusable

NAME = f"{'1' * 20}-{'a' * 40}"
COUNT = f"""
import sys, pathlib
from forebay.data.cache.disk.index import Index
folder = pathlib.Path(sys.argv[1])
index = Index(folder, folder / "lock")
print("ready", flush=True)
input()
for _ in range(50):
    index.transact(lambda tables: tables.quarantine("{NAME}", tables.quarantined().get("{NAME}", 0) + 1))
"""


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path, tmp_path / "lock")


def count_of(tables: IndexTables) -> int | None:
    return tables.quarantined().get(NAME)


def count_up(tables: IndexTables) -> int:
    number = (count_of(tables) or 0) + 1
    tables.quarantine(NAME, number)
    return number


def test_changes_are_kept_unless_the_work_raises(index: Index) -> None:
    assert index.transact(count_up) == 1

    def fail(tables: IndexTables) -> None:
        tables.quarantine(NAME, 99)
        raise KeyError("x")

    with pytest.raises(KeyError):
        index.transact(fail)
    assert index.transact(count_of) == 1
    index.transact(lambda tables: tables.remove_quarantined(NAME))
    assert index.transact(count_of) is None


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


def fill_up(tables: IndexTables) -> None:
    for number in range(300):
        tables.add_block(Reservation(key=f"{number:040x}", dataset="x" * 100, bytes=1), 1.0)


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


@pytest.mark.parametrize("column", ["name", "bytes"])
def test_pickles_in_the_index_are_never_loaded(index: Index, column: str) -> None:
    index.transact(count_up)
    with closing(sqlite3.connect(index.file)) as connection, connection:
        connection.execute(f"UPDATE quarantined SET {column} = ?", (pickle.dumps(Bomb()),))
    assert index.transact(count_of) is None


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE quarantined SET bytes = CAST(x'ff' AS TEXT)",
        "UPDATE quarantined SET bytes = -1",
        "UPDATE quarantined SET name = CAST(x'ff' AS TEXT)",
        "UPDATE quarantined SET name = replace(hex(zeroblob(20000)), '0', '[')",
    ],
)
def test_rows_that_forebay_did_not_write_are_replaced_with_the_whole_index(index: Index, change: str) -> None:
    index.transact(count_up)
    with closing(sqlite3.connect(index.file)) as connection, connection:
        connection.execute(change)
    assert index.transact(count_of) is None
    assert index.transact(count_up) == 1


@pytest.mark.parametrize(
    "changes",
    [
        ["CREATE TRIGGER t AFTER INSERT ON blocks BEGIN DELETE FROM blocks; END"],
        ["DROP TABLE quarantined", "CREATE VIEW quarantined AS SELECT 'n' AS name, 7 AS bytes"],
        ["DROP TABLE quarantined", "CREATE TABLE quarantined (name TEXT, other TEXT)"],
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


@pytest.mark.parametrize("name", ["cache.db", "index.db", "index.db-journal"])
def test_the_index_of_earlier_revisions_is_removed(index: Index, name: str) -> None:
    earlier = index.file.with_name(name)
    earlier.write_bytes(b"x")
    assert index.transact(count_up) == 1
    assert not earlier.exists()


def test_a_full_disk_has_its_own_error(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tables: IndexTables) -> None:
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

    def slow(tables: IndexTables) -> int:
        number = count_up(tables)
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
