"""Security of the cache directory: other users cannot change its data, and planted files neither lead out nor run."""

from __future__ import annotations

import os
import pickle
import socket
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from forebay.data.cache.disk.directory import CacheDirectory
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.block import Block
from forebay.errors import CacheUnusable, ForebayError
from forebay.runtime.metrics import Counters

MIB = 1 << 20
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

BlockOf = Callable[..., Block]
KeyOf = Callable[[object], str]
Same = Callable[[Block, Block], bool]


def opened(path: Path) -> DiskCache:
    return DiskCache(path, quota_bytes=16 * MIB, min_free_bytes=0)


@pytest.fixture
def everyone(tmp_path: Path) -> Path:
    """Folder like /tmp: all users can write, and only owners can replace their entries."""
    folder = tmp_path / "everyone"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_no_other_user_can_read_or_write_anything(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    mask = os.umask(0)
    try:
        cache = opened(tmp_path / "cache")
        with closing_lease(cache):
            cache.put(key_of(1), "data", block_of())
    finally:
        os.umask(mask)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in [cache.path, *cache.path.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    open_files = {path: mode for path, mode in modes.items() if path.is_file() and path.parent.name != "index"}
    assert set(open_files.values()) == {0o600}
    assert CacheDirectory(cache.path).block(key_of(1)) in open_files


def closing_lease(cache: DiskCache) -> closing[object]:
    lease = cache.lease("data")
    lease.close = lease.release  # type: ignore[union-attr]
    return closing(lease)


def test_a_folder_of_the_cache_that_was_opened_up_is_closed_again(tmp_path: Path) -> None:
    opened(tmp_path / "cache")
    (tmp_path / "cache" / "blocks").chmod(0o755)
    opened(tmp_path / "cache")
    assert stat.S_IMODE((tmp_path / "cache" / "blocks").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["blocks", "temp", "quarantine", "locks", "index", "users"])
def test_a_folder_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / name).symlink_to(elsewhere)
    with pytest.raises(CacheUnusable, match=f"{name}: is a link or a file"):
        opened(tmp_path / "cache")
    assert list(elsewhere.iterdir()) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755


def test_a_folder_of_the_cache_that_all_users_can_write_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "cache")
    (tmp_path / "cache" / "blocks").chmod(0o777)
    with pytest.raises(CacheUnusable, match="blocks: is writable by all users"):
        opened(tmp_path / "cache")


@as_root
@pytest.mark.parametrize("name", ["", "blocks", "index"])
def test_a_folder_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    opened(tmp_path / "cache")
    os.chown(tmp_path / "cache" / name, 4711, -1)
    with pytest.raises(CacheUnusable, match="belongs to user 4711, and this process runs as user 0"):
        opened(tmp_path / "cache")


def test_a_link_to_a_folder_that_all_users_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("open")
    with pytest.raises(CacheUnusable, match="is writable by all users"):
        opened(tmp_path / "link")


def test_a_link_to_a_folder_of_ones_own_is_fine(tmp_path: Path, everyone: Path) -> None:
    (tmp_path / "own").mkdir()
    (everyone / "link").symlink_to(tmp_path / "own")
    opened(everyone / "link" / "cache")
    assert (tmp_path / "own" / "cache" / "blocks").is_dir()


@pytest.mark.parametrize("below", ["cache", "deeper/cache"])
@pytest.mark.parametrize("by_link", [False, True])
def test_a_directory_that_all_users_can_replace_is_refused(tmp_path: Path, below: str, by_link: bool) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "deeper").mkdir()
    (tmp_path / "link").symlink_to(folder)
    # The second time it exists.
    for _ in range(2):
        with pytest.raises(CacheUnusable, match=r"all users can replace the entries of \S*open "):
            opened((tmp_path / "link" if by_link else folder) / below)
        (folder / below).mkdir(exist_ok=True)
    folder.chmod(0o1777)
    opened(folder / below)


@as_root
def test_where_one_other_user_can_replace_the_directory_it_is_refused(tmp_path: Path, everyone: Path) -> None:
    """Folder or link of another user, in a folder that all users can write."""
    (everyone / "theirs").mkdir()
    (tmp_path / "mine").mkdir()
    (everyone / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "by-way-of").symlink_to(everyone / "link")
    for path in (everyone / "theirs", everyone / "link"):
        os.chown(path, 4711, -1, follow_symlinks=False)
    for place in (everyone / "theirs", everyone / "link", tmp_path / "by-way-of"):
        with pytest.raises(CacheUnusable, match=r"(theirs|link) belongs to user 4711, in a folder that all users"):
            opened(place / "cache")
    assert list((tmp_path / "mine").iterdir()) == []


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755])
@pytest.mark.parametrize("below", ["cache", "deeper/cache"])
def test_a_directory_below_a_folder_of_another_user_is_refused(tmp_path: Path, below: str, mode: int) -> None:
    theirs = tmp_path / "theirs"
    opened(theirs / below)
    os.chown(theirs, 4711, -1)
    theirs.chmod(mode)
    with pytest.raises(CacheUnusable, match=r"theirs belongs to user 4711, who can replace its entries"):
        opened(theirs / below)


def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(CacheUnusable, match="cannot be written"):
        opened(tmp_path / "a" / "cache")


def plant_link(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def plant_pipe(place: Path, outside: Path) -> None:
    os.mkfifo(place)


def plant_socket(place: Path, outside: Path) -> None:
    os.chdir(place.parent)  # a socket's path may have some 100 characters only
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(place.name)


def plant_folder(place: Path, outside: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("plant", [plant_link, plant_pipe, plant_socket, plant_folder])
def test_what_is_no_plain_file_is_no_block(
    tmp_path: Path, block_of: BlockOf, key_of: KeyOf, same: Same, monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Path, Path], None],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    key, counters = key_of(1), Counters()
    opened(tmp_path / "other").put(key, "data", block_of(1))
    outside = tmp_path / "other" / "blocks" / f"{key}.block"
    content = outside.read_bytes()
    cache = opened(tmp_path / "cache")
    # One more than the quarantine keeps, so that some are removed.
    for number in range(9):
        plant(CacheDirectory(cache.path).block(key), outside)
        assert cache.get(key, counters) is None
        assert counters["quarantined"] == number + 1
    assert opened(tmp_path / "cache").put(key, "data", block_of(2)) is not None
    assert outside.read_bytes() == content
    cache.clear()
    assert outside.read_bytes() == content


@pytest.mark.parametrize("plant", [plant_link, plant_folder])
@pytest.mark.parametrize("where", ["temp", "quarantine", "users"])
def test_what_is_planted_elsewhere_does_not_lead_out(
    tmp_path: Path, block_of: BlockOf, key_of: KeyOf, where: str, plant: Callable[[Path, Path], None]
) -> None:
    names = {
        "temp": f"{key_of(1)}-100-{'a' * 16}.part",
        "quarantine": f"{'1' * 20}-{key_of(1)}",
        "users": f"{'a' * 16}.json",
    }
    outside = tmp_path / "outside"
    outside.write_text("precious")
    cache = opened(tmp_path / "cache")
    plant(cache.path / where / names[where], outside)
    cache = opened(tmp_path / "cache")
    assert cache.put(key_of(2), "data", block_of()) is not None
    cache.datasets()
    cache.verify()
    cache.clear()
    assert outside.read_text() == "precious"


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path: Path, key_of: KeyOf) -> None:
    cache, outside = opened(tmp_path / "cache"), tmp_path / "outside"
    for lock in list((cache.path / "locks").iterdir()):
        lock.unlink()
    for number in range(256):
        (cache.path / "locks" / f"flight-{key_of(number)}").symlink_to(outside)
        (cache.path / "locks" / f"use-{number:02x}").symlink_to(outside)
    (cache.path / "locks" / "index").symlink_to(outside)
    for use in (
        lambda: cache.lease("data"),
        lambda: cache.single_flight(key_of(1), 1.0).__enter__(),
        lambda: opened(cache.path),
    ):
        with pytest.raises(CacheUnusable):
            use()
    assert not outside.exists()


class PickleMark:
    """Object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(self.path),)


@pytest.fixture
def bomb(tmp_path: Path) -> bytes:
    """Pickle that creates `ran` when loaded. The fixture proves that first."""
    trial = pickle.dumps(PickleMark(tmp_path / "tried"))
    pickle.loads(trial)
    assert (tmp_path / "tried").exists()
    return pickle.dumps(PickleMark(tmp_path / "ran"))


def test_a_pickle_in_place_of_a_block_does_not_run(
    tmp_path: Path, bomb: bytes, block_of: BlockOf, key_of: KeyOf, same: Same
) -> None:
    cache, counters = opened(tmp_path / "cache"), Counters()
    cache.put(key_of(1), "data", block_of())
    CacheDirectory(cache.path).block(key_of(1)).write_bytes(bomb)
    assert opened(tmp_path / "cache").verify().bad == 1
    CacheDirectory(cache.path).block(key_of(1)).write_bytes(bomb)
    assert cache.get(key_of(1), counters) is None
    assert counters["quarantined"] == 1
    assert same(cache.put(key_of(1), "data", block_of()), block_of())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [":bomb", "CAST(:bomb AS TEXT)"])
@pytest.mark.parametrize(
    "column", ["datasets.name", "datasets.bytes", "blocks.key", "blocks.dataset", "blocks.bytes", "boots.id"]
)
def test_a_pickle_in_the_index_does_not_run(
    tmp_path: Path, bomb: bytes, block_of: BlockOf, key_of: KeyOf, same: Same, column: str, value: str
) -> None:
    cache = opened(tmp_path / "cache")
    cache.put(key_of(1), "data", block_of())
    table, _, name = column.partition(".")
    with closing(sqlite3.connect(cache.path / "index" / "accounts.db")) as index, index:
        assert index.execute(f"UPDATE {table} SET {name} = {value}", {"bomb": bomb}).rowcount == 1
    again = opened(tmp_path / "cache")
    assert same(again.get(key_of(1)), block_of())
    assert [use.blocks for use in again.datasets()] == [1]
    again.put(key_of(2), "data", block_of())
    again.clear()
    assert not again.keys()
    assert cache.put(key_of(1), "data", block_of())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../../precious", "/etc/passwd", "", "A" * 40])
def test_a_name_in_the_index_does_not_lead_out(tmp_path: Path, block_of: BlockOf, key_of: KeyOf, name: str) -> None:
    precious = tmp_path / "precious.block"
    precious.write_text("")
    cache = opened(tmp_path / "cache")
    cache.put(key_of(1), "data", block_of())
    with closing(sqlite3.connect(cache.path / "index" / "accounts.db")) as index, index:
        assert index.execute("UPDATE blocks SET key = ?", (name,)).rowcount == 1
    cache.clear()
    assert precious.exists()


def test_no_error_but_ours_comes_out_of_a_directory_of_garbage(tmp_path: Path, key_of: KeyOf) -> None:
    """Every file of ours holds noise, and a file stands in place of each folder in turn."""
    for folder in ("blocks", "temp", "quarantine", "locks", "users", "index"):
        root = tmp_path / folder
        root.mkdir()
        (root / folder).write_bytes(b"noise")
        with pytest.raises(ForebayError):
            opened(root)
