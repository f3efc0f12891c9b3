"""Disk cache within one process: hits, refusals and evictions."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from forebay.data.cache.block_file import block_file_bytes, map_block
from forebay.data.cache.disk import disk_cache as disk
from forebay.data.cache.disk import transaction
from forebay.data.cache.disk.accounts import INDEX_BYTES, IndexTables, Reservation, charge, smallest_quota
from forebay.data.cache.disk.directory import CacheDirectory, new_part
from forebay.data.cache.disk.disk_cache import DiskCache, VerifyReport
from forebay.data.cache.disk.index import Index, IndexFull
from forebay.data.transform.block import Block
from forebay.errors import CacheUnusable
from forebay.runtime.metrics import Counters

BlockOf = Callable[..., Block]
KeyOf = Callable[[object], str]
Same = Callable[[Block, Block], bool]
MIB = 1 << 20


def fill(cache: DiskCache, block_of: BlockOf, key_of: KeyOf, dataset: str, num_blocks: int, rows: int = 2000) -> int:
    """Number of these blocks that were stored."""
    return sum(
        cache.put(key_of((dataset, number)), dataset, block_of(number, rows)) is not None
        for number in range(num_blocks)
    )


def flip_bit(path: Path, position: int = -100) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def test_what_was_put_is_got(cache: DiskCache, block_of: BlockOf, key_of: KeyOf, same: Same) -> None:
    counters, key, block = Counters(), key_of("a"), block_of()
    assert cache.get(key, counters) is None
    stored = cache.put(key, "d", block, counters)
    assert stored and same(stored, block) and stored.owner is not None
    got = cache.get(key, counters)
    assert got and same(got, block)
    facts = counters.as_dict()
    assert (facts["stores"], facts["stored_bytes"]) == (1, block.nbytes)
    assert (facts["hits"], facts["hit_bytes"]) == (1, block.nbytes)
    assert facts["map_s"] > 0 and facts["write_s"] > 0
    assert "quarantined" not in facts


def test_another_instance_finds_it(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> None:
    cache.put(key_of("a"), "d", block_of())
    other = DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0)
    assert other.get(key_of("a"))
    assert other.used_bytes == cache.used_bytes
    assert other.datasets() == cache.datasets()


def test_putting_twice_keeps_and_charges_one(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> None:
    cache.put(key_of("a"), "d", block_of())
    used, inode = cache.used_bytes, CacheDirectory(cache.path).block(key_of("a")).stat().st_ino
    assert cache.put(key_of("a"), "d", block_of())
    assert cache.used_bytes == used
    assert CacheDirectory(cache.path).block(key_of("a")).stat().st_ino == inode


def test_nothing_half_written_is_left(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, left_over: Callable[[Path], list[str]]
) -> None:
    assert fill(cache, block_of, key_of, "d", 5) == 5
    assert left_over(cache.path) == []


# --- damage ---


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "foreign"])
def test_damaged_block_is_quarantined_counted_and_stored_again(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, same: Same, damage: str
) -> None:
    key, counters = key_of("a"), Counters()
    cache.put(key, "d", block_of())
    cache.get(key)
    used, path = cache.used_bytes, CacheDirectory(cache.path).block(key)
    if damage == "flipped":
        flip_bit(path)
    else:
        os.truncate(path, {"truncated": 1000, "emptied": 0, "foreign": path.stat().st_size}[damage])
        if damage == "foreign":
            cache.put(key_of("b"), "d", block_of(1))
            path.write_bytes(CacheDirectory(cache.path).block(key_of("b")).read_bytes())
    assert cache.get(key, counters) is None
    assert not path.exists()
    assert counters.as_dict().keys() == {"map_s", "quarantined"} and counters["quarantined"] == 1
    assert [name.name[-40:] for name in (cache.path / "quarantine").iterdir()] == [key]
    assert cache.get(key, counters) is None and counters["quarantined"] == 1, "counted once"
    assert cache.put(key, "d", block_of(), counters)
    again = cache.get(key, counters)
    assert again and same(again, block_of())
    assert cache.used_bytes > used, "quarantined files count"


def test_read_error_of_the_disk_counts_as_damage(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(key_of("a"), "d", block_of())

    def bad_sector(path: Path, key: str, *, verify: bool) -> Block:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "map_block", bad_sector)
    counters = Counters()
    assert cache.get(key_of("a"), counters) is None
    assert counters["quarantined"] == 1


def test_eight_quarantined_files_are_kept(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> None:
    for number in range(12):
        cache.put(key_of(number), "d", block_of())
        flip_bit(CacheDirectory(cache.path).block(key_of(number)))
        assert cache.get(key_of(number)) is None
    kept = {path.name[-40:] for path in (cache.path / "quarantine").iterdir()}
    assert kept == {key_of(number) for number in range(4, 12)}


def test_what_this_process_has_written_or_verified_is_at_hand(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, same: Same
) -> None:
    key, counters, other = (
        key_of("a"),
        Counters(),
        DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0),
    )
    cache.put(key, "d", block_of())
    found = cache.peek(key, counters)
    assert found and same(found, block_of()) and counters["hits"] == 1
    assert other.peek(key, counters) is None, "another has to verify it first"
    assert other.get(key, counters) and other.peek(key, counters)
    flip_bit(CacheDirectory(cache.path).block(key))  # at once, within a tick of the clock of files
    assert cache.peek(key, counters) is None and cache.get(key, counters) is None and counters["quarantined"] == 1
    assert cache.peek(key, counters) is None, "it is gone"


def test_blocks_are_verified_once_and_again_when_the_file_changes(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = []
    real = map_block

    def spy(path: Path, key: str, *, verify: bool) -> Block:
        verified.append(verify)
        return real(path, key, verify=verify)

    key = key_of("a")
    cache.put(key, "d", block_of())
    old = time.time_ns() - 10**9
    os.utime(CacheDirectory(cache.path).block(key), ns=(old, old))
    monkeypatch.setattr(disk, "map_block", spy)
    for _ in range(3):
        cache.get(key)
    assert verified == [True, False, False]
    os.utime(CacheDirectory(cache.path).block(key), ns=(old - 1, old - 1))
    cache.get(key)
    assert verified[-1] is True


def test_verify_finds_what_is_damaged(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> None:
    fill(cache, block_of, key_of, "d", 4)
    for number in (1, 2):
        cache.get(key_of(("d", number)))
        flip_bit(CacheDirectory(cache.path).block(key_of(("d", number))))
    seen: list[tuple[int, int]] = []
    report = cache.verify(lambda done, total: seen.append((done, total)))
    assert report == VerifyReport(checked=4, bad=2, bytes=2 * block_of(0, 2000).nbytes)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert cache.verify() == VerifyReport(checked=2, bad=0, bytes=2 * block_of(0, 2000).nbytes)


# --- room ---


def test_block_that_does_not_fit_is_refused(
    tmp_path: Path, block_of: BlockOf, key_of: KeyOf, left_over: Callable[[Path], list[str]]
) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1 * MIB, min_free_bytes=0)
    stored = fill(cache, block_of, key_of, "d", 10)  # of 168 kB each
    assert 3 <= stored <= 6
    assert cache.used_bytes <= 1 * MIB
    assert left_over(cache.path) == []
    assert cache.get(key_of(("d", 0))), "what was stored first stays"
    assert cache.get(key_of(("d", 9))) is None
    assert cache.put(key_of("small"), "d", block_of(0, 10)), "a smaller one may still fit"


def test_quota_too_small_for_the_index_leaves_the_directory_empty(
    tmp_path: Path, block_of: BlockOf, key_of: KeyOf
) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1000, min_free_bytes=0)
    assert cache.put(key_of("a"), "d", block_of(0, 1)) is None
    assert cache.get(key_of("a")) is None
    assert cache.used_bytes == 0 and cache.datasets() == [] and cache.clear() == 0
    assert sum(path.stat().st_size for path in cache.path.rglob("*") if path.is_file()) == 0


def test_smallest_quota_is_enough_for_one(tmp_path: Path, key_of: KeyOf) -> None:
    block = Block.of({"x": np.zeros(5000, np.uint8)})
    quota = smallest_quota(block_file_bytes(block, key_of("a"), "d"))
    cache = DiskCache(tmp_path / "c", quota_bytes=quota, min_free_bytes=0)
    assert cache.put(key_of("a"), "d", block)
    assert cache.put(key_of("b"), "d", block) is None
    short = DiskCache(tmp_path / "s", quota_bytes=quota - 1, min_free_bytes=0)
    assert short.put(key_of("a"), "d", block) is None


def test_minimum_free_disk_is_kept(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = block_file_bytes(block_of(), key_of(0), "d")
    free = [MIB + charge(size) + INDEX_BYTES]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": free[0]}))
    tight = DiskCache(cache.path, quota_bytes=16 * MIB, min_free_bytes=MIB)
    assert tight.put(key_of(0), "d", block_of())
    free[0] -= 1
    assert tight.put(key_of(1), "d", block_of()) is None


@pytest.mark.parametrize("where", ["write", "index", "part"])
def test_full_disk_means_not_stored_and_nothing_left(
    cache: DiskCache,
    block_of: BlockOf,
    key_of: KeyOf,
    left_over: Callable[[Path], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    cache.put(key_of("before"), "d", block_of())
    used = cache.used_bytes

    def full(*arguments: object) -> None:
        if where == "write":
            arguments[0].write(b"torn")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    def index_full(self: object, work: object) -> None:
        raise IndexFull

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(disk, "write_block", full)
        elif where == "part":
            patch.setattr(disk, "new_part", full)
        else:
            patch.setattr(Index, "transact", index_full)
        assert cache.put(key_of("a"), "d", block_of()) is None
        assert cache.get(key_of("before")), "what is there is still served"
    assert left_over(cache.path) == []
    assert cache.used_bytes == used
    assert cache.get(key_of("a")) is None
    assert cache.put(key_of("a"), "d", block_of())


def test_a_full_disk_is_an_error_of_manual_calls(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(key_of("a"), "d", block_of())

    def index_full(self: object, work: object) -> None:
        raise IndexFull

    monkeypatch.setattr(Index, "transact", index_full)
    for ask in (cache.clear, cache.verify, cache.datasets, lambda: cache.used_bytes):
        with pytest.raises(CacheUnusable, match="its disk is full.* remove the files in .*blocks"):
            ask()


def test_index_that_fills_up_after_the_rename_is_made_up_for(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Index.transact, []

    def full_at_commit(self: Index, work: Callable[[IndexTables], object]) -> object:
        calls.append(work)
        if len(calls) == 2:
            raise IndexFull
        return real(self, work)

    monkeypatch.setattr(Index, "transact", full_at_commit)
    assert cache.put(key_of("a"), "d", block_of())
    monkeypatch.undo()
    again = DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0)
    assert again.get(key_of("a"))
    assert [(use.dataset, use.blocks) for use in again.datasets()] == [("d", 1)]


def test_other_failures_of_the_disk_are_errors(
    cache: DiskCache,
    block_of: BlockOf,
    key_of: KeyOf,
    left_over: Callable[[Path], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(disk, "write_block", broken)
    used = cache.used_bytes
    with pytest.raises(CacheUnusable, match="Read-only file system"):
        cache.put(key_of("a"), "d", block_of())
    assert left_over(cache.path) == []
    assert cache.used_bytes == used


# --- eviction ---


def test_unused_data_sets_make_room_oldest_first(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=2 * MIB, min_free_bytes=0)
    assert fill(cache, block_of, key_of, "old", 4) == 4
    assert fill(cache, block_of, key_of, "newer", 4) == 4
    assert fill(cache, block_of, key_of, "now", 4) == 4
    assert {use.dataset: use.blocks for use in cache.datasets()} == {"newer": 4, "now": 4}
    assert cache.get(key_of(("old", 0))) is None and cache.get(key_of(("newer", 0)))
    assert cache.used_bytes <= 2 * MIB


def test_data_sets_in_use_stay(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1 * MIB, min_free_bytes=0)
    stored = fill(cache, block_of, key_of, "old", 9)
    lease = cache.lease("old")
    assert lease
    assert fill(cache, block_of, key_of, "now", 4) == 0
    assert [(use.dataset, use.blocks) for use in cache.datasets()] == [("old", stored)]
    lease.release()
    assert fill(cache, block_of, key_of, "now", 4) == 4
    assert [use.dataset for use in cache.datasets()] == ["now"]


def test_a_data_set_never_evicts_itself(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1 * MIB, min_free_bytes=0)
    stored = fill(cache, block_of, key_of, "d", 9)
    assert all(cache.get(key_of(("d", number))) for number in range(stored))


def test_nothing_is_evicted_for_a_block_that_cannot_fit(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1 * MIB, min_free_bytes=0)
    fill(cache, block_of, key_of, "old", 2)
    assert cache.put(key_of("huge"), "now", block_of(0, 20_000)) is None
    assert [(use.dataset, use.blocks) for use in cache.datasets()] == [("old", 2)]


def test_quarantined_files_make_room_first(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=1 * MIB, min_free_bytes=0)
    stored = fill(cache, block_of, key_of, "d", 9)
    flip_bit(CacheDirectory(cache.path).block(key_of(("d", 0))))
    assert cache.get(key_of(("d", 0))) is None
    assert fill(cache, block_of, key_of, "d", stored) == stored, "the damaged block can be stored again"
    assert list((cache.path / "quarantine").iterdir()) == []


def test_clear_one_data_set_or_all(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> None:
    empty = cache.used_bytes
    fill(cache, block_of, key_of, "a", 3)
    fill(cache, block_of, key_of, "b", 2)
    flip_bit(CacheDirectory(cache.path).block(key_of(("b", 0))))
    assert cache.get(key_of(("b", 0))) is None
    mapped = cache.get(key_of(("a", 0)))
    assert mapped
    assert cache.clear("nobody") == 0
    assert cache.clear("a") >= 3 * block_of(0, 2000).nbytes
    assert [(use.dataset, use.blocks) for use in cache.datasets()] == [("b", 1)]
    assert mapped.arrays["ids"].sum() == block_of(0, 2000).arrays["ids"].sum(), "mapped blocks stay valid"
    assert cache.clear() >= 2 * block_of(0, 2000).nbytes
    assert cache.used_bytes == empty and list((cache.path / "blocks").iterdir()) == []


# --- the index ---


@pytest.mark.parametrize("damage", ["removed", "garbage"])
def test_lost_index_is_rebuilt_from_the_blocks(cache: DiskCache, block_of: BlockOf, key_of: KeyOf, damage: str) -> None:
    fill(cache, block_of, key_of, "a", 3)
    fill(cache, block_of, key_of, "b", 2)
    flip_bit(CacheDirectory(cache.path).block(key_of(("b", 0))))
    cache.get(key_of(("b", 0)))
    used, sizes = cache.used_bytes, [(use.dataset, use.blocks, use.bytes) for use in cache.datasets()]
    index = cache.path / "index" / "accounts.db"
    if damage == "removed":
        index.unlink()
    else:
        index.write_bytes(os.urandom(10_000))
    again = DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0)
    assert sorted((use.dataset, use.blocks, use.bytes) for use in again.datasets()) == sizes
    assert again.used_bytes == used == cache.used_bytes, "also for those who had the old one open"
    assert cache.put(key_of("more"), "b", block_of())
    assert again.get(key_of("more"))


def test_blocks_removed_by_hand_free_their_bytes(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> None:
    fill(cache, block_of, key_of, "a", 3)
    used = cache.used_bytes
    CacheDirectory(cache.path).block(key_of(("a", 1))).unlink()
    assert cache.get(key_of(("a", 1))) is None
    cache.verify()
    assert cache.used_bytes < used
    CacheDirectory(cache.path).block(key_of(("a", 2))).unlink()
    reopened = DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0)
    assert [(use.dataset, use.blocks) for use in reopened.datasets()] == [("a", 1)]


def test_after_a_restart_of_the_machine_the_accounts_are_rebuilt(
    cache: DiskCache, block_of: BlockOf, key_of: KeyOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache.put(key_of("a"), "d", block_of())
    used, file = cache.used_bytes, CacheDirectory(cache.path).block(key_of("a"))
    with file.open("r+b") as block_file:
        block_file.truncate(0)  # what delayed allocation leaves of a file that was renamed just before a power cut
    again = DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0)
    assert again.used_bytes == used, "nobody looks at every file at every start"
    other_boot = tmp_path / "boot_id"
    other_boot.write_text("another\n")
    monkeypatch.setattr(transaction, "_BOOT_ID", other_boot)
    again = DiskCache(cache.path, quota_bytes=cache.quota_bytes, min_free_bytes=0)
    assert again.used_bytes < used
    assert again.get(key_of("a")) is None, "and what is torn is never served"


def test_index_stays_within_what_is_charged_for_it(
    tmp_path: Path, key_of: KeyOf, disk_bytes: Callable[[Path], int]
) -> None:
    cache = DiskCache(tmp_path / "c", quota_bytes=64 * MIB, min_free_bytes=0)
    block = Block.of({"x": np.zeros(1, np.uint8)})
    peak = 0
    for number in range(150):
        cache.put(key_of(number), "a-dataset-with-a-rather-long-name-0123456789ab", block)
        if number % 20 == 0:
            peak = max(peak, disk_bytes(cache.path) - cache.used_bytes)
    journal = cache.path / "index" / "accounts.db"
    assert peak <= 0
    assert 2 * journal.stat().st_size < 150 * 1024 + 48 * 4096, "a journal may be as large as the index"


# --- the directory ---


def test_directory_is_private(tmp_path: Path) -> None:
    for existing in (False, True):
        path = tmp_path / f"c{existing}"
        if existing:
            path.mkdir(mode=0o755)
        DiskCache(path, quota_bytes=MIB)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_unusable_directories_are_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for path, found in [
        (tmp_path / "file", "cannot be written"),
        (tmp_path / "file" / "below", "cannot be written"),
        (Path("/proc/forebay"), "cannot be written"),
        (tmp_path / "open", "is writable by all users"),
    ]:
        with pytest.raises(CacheUnusable, match=found) as caught:
            DiskCache(path, quota_bytes=MIB)
        assert str(path) in str(caught.value)
        assert "Name a directory of your own" in str(caught.value)


def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(CacheUnusable, match="this process runs as user 4711"):
        DiskCache(tmp_path / "c", quota_bytes=MIB)


def test_options_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheUnusable, match="cache=None"):
        DiskCache(tmp_path / "c", quota_bytes=0)
    assert not (tmp_path / "c").exists()


def test_foreign_files_are_left_alone(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    for folder in ("temp", "blocks", "quarantine", ""):
        (tmp_path / "c" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / folder / "notes.txt").write_text("mine")
    cache = DiskCache(tmp_path / "c", quota_bytes=MIB, min_free_bytes=0)
    fill(cache, block_of, key_of, "d", 9)
    cache.verify()
    cache.clear()
    assert [path.parent.name for path in sorted(cache.path.rglob("notes.txt"))] == ["blocks", "c", "quarantine", "temp"]


# --- other threads and processes ---


def test_single_flight_lets_one_in_at_a_time(cache: DiskCache, key_of: KeyOf) -> None:
    inside, most = [0], [0]

    def fly() -> None:
        with cache.single_flight(key_of("a"), 30.0) as alone:
            assert alone
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.005)
            inside[0] -= 1

    threads = [threading.Thread(target=fly) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_single_flight_gives_up_after_the_deadline(cache: DiskCache, key_of: KeyOf) -> None:
    with cache.single_flight(key_of("a"), 1.0) as first, cache.single_flight(key_of("a"), 0.05) as second:
        assert first and not second
    with pytest.raises(KeyError), cache.single_flight(key_of("a"), 1.0):
        raise KeyError
    with cache.single_flight(key_of("a"), 0.0) as again:
        assert again


def test_builders_of_different_blocks_do_not_wait_for_each_other(cache: DiskCache, key_of: KeyOf) -> None:
    with ExitStack() as flights:
        assert all(flights.enter_context(cache.single_flight(key_of(number), 0.0)) for number in range(300))
    assert not list((cache.path / "locks").glob("flight-*"))


def test_locks_of_killed_builders_go_when_the_cache_is_opened(cache: DiskCache, key_of: KeyOf) -> None:
    left = cache.path / "locks" / f"flight-{key_of(1)}"
    left.touch()
    with cache.single_flight(key_of(2), 1.0) as alone:
        assert alone
        DiskCache(cache.path, quota_bytes=1 << 30, min_free_bytes=0)
        assert [path.name for path in left.parent.glob("flight-*")] == [f"flight-{key_of(2)}"]
    with cache.single_flight(key_of(1), 0.0) as free:
        assert free


def test_forked_child_uses_the_cache_while_the_parent_does(tmp_path: Path, block_of: BlockOf, key_of: KeyOf) -> None:
    cache = DiskCache(tmp_path / "cache", quota_bytes=1 << 30, min_free_bytes=0)
    fill(cache, block_of, key_of, "d", 3)
    stop = threading.Event()

    def keep_busy() -> None:
        number = 0
        while not stop.is_set():
            assert cache.put(key_of(("busy", number)), "busy", block_of(0, 5))
            assert cache.get(key_of(("d", number % 3)))
            number += 1

    thread = threading.Thread(target=keep_busy)
    thread.start()
    children = []
    for child_number in range(5):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                good = cache.get(key_of(("d", 1))) and cache.put(key_of(("child", child_number)), "d", block_of(7))
                status = 0 if good and cache.used_bytes else 2
            finally:
                os._exit(status)
        children.append(child)
        time.sleep(0.02)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
    stop.set()
    thread.join()
    assert all(cache.get(key_of(("child", number))) for number in range(5))
    before = cache.used_bytes
    cache.verify()
    assert cache.used_bytes == before, "the accounts were right"


def test_pickle_carries_options_and_no_content(cache: DiskCache, block_of: BlockOf, key_of: KeyOf) -> None:
    cache.put(key_of("a"), "d", block_of())
    content = pickle.dumps(cache)
    assert len(content) < 1000
    code = (
        "import pickle, sys; cache = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "print(cache.quota_bytes, cache.min_free_bytes, cache.get(sys.argv[2]).arrays['ids'].sum())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, content.hex(), key_of("a")], check=True, capture_output=True, text=True
    ).stdout
    assert found.split() == [str(16 * MIB), "0", str(block_of().arrays["ids"].sum())]


def test_folder_of_other_things_keeps_its_readers(tmp_path: Path) -> None:
    disk = tmp_path / "ssd"
    disk.mkdir()
    (disk / "lost+found").mkdir()
    disk.chmod(0o755)
    for _ in range(3):
        DiskCache(disk, quota_bytes=1 << 20, min_free_bytes=0)
        assert disk.stat().st_mode & 0o777 == 0o755
    assert (disk / "blocks").stat().st_mode & 0o777 == 0o700


def test_what_a_worker_is_writing_counts_when_it_reserves_ahead(tmp_path: Path) -> None:
    """Writers of one process, each with a block of a twentieth of the quota: all 100 were admitted."""
    cache = DiskCache(tmp_path / "cache", quota_bytes=100 * MIB, min_free_bytes=0)
    cache.account_in_batches()
    with ExitStack() as writing:
        for number in range(30):
            part = new_part(cache._directory, f"{number:040x}", 5 * MIB)
            writing.callback(part.discard)
            reservation = Reservation(key=f"{number:040x}", dataset="d", bytes=5 * MIB)
            if not cache._quota.reserve(part.path.name, reservation):
                break
        assert 10 <= number < 20
        assert cache.used_bytes <= 100 * MIB
