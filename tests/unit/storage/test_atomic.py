"""A file is complete or absent."""

from __future__ import annotations

import errno
import gzip
import os
import pickle
from pathlib import Path

import fsspec
import pytest

from forebay.errors import ExitCode, StorageFull, WriteFailed
from forebay.storage.atomic import find_small, read_small, write_atomically, write_failed
from forebay.storage.filesystem import resolve
from forebay.storage.retry import NotAFile


def test_writes_replaces_and_makes_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "new/a.json"
    write_atomically(path, b"one")
    write_atomically(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.json"]


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "sparse").write_bytes(b"")
    os.truncate(tmp_path / "sparse", 1 << 40)
    for name in ("pipe", "device", "sparse", "."):
        with pytest.raises(NotAFile, match=rf"{tmp_path}.*(a file is expected|has more than 9 bytes)"):
            read_small(resolve(tmp_path / name), 9)
    (tmp_path / "small").write_bytes(b"123456789")
    (tmp_path / "link").symlink_to("small")
    assert read_small(resolve(tmp_path / "link"), 9) == b"123456789"
    with pytest.raises(NotAFile):
        read_small(resolve(tmp_path / "small"), 8)


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_storage_without_room_is_an_error_of_its_own_where_all_machines_share_it() -> None:
    for number, is_shared, kind in (
        (errno.ENOSPC, True, StorageFull),
        (errno.EDQUOT, True, StorageFull),
        (errno.ENOSPC, False, WriteFailed),
        (errno.EFBIG, True, WriteFailed),
        (errno.EIO, True, WriteFailed),
    ):
        error = write_failed("the result", "/runs/a", OSError(number, os.strerror(number)), is_shared=is_shared, step=2)
        assert type(error) is kind
        assert error.exit_status == (ExitCode.UNUSABLE_STORAGE if kind is StorageFull else ExitCode.MACHINE)
        assert pickle.loads(pickle.dumps(error)).facts == {"uri": "/runs/a", "step": 2}


def test_elsewhere_too() -> None:
    write_atomically("memory://forebay-atomic/a", b"one")
    memory = fsspec.filesystem("memory")
    assert memory.cat("/forebay-atomic/a") == b"one"
    memory.rm("/forebay-atomic", recursive=True)


def test_content_is_returned_as_stored(tmp_path: Path) -> None:
    stored = gzip.compress(b"text")
    (tmp_path / "a.gz").write_bytes(stored)
    assert read_small(resolve(tmp_path).child("a.gz")) == stored == find_small(resolve(tmp_path / "a.gz"))


def test_a_missing_file(tmp_path: Path) -> None:
    place = resolve(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert find_small(place.child("missing")) is None
    assert find_small(place.child("file/below")) is None
    with pytest.raises(FileNotFoundError):
        read_small(place.child("missing"))
