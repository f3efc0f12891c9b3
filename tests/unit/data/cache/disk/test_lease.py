"""Leases: living holders are listed, hits of ended ones are kept, and files in users/ are harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.data.cache.disk import lease as lease_module
from forebay.data.cache.disk.accounts import MOST_USERS
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.disk.index import Index, IndexFull
from forebay.data.cache.disk.lease import named_user
from forebay.data.transform.block import Block
from forebay.errors import CacheUnusable
from forebay.storage.file_lock import FileLock, try_lock

BlockOf = Callable[..., Block]
KeyOf = Callable[[object], str]
Start = Callable[..., "subprocess.Popen[str]"]

HOLDER = """
import sys, time
from forebay.data.cache.disk import lease
from forebay.data.cache.disk.disk_cache import DiskCache

lease._WRITE_EVERY_S = 0.0
cache = DiskCache(sys.argv[1], quota_bytes=16 << 20, min_free_bytes=0)
with lease.named_user("holder"):
    kept = cache.lease("d")
for _ in range(int(sys.argv[3])):
    assert cache.get(sys.argv[2])
print("holding", flush=True)
if input() == "release":
    kept.release()
    print("released", flush=True)
    input()
"""


def hits(cache: DiskCache) -> dict[str, int]:
    return {use.dataset: use.hits for use in cache.datasets()}


@pytest.fixture
def filled(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> DiskCache:
    """A cache with one block of each of the datasets d and e, named after them."""
    for name in ("d", "e"):
        assert cache.put(key_of(name), name, block_of())
    return cache


@pytest.fixture
def holder(python: Start, filled: DiskCache, key_of: KeyOf) -> Callable[[int], subprocess.Popen[str]]:
    """A process that holds `d` and has hit it so many times."""

    def start(num_hits: int) -> subprocess.Popen[str]:
        process = python(HOLDER, filled.path, key_of("d"), num_hits)
        assert process.stdout and process.stdout.readline() == "holding\n"
        return process

    return start


def test_a_user_is_listed_until_the_release(filled: DiskCache, key_of: KeyOf) -> None:
    before = time.time()
    with named_user("ctr"):
        lease = filled.lease("d")
    assert lease
    (user,) = filled.users()
    assert (user.dataset, user.name, user.pid, user.host) == ("d", "ctr", os.getpid(), os.uname().nodename)
    assert before - 1 <= user.since <= time.time() + 1
    lease.release()
    lease.release()
    assert filled.users() == []
    assert list((filled.path / "users").iterdir()) == [], "nothing was hit, so nothing is left to be counted"
    assert filled.get(key_of("d")), "and a hit without a lease harms nobody"


def test_without_a_name_it_is_the_program(filled: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, name in (("/home/me/train.py", "train.py"), ("-c", "python"), ("", "python")):
        monkeypatch.setattr(sys, "argv", [program])
        lease = filled.lease("d")
        assert lease
        assert [user.name for user in filled.users()] == [name]
        lease.release()


def test_hits_are_counted_per_data_set(filled: DiskCache, key_of: KeyOf) -> None:
    first, second = filled.lease("d"), filled.lease("e")
    assert first and second
    for name in ("d", "d", "e"):
        filled.get(key_of(name))
    first.release()
    filled.get(key_of("e"))
    second.release()
    assert hits(filled) == {"d": 2, "e": 2}
    assert hits(DiskCache(filled.path, quota_bytes=16 << 20, min_free_bytes=0)) == {"d": 2, "e": 2}
    filled.verify()
    assert hits(filled) == {"d": 2, "e": 2}, "rebuilding the accounts keeps them"
    assert list((filled.path / "users").iterdir()) == []


def test_hits_of_the_living_show_as_they_come(
    holder: Callable[[int], subprocess.Popen[str]], filled: DiskCache
) -> None:
    process = holder(3)
    assert [(user.name, user.pid, user.hits) for user in filled.users()] == [("holder", process.pid, 3)]
    assert hits(filled) == {"d": 3, "e": 0}
    assert process.stdin and process.stdout
    process.stdin.write("release\n")
    process.stdin.flush()
    assert process.stdout.readline() == "released\n"
    assert filled.users() == []
    assert hits(filled) == {"d": 3, "e": 0}


def test_a_killed_process_uses_nothing_and_its_hits_count(
    holder: Callable[[int], subprocess.Popen[str]], filled: DiskCache
) -> None:
    process = holder(4)
    process.kill()
    process.wait()
    assert filled.users() == []
    assert hits(filled) == {"d": 4, "e": 0}
    assert list((filled.path / "users").iterdir()) == []


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child that does `work`."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child of a test must not go on as the test
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_cannot_release_what_its_parent_holds(filled: DiskCache, key_of: KeyOf) -> None:
    lease = filled.lease("d")
    assert lease
    filled.get(key_of("d"))

    def work() -> None:
        assert not lease.is_held
        assert filled.get(key_of("d"))
        lease.release()
        own = filled.lease("d")
        assert own and filled.get(key_of("d"))
        own.release()

    assert in_child(work) == 0
    assert [user.pid for user in filled.users()] == [os.getpid()]
    assert try_lock(filled._directory.use_lock("d")) is None, "and nobody may evict it"
    lease.release()
    assert hits(filled)["d"] == 2, "one of the parent, one under the child's own lease"


def test_a_forked_child_does_not_keep_it_for_a_dead_parent(filled: DiskCache, python: Start) -> None:
    # The child reports "holding": a child that has not run yet still has the state of the fork.
    code = HOLDER.replace("print(", "import os\nif os.fork():\n    time.sleep(60)\nprint(", 1)
    process = python(code, filled.path, "", 0)
    assert process.stdout and process.stdout.readline() == "holding\n"
    assert filled.users()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    try:
        assert filled.users() == []
        lock = try_lock(filled._directory.use_lock("d"))
        assert lock
        lock.release()
    finally:
        for child in children:
            os.kill(int(child), 9)


def test_only_so_many_are_listed_and_the_quota_covers_them(
    tmp_path: Path, disk_bytes: Callable[[Path], int], block_of: BlockOf, key_of: KeyOf
) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1 << 20, min_free_bytes=0)
    leases = [cache.lease("d") for _ in range(MOST_USERS + 5)]
    assert all(leases)
    assert len(cache.users()) == MOST_USERS
    while cache.put(key_of(len(cache.keys())), "d", block_of(len(cache.keys()), 500)):
        pass
    assert disk_bytes(cache.path) <= cache.used_bytes <= 1 << 20
    for lease in leases:
        assert lease
        lease.release()
    assert cache.users() == []


def test_released_leases_do_not_pile_up(filled: DiskCache, key_of: KeyOf) -> None:
    for _ in range(50):
        lease = filled.lease("d")
        assert lease and filled.get(key_of("d"))
        lease.release()
        assert len(list((filled.path / "users").iterdir())) <= 8
    assert hits(filled)["d"] == 50


def test_hits_wait_while_the_disk_is_full(filled: DiskCache, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def index_full(self: object, work: object) -> None:
        raise IndexFull

    lease = filled.lease("d")
    assert lease and filled.get(key_of("d"))
    lease.release()
    with monkeypatch.context() as patch:
        patch.setattr(Index, "transact", index_full)
        filled._quota.collect_ended_leases()
    assert hits(filled)["d"] == 1


def test_no_file_for_the_name_is_no_reason_to_fail(
    filled: DiskCache, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lease_module, "_write_note", full)
    lease = filled.lease("d")
    assert lease and filled.get(key_of("d"))
    assert try_lock(filled._directory.use_lock("d")) is None
    lease.release()
    assert list((filled.path / "users").iterdir()) == []


def test_a_quota_below_the_index_lists_no_users(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1000, min_free_bytes=0)
    lease = cache.lease("d")
    assert lease and cache.users() == []
    lease.release()


def test_a_removed_directory_is_an_error(filled: DiskCache) -> None:
    for path in sorted(filled.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(CacheUnusable, match=str(filled.path)):
        filled.lease("d")


GOOD = {"dataset": "d", "name": "x", "pid": 1, "host": "h", "since": 1.0, "hits": 5}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"dataset": "d", "na',
        b"\xff\xfe\x00",
        b"[" * 4000,
        b"null",
        b"17",
        b" " * 5000 + json.dumps(GOOD).encode(),
        *(json.dumps(GOOD | {part: value}).encode() for part in GOOD for value in (None, True, [], {}, -1)),
        json.dumps(GOOD | {"hits": 10**30}).encode(),
        json.dumps(GOOD | {"since": float("nan")}).encode(),
        json.dumps(GOOD | {"since": float("inf")}).encode(),
    ],
)
def test_a_file_that_makes_no_sense_is_passed_over(filled: DiskCache, content: bytes) -> None:
    path = filled.path / "users" / "0123456789abcdef.json"
    path.write_bytes(content)
    lock = try_lock(path)
    assert lock
    assert filled.users() == []
    lock.release()
    assert hits(filled) == {"d": 0, "e": 0}
    assert not path.exists(), "nobody holds it, so it is swept"


def test_what_is_no_plain_file_is_left_alone(filled: DiskCache, tmp_path: Path) -> None:
    users = filled.path / "users"
    (tmp_path / "elsewhere").write_text(json.dumps(GOOD))
    (users / "0123456789abcdef.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(users / "1123456789abcdef.json")
    (users / "2123456789abcdef.json").mkdir()
    (users / "notes.txt").write_text("mine")
    assert filled.users() == []
    assert hits(filled) == {"d": 0, "e": 0}
    assert len(list(users.iterdir())) == 4 and (tmp_path / "elsewhere").exists()


def test_names_cannot_steer_a_terminal(filled: DiskCache) -> None:
    path = filled.path / "users" / "0123456789abcdef.json"
    path.write_text(json.dumps(GOOD | {"name": "\x1b[31mred\n\u202e[/b]"}))
    with try_lock(path) or FileLock(-1):
        assert [user.name for user in filled.users()] == ["?[31mred??[/b]"]


def test_a_file_that_cannot_be_removed_is_no_reason_to_fail(filled: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    lease = filled.lease("d")
    assert lease
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        lease.release()
        assert filled.users() == [] and hits(filled)["d"] == 0
    assert hits(filled)["d"] == 0
    assert list((filled.path / "users").iterdir()) == []
