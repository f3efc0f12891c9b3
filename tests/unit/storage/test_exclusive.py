"""Conditional creation on local disks.

tests/storage has the stores that are elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.storage import exclusive
from forebay.storage.exclusive import NoExclusiveCreation, create_exclusively, create_locked
from forebay.storage.file_lock import try_lock

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
