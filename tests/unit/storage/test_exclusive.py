"""Conditional creation on local disks.

tests/storage has the stores that are elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from pyarrow import fs

from forebay.storage import exclusive
from forebay.storage.exclusive import NoExclusiveCreation, create_exclusively, create_locked
from forebay.storage.file_lock import try_lock
from forebay.storage.filesystem import Location
from forebay.storage.fsspec_bridge import Bridge
from forebay.storage.hadoop.files import HadoopFiles

RACERS = 16
HOLDER = """
import os, sys
from forebay.storage.exclusive import create_locked
lock = create_locked(sys.argv[1], b"holder")
print(lock is not None, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.variation("more rounds"))])
def test_one_of_many_racers_wins(tmp_path: Path, rounds: int) -> None:
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(rounds):
            path = str(tmp_path / f"{number}.json")
            contents = [f"racer {racer}".encode() for racer in range(RACERS)]
            won = list(pool.map(create_exclusively, [path] * RACERS, contents))
            assert won.count(True) == 1
            assert Path(path).read_bytes() == contents[won.index(True)]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}  # no neighbours are left


def test_own_content_counts_as_won(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "1.json")
    assert create_exclusively(path, b"mine")
    assert not create_exclusively(path, b"another's")
    assert Path(path).stat().st_mode & 0o777 == 0o666 & ~exclusive.UMASK


def test_what_is_created_is_neither_held_open_nor_locked(tmp_path: Path) -> None:
    held = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        assert create_exclusively(str(tmp_path / f"{number}.json"), b"mine")
    assert len(list(Path("/proc/self/fd").iterdir())) == held
    lock = try_lock(tmp_path / "0.json")
    assert lock is not None
    lock.release()


def test_what_has_no_room_appears_not_even_in_part(tmp_path: Path) -> None:
    """A nearly full disk takes a part of a write, and refuses the next one."""
    code = (
        "import errno, resource, sys; from forebay.storage.exclusive import create_exclusively\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: create_exclusively(sys.argv[1], bytes(10_000))\n"
        "except OSError as error: sys.exit(error.errno != errno.EFBIG)\n"
        "sys.exit('created')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "claim")], check=True)
    assert list(tmp_path.iterdir()) == []


def test_locked_from_birth_until_its_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        assert create_locked(str(path), b"second") is None
        assert try_lock(path) is None
        holder.kill()
    lock = try_lock(path)
    assert lock is not None
    lock.release()


def test_file_system_without_locks_still_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    first = create_locked(str(tmp_path / "a"), b"1")
    assert first is not None
    assert create_locked(str(tmp_path / "a"), b"2") is None
    first.release()


def test_store_without_the_operation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoExclusiveCreation, match="memory://x/a: this store cannot create a file exclusively"):
        create_exclusively("memory://x/a", b"1")

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(NoExclusiveCreation, match="no hard links"):
        create_exclusively(str(tmp_path / "a"), b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("error", [FileExistsError(errno.EEXIST, "exists"), OSError(errno.EIO, "timed out")])
def test_link_whose_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool, error: OSError
) -> None:
    """A client of NFS repeats the request, or gives up with `soft`: the file says who made it."""
    path, link = tmp_path / "1.json", os.link

    def lossy(source: str, target: str) -> None:
        if is_done:
            link(source, target)
        elif isinstance(error, FileExistsError):
            path.write_bytes(b"another's")
        raise error

    monkeypatch.setattr(os, "link", lossy)
    if not is_done and not isinstance(error, FileExistsError):
        with pytest.raises(OSError, match="timed out"):
            create_exclusively(str(path), b"mine")
        assert not path.exists()
        return
    assert create_exclusively(str(path), b"mine") is is_done
    assert path.read_bytes() == (b"mine" if is_done else b"another's")


class InMemory(fsspec.AbstractFileSystem):
    """Files by name. The answer to a rename may get lost, or the request."""

    cachable = False
    protocol = "webhdfs"

    def __init__(self, *, loses_answers: bool = False, loses_requests: bool = False) -> None:
        fsspec.AbstractFileSystem.__init__(self)
        self.contents: dict[str, bytes] = {}
        self.loses_answers, self.loses_requests = loses_answers, loses_requests

    def create(self, name: str) -> Any:
        self.contents[name] = b""
        return closing(SimpleNamespace(write=lambda content: self.contents.update({name: content}), close=lambda: None))

    def mv(self, path1: str, path2: str, overwrite: bool = True, **_options: object) -> None:
        if self.loses_requests:
            raise OSError("connection reset by peer")
        if path2 in self.contents:
            if not overwrite:
                raise OSError("FileAlreadyExistsException")
            return  # so does WebHDFS
        self.contents[path2] = self.contents.pop(path1)
        if self.loses_answers:
            raise OSError("connection reset by peer")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def exists(self, path: str, **_options: object) -> bool:
        return path in self.contents

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        if self.contents.pop(path, None) is None:
            raise FileNotFoundError(path)

    def info(self, path: str, **_options: object) -> dict[str, Any]:
        if path not in self.contents:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.contents[path]), "type": "file", "mtime": 0}

    def open(self, path: str, mode: str = "rb", **_options: object) -> Any:
        return self.create(path) if mode == "wb" else io.BytesIO(self.contents[path])


class HadoopInMemory(InMemory, HadoopFiles):
    protocol = "hdfs"


@pytest.mark.parametrize("kind", [InMemory, HadoopInMemory])
@pytest.mark.parametrize("loses_answers", [False, True])
def test_rename_whose_answer_was_lost(kind: type[InMemory], loses_answers: bool) -> None:
    files = kind(loses_answers=loses_answers)
    location = Location(fs.PyFileSystem(Bridge(files)), "/runs/1.json", f"{kind.protocol}://name/runs/1.json")
    assert create_exclusively(location, b"mine")
    assert not create_exclusively(location, b"another's")
    assert files.contents == {"/runs/1.json": b"mine"}


@pytest.mark.parametrize("kind", [InMemory, HadoopInMemory])
def test_rename_that_was_not_done(kind: type[InMemory]) -> None:
    files = kind(loses_requests=True)
    location = Location(fs.PyFileSystem(Bridge(files)), "/runs/1.json", f"{kind.protocol}://name/runs/1.json")
    with pytest.raises(OSError, match="connection reset"):
        create_exclusively(location, b"mine")
    assert "/runs/1.json" not in files.contents


def test_check_of_a_store_whose_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store that may ignore conditions, a second creation is asked: its failure undoes nothing."""
    files = InMemory()
    location = Location(fs.PyFileSystem(Bridge(files)), "/runs/1.json", "webhdfs://name/runs/1.json")
    monkeypatch.setattr(exclusive, "_is_trusted", lambda _: False)
    created = exclusive._create

    def once(location: Location, content: bytes) -> bool:
        files.loses_requests = "/runs/1.json" in files.contents
        return created(location, content)

    monkeypatch.setattr(exclusive, "_create", once)
    assert create_exclusively(location, b"mine")
    with pytest.raises(OSError, match="connection reset"):
        create_exclusively(location, b"another's")
