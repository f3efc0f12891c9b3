"""Refusals of the system raise `CacheUnusable`, which names the directory and the remedy."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.descriptors import no_descriptors

from forebay.data.cache.disk import directory
from forebay.data.cache.disk.directory import CacheDirectory, new_part
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.spec import CacheSpec
from forebay.data.transform.block import Block
from forebay.errors import CacheUnusable, InvalidOption
from forebay.runtime.metrics import Counters
from forebay.storage.file_lock import try_lock
from forebay.storage.private_folder import MountPoint


def test_without_descriptors_a_lock_says_so(cache: DiskCache, key_of: Callable[[object], str]) -> None:
    with no_descriptors(), pytest.raises(CacheUnusable, match="Too many open files.*ulimit -n") as raised:  # noqa: SIM117
        with cache.single_flight(key_of(1), 1.0):
            pass
    assert str(cache.path) in str(raised.value)


def test_without_descriptors_the_index_says_so(cache: DiskCache) -> None:
    with no_descriptors(), pytest.raises(CacheUnusable, match=r"open .*ulimit -n") as raised:
        _ = cache.used_bytes
    assert "tried for" not in str(raised.value)


def test_a_folder_that_cannot_be_looked_into(
    cache: DiskCache, key_of: Callable[[object], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", refused)
    with pytest.raises(CacheUnusable, match="Permission denied.*Name another directory"):
        cache.get(key_of(1))


def test_a_uri_is_no_directory(tmp_path: Path) -> None:
    for make in (lambda uri: DiskCache(uri, quota_bytes=1), lambda uri: CacheSpec(path=uri).open()):
        with pytest.raises(CacheUnusable, match="s3://bucket/cache is a URI. Name a directory on a local disk"):
            make("s3://bucket/cache")
    assert CacheSpec(path=f"{tmp_path}/at://home").directory == f"{tmp_path}/at:/home"


def test_a_lock_in_a_removed_directory(cache: DiskCache, key_of: Callable[[object], str]) -> None:
    shutil.rmtree(cache.path)
    with pytest.raises(CacheUnusable, match="Name another directory"), cache.single_flight(key_of(1), 1.0):
        pass


def test_a_damaged_block_that_cannot_be_set_aside(
    cache: DiskCache, block_of: Callable[..., Block], key_of: Callable[[object], str]
) -> None:
    key = key_of(1)
    cache.put(key, "data", block_of())
    path = CacheDirectory(cache.path).block(key)
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(cache.path / "quarantine")
    with pytest.raises(CacheUnusable, match="Name another directory"):
        cache.get(key, Counters())


def test_a_lease_that_cannot_be_listed_holds_nothing(
    cache: DiskCache, block_of: Callable[..., Block], key_of: Callable[[object], str]
) -> None:
    cache.put(key_of(1), "data", block_of())
    before = len(list(Path("/proc/self/fd").iterdir()))
    with no_descriptors(but=1), pytest.raises(CacheUnusable):
        cache.lease("data")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    lock = try_lock(CacheDirectory(cache.path).use_lock("data"))
    assert lock, "the lock of the lease is still held"
    lock.release()


def test_a_part_file_that_cannot_be_removed_is_let_go(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder that became read-only. The next sweep removes the file, which needs its lock to be free."""
    part = new_part(CacheDirectory(cache.path), "0" * 40, 1)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(PermissionError):
            part.discard()
    assert (cache.path / "temp" / part.path.name).exists()
    DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0).verify()
    assert list((cache.path / "temp").iterdir()) == []


def test_directory_removed_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = CacheDirectory.prepare

    def prepare_and_lose(directory: CacheDirectory) -> None:
        prepare(directory)
        shutil.rmtree(directory.temp)

    monkeypatch.setattr(CacheDirectory, "prepare", prepare_and_lose)
    with pytest.raises(CacheUnusable, match="was removed while it was being opened.*temp is missing"):
        DiskCache(tmp_path / "cache", quota_bytes=1 << 20, min_free_bytes=0)


def test_a_disk_that_machines_share_holds_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real server of NFS: tests/storage/nfs."""
    share = MountPoint(device="0:50", point=str(tmp_path), kind="nfs4", source="server:/export", options=("rw",))
    monkeypatch.setattr(directory, "mount_of", lambda _: share)
    with pytest.raises(CacheUnusable, match=r"is on nfs4 \(server:/export on .*Name a directory on a local disk"):
        DiskCache(tmp_path / "cache", quota_bytes=1 << 20)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["quota_bytes", "min_free_bytes"])
@pytest.mark.parametrize("given", ["10GB", -1, 1.5])
def test_what_is_no_number_of_bytes_is_refused_with_what_is(tmp_path: Path, option: str, given: object) -> None:
    options: dict[str, Any] = {"quota_bytes": 1 << 20, option: given}
    with pytest.raises(InvalidOption, match=re.escape(f"{option}={given!r}: it must be a whole number of 0 or more.")):
        DiskCache(tmp_path / "cache", **options)
    assert not any(tmp_path.iterdir())
