"""Disk cache under many processes: the quota holds at every moment, and dead processes leave nothing behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.block import Block

MIB = 1 << 20
NUM_WRITERS = 8

WRITER = """
import hashlib, pathlib, shutil, sys
import numpy as np
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.block import Block

path, quota, min_free, fake_disk, writer = sys.argv[1], *map(int, sys.argv[2:6])

def sizes():
    found = {}
    for file in pathlib.Path(path).rglob("*"):
        try:
            stat = file.lstat()
        except FileNotFoundError:
            continue
        found[stat.st_ino] = stat.st_blocks * 512
    return found

def taken():
    # What both walks have met was there at once.
    first, second = sizes(), sizes()
    return sum(first[inode] for inode in first.keys() & second.keys())

if fake_disk:
    def usage(_):
        return shutil._ntuple_diskusage(fake_disk, 0, fake_disk - sum(sizes().values()))
    shutil.disk_usage = usage
cache = DiskCache(path, quota_bytes=quota, min_free_bytes=min_free)
print("ready", flush=True)
input()
rng = np.random.default_rng(writer)
most = 0
for number in range(24):
    block = Block.of({"x": rng.integers(255, size=int(rng.integers(1, 200_000)), dtype=np.uint8)})
    # Every other key is one that all writers want.
    name = f"all {number}" if number % 2 else f"{writer} {number}"
    key = hashlib.sha256(name.encode()).hexdigest()[:40]
    cache.put(key, f"data-{number % 3}", block)
    most = max(most, taken())
print(most, flush=True)
"""

SLOW_WRITER = """
import os, sys, time
import numpy as np
from forebay.data.cache.disk import disk_cache as disk
from forebay.data.transform.block import Block

where, path, key = sys.argv[1:]
cache = disk.DiskCache(path, quota_bytes=16 << 20, min_free_bytes=0)

def stop(*arguments, **options):
    print("stopped", flush=True)
    time.sleep(60)

if where == "reserved":
    disk.write_block = stop
elif where == "written":
    disk.map_block = stop
else:
    disk.Quota.commit = stop
cache.put(key, "d", Block.of({"x": np.arange(100_000)}))
"""

Start = Callable[..., "subprocess.Popen[str]"]


def start_writers(python: Start, path: Path, quota: int, min_free: int, fake_disk: int) -> list[subprocess.Popen[str]]:
    writers = [python(WRITER, path, quota, min_free, fake_disk, number) for number in range(NUM_WRITERS)]
    for writer in writers:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("\n")
        writer.stdin.flush()
    return writers


@pytest.mark.parametrize("bound", ["quota", pytest.param("minimum free disk", marks=pytest.mark.variation)])
def test_bounds_hold_at_every_moment_with_eight_writers(
    tmp_path: Path, python: Start, disk_bytes: Callable[[Path], int], bound: str
) -> None:
    path, most = tmp_path / "cache", 4 * MIB
    fake_disk = 0 if bound == "quota" else 100 * MIB
    quota = most if bound == "quota" else 90 * MIB
    writers = start_writers(python, path, quota, max(fake_disk - most, 0), fake_disk)
    samples = []
    while any(writer.poll() is None for writer in writers):
        samples.append(disk_bytes(path))
        time.sleep(0.002)
    samples.append(disk_bytes(path))
    assert [writer.returncode for writer in writers] == [0] * NUM_WRITERS
    samples += [int(writer.stdout.read()) for writer in writers if writer.stdout]
    assert max(samples) <= most, f"{max(samples)} bytes in a cache that may have {most}"
    # Bytes being written count twice against the free disk, so simultaneous writers leave more of it.
    # Checked during the run, not at the end: the last action may be the eviction of an idle dataset.
    assert max(samples) > (0.7 if bound == "quota" else 0.4) * most, "and the room is used"
    cache = DiskCache(path, quota_bytes=quota, min_free_bytes=0)
    before = cache.used_bytes
    report = cache.verify()
    assert report.bad == 0 and report.checked == sum(use.blocks for use in cache.datasets())
    assert cache.used_bytes == before, "the accounts agree with the directory"
    assert list((path / "temp").iterdir()) == []


@pytest.mark.parametrize(("where", "served"), [("reserved", False), ("written", False), ("renamed", True)])
def test_writer_killed_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, python: Start, key_of: Callable[[object], str], where: str, served: bool
) -> None:
    cache = DiskCache(tmp_path / "cache", quota_bytes=16 * MIB, min_free_bytes=0)
    empty = cache.used_bytes
    writer = python(SLOW_WRITER, where, cache.path, key_of("a"))
    assert writer.stdout and writer.stdout.readline() == "stopped\n"
    assert cache.used_bytes > empty + 800_000, "reserved while it writes"
    alive = DiskCache(cache.path, quota_bytes=16 * MIB, min_free_bytes=0)
    assert alive.used_bytes > empty + 800_000, "and no sweep takes it from a living writer"
    writer.kill()
    writer.wait()
    swept = DiskCache(cache.path, quota_bytes=16 * MIB, min_free_bytes=0)
    block = swept.get(key_of("a"))
    assert (block is not None) == served
    assert list((cache.path / "temp").iterdir()) == []
    if served:
        assert block and block.arrays["x"].sum() == sum(range(100_000))
        assert [(use.dataset, use.blocks) for use in swept.datasets()] == [("d", 1)]
    else:
        assert swept.used_bytes == empty


def test_claim_of_a_dead_writer_is_taken_back_when_room_is_short(
    tmp_path: Path, python: Start, key_of: Callable[[object], str], block_of: Callable[..., Block]
) -> None:
    cache = DiskCache(tmp_path / "cache", quota_bytes=1200 * 1024, min_free_bytes=0)
    writer = python(SLOW_WRITER, "reserved", cache.path, key_of("a"))
    assert writer.stdout and writer.stdout.readline() == "stopped\n"
    assert cache.put(key_of("b"), "d", block_of(0, 4000)) is None, "no room beside the reservation"
    writer.kill()
    writer.wait()
    assert cache.put(key_of("b"), "d", block_of(0, 4000)), "and nobody had to open the cache again"


def test_index_lost_under_a_living_writer_keeps_its_claim(
    tmp_path: Path, python: Start, key_of: Callable[[object], str]
) -> None:
    cache = DiskCache(tmp_path / "cache", quota_bytes=16 * MIB, min_free_bytes=0)
    writer = python(SLOW_WRITER, "reserved", cache.path, key_of("a"))
    assert writer.stdout and writer.stdout.readline() == "stopped\n"
    used = cache.used_bytes
    (cache.path / "index" / "accounts.db").unlink()
    assert cache.used_bytes == used
