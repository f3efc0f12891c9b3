"""Footers on a node's disk: what is kept, what is refused, and how much."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forebay.data.parquet import footer_store
from forebay.data.parquet.footer_store import FooterStore


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Folder of the footers of the cache `tmp_path / "cache"`."""
    yield tmp_path / "cache-footers"
    footer_store._open.cache_clear()


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> FooterStore:
    return FooterStore(tmp_path / "cache")


def change(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / "cache.db")) as connection:
        connection.execute(statement, values)
        connection.commit()


def test_rows_are_found_by_every_process_until_they_are_forgotten(store: FooterStore, tmp_path: Path) -> None:
    store.put([("a", b"1"), ("b", b"2" * 100_000), ("\udcff", b"3")])
    assert [store.get(name) for name in ("a", "b", "\udcff", "c")] == [b"1", b"2" * 100_000, b"3", None]
    footer_store._open.cache_clear()
    other = FooterStore(tmp_path / "cache")
    assert other.get("a") == b"1"
    other.forget("a")
    assert store.get("a") is None


def test_the_folder_is_for_its_user_alone_and_made_at_the_first_use(store: FooterStore, folder: Path) -> None:
    assert not folder.exists()
    store.put([("a", b"1")])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["cache.db", "cache.db-journal"]


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def test_pickled_values_and_names_are_refused_and_run_no_code(store: FooterStore, folder: Path, tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "ran"))
    store.put([("a", b"1"), ("b", b"2")])
    change(folder, "UPDATE Cache SET mode = 4, value = ? WHERE key = ?", trap, footer_store._key("a"))
    assert (store.get("a"), store.get("b")) == (None, b"2")
    change(folder, "UPDATE Cache SET key = ?, raw = 0", trap)
    small = FooterStore(tmp_path / "cache", most_bytes=1 << 14)
    small.put([("c", b"3")])  # looks for the oldest row, and finds a damaged file
    small.put([("c", b"3")])
    assert not (tmp_path / "ran").exists()
    assert [small.get(name) for name in "abc"][:2] == [None, None]


def test_a_row_that_names_a_file_is_refused_and_the_file_stays(
    store: FooterStore, folder: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"secret")
    store.put([("a", b"1")])
    change(folder, "UPDATE Cache SET mode = 2, filename = '../mine', value = NULL")
    assert store.get("a") is None
    store.put([("a", b"2")])
    assert (store.get("a"), mine.read_bytes()) == (b"2", b"secret")


@pytest.mark.parametrize("value", [b"", b"short", b"12345678 other bytes", "text", 7])
def test_other_values_are_misses(store: FooterStore, folder: Path, value: object) -> None:
    store.put([("a", b"1")])
    change(folder, "UPDATE Cache SET value = ?", value)
    assert store.get("a") is None
    store.put([("a", b"2")])
    assert store.get("a") == b"2"


def test_a_row_under_the_name_of_another_is_a_miss(store: FooterStore, folder: Path) -> None:
    store.put([("a", b"1"), ("b", b"2")])
    change(
        folder,
        "UPDATE Cache SET value = (SELECT value FROM Cache WHERE key = ?) WHERE key = ?",
        *map(footer_store._key, "ba"),
    )
    assert (store.get("a"), store.get("b")) == (None, b"2")


@pytest.mark.parametrize("damage", [b"", b"not a database" * 1000])
def test_a_damaged_file_is_replaced(store: FooterStore, folder: Path, damage: bytes) -> None:
    store.put([(f"{number}", b"1" * 5000) for number in range(50)])
    footer_store._open.cache_clear()
    (folder / "cache.db").write_bytes(damage)
    assert store.get("0") is None
    store.put([("a", b"2")])
    assert store.get("a") == b"2"


def test_a_file_that_is_damaged_while_it_is_open(store: FooterStore, folder: Path) -> None:
    store.put([(f"{number}", b"1" * 5000) for number in range(200)])
    content = (folder / "cache.db").read_bytes()
    (folder / "cache.db").write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    for number in range(200):
        assert store.get(f"{number}") in (None, b"1" * 5000)
    store.put([("a", b"2")])
    store.put([("a", b"2")])
    assert store.get("a") == b"2"


def test_a_folder_that_others_can_write_is_not_used(store: FooterStore, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    store.put([("a", b"1")])
    assert store.get("a") is None
    assert list(folder.iterdir()) == []


def test_a_folder_or_a_file_of_another_user_is_not_used(
    store: FooterStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"1")])
    footer_store._open.cache_clear()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert store.get("a") is None
    footer_store._open.cache_clear()
    monkeypatch.undo()
    assert store.get("a") == b"1"


def test_a_link_is_not_followed(store: FooterStore, folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "cache.db").symlink_to(tmp_path / "elsewhere.db")
    store.put([("a", b"1")])
    assert store.get("a") is None
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = FooterStore(tmp_path / "file" / "cache")
    store.put([("a", b"1")])
    store.forget("a")
    assert store.get("a") is None


def test_the_size_is_bounded_and_young_rows_stay(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 4 << 20
    store = FooterStore(tmp_path / "cache", most_bytes=most)

    def fill(prefix: str) -> int:
        for first in range(0, 3000, 100):
            store.put([(f"{prefix}{number}", os.urandom(4000)) for number in range(first, first + 100)])
            assert sum(path.stat().st_size for path in folder.iterdir()) <= most
        return sum(store.get(f"{prefix}{number}") is not None for number in range(3000))

    kept = fill("a")
    assert 500 < kept < 1048
    assert all(store.get(f"a{number}") for number in range(500)), "the first ones stay"
    monkeypatch.setattr(footer_store, "_KEPT_S", 0.0)
    assert fill("b") > 500, "older rows make room"
    store.put([("large", bytes(most))])
    assert store.get("large") is None


def test_no_row_is_stored_on_a_full_disk(store: FooterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer_store, "_MIN_FREE_BYTES", 1 << 62)
    store.put([("a", b"1")])
    assert store.get("a") is None


def test_two_processes_write_and_read_at_once(
    store: FooterStore, tmp_path: Path, python: Callable[..., subprocess.Popen[str]]
) -> None:
    code = """if True:
        import sys
        from forebay.data.parquet.footer_store import FooterStore
        store, mine = FooterStore(sys.argv[1]), sys.argv[2]
        for first in range(0, 200, 20):
            store.put([(f"{mine}{number}", mine.encode() * 3000) for number in range(first, first + 20)])
            store.put([(f"both{number}", b"both" * 1000) for number in range(first, first + 20)])
            assert store.get(f"both{first}") == b"both" * 1000
    """
    writers = [python(code, tmp_path / "cache", name) for name in ("x", "y")]
    assert [writer.wait() for writer in writers] == [0, 0]
    names = [f"{prefix}{number}" for prefix in ("x", "y", "both") for number in range(200)]
    found = [store.get(name) for name in names]
    assert found == [name.rstrip("0123456789").encode() * (1000 if name[0] == "b" else 3000) for name in names]
