"""The cache loses, damages or refuses blocks that were put into it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

from tests.soak import mounts
from tests.soak.case import CaseOutcome, fault
from tests.soak.dataset import SoakSetting, draw
from tests.soak.epoch import Seen, check, clear_error, compare, epoch
from tests.soak.faults.objects import strike_at
from tests.soak.guards import check_cache, check_quota, disk_bytes

import forebay as fb
from forebay.data.cache.disk.accounts import INDEX_BYTES
from forebay.errors import CacheUnusable


def reopened(setting: SoakSetting) -> SoakSetting:
    """The cache as another process would open it: no block has been verified yet."""
    disk = setting.disk
    return setting.with_disk(fb.DiskCache(disk.path, quota_bytes=disk.quota_bytes, min_free_bytes=0))


def blocks_of(setting: SoakSetting) -> list[Path]:
    return sorted((setting.disk.path / "blocks").glob("*.block"))


def damage(rng: random.Random, setting: SoakSetting, spoil: object) -> int:
    """Let `spoil` change the content of some blocks, in place or by putting other files in their places."""
    found = blocks_of(setting)
    doomed = rng.sample(found, rng.randint(1, len(found))) if found else []
    for path in doomed:
        try:
            stat, content = path.stat(), spoil(bytearray(path.read_bytes()))
        except FileNotFoundError:  # another process found the damage, or cleared the cache
            continue
        new = path.with_suffix(".new")
        new.write_bytes(content)
        os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        # A map of the old file stays whole: cutting a file that is mapped ends the process that reads it (SIGBUS).
        new.rename(path)
    return len(doomed)


def flip(rng: random.Random):
    def spoil(content: bytearray) -> bytearray:
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return content

    return spoil


def _damaged_epochs(rng: random.Random, folder: Path, spoil: object) -> CaseOutcome:
    """Damage blocks between epochs or during one: every damaged block is found and built again."""
    setting = draw(rng, folder, cached=True, warmth=rng.choice(["warm", "partial"]))
    if rng.random() < 0.5:
        setting = reopened(setting)
    number = rng.choice([0, rng.randrange(setting.plan.num_batches(setting.global_batch))])
    damaged = []

    def strike(step: int) -> None:
        if step == number:
            damaged.append(damage(rng, setting, spoil))

    seen = epoch(setting, strike)
    check(setting, seen)
    assert seen.counters["quarantined"] <= damaged[0]
    again = epoch(setting)
    check(setting, again)
    # A block that the first epoch already held is read by the second epoch, or not at all.
    found = seen.counters["quarantined"] + again.counters["quarantined"]
    assert number or found == damaged[0], f"{found} of {damaged[0]} damaged blocks were found"
    check_cache(setting)
    return CaseOutcome("equal")


@fault("flipped-bit-in-cache", expected="equal: each damaged block is found, set aside and built again", quick=2)
def flipped_bit(rng: random.Random, folder: Path) -> CaseOutcome:
    return _damaged_epochs(rng, folder, flip(rng))


@fault("truncated-cache-file", expected="equal, as above")
def truncated_cache_file(rng: random.Random, folder: Path) -> CaseOutcome:
    return _damaged_epochs(rng, folder, lambda content: content[: rng.randrange(len(content))])


@fault(
    "cache-deleted",
    expected="equal, or `CacheUnusable` naming the directory; works again after it is opened again",
    quick=2,
)
def cache_deleted(rng: random.Random, folder: Path) -> CaseOutcome:
    """Delete the directory, or a part of it, while it is in use."""
    setting = draw(rng, folder, cached=True)
    part = rng.choice(["", "", "blocks", "temp", "index", "locks", "quarantine"])

    def strike() -> None:
        # A worker may be adding files meanwhile.
        for _ in range(3):
            shutil.rmtree(setting.disk.path / part, ignore_errors=True)

    on_step = strike_at(rng, setting, strike)
    outcome = compare(setting, lambda: epoch(setting, on_step), CacheUnusable, names=str(setting.disk.path))
    check_cache(setting)
    return outcome


@fault("cache-cleared", expected="equal: mapped blocks stay valid, the others are built again")
def cache_cleared(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder, cached=True)
    other = reopened(setting)
    steps = {rng.randrange(setting.plan.num_batches(setting.global_batch)) for _ in range(3)}
    check(setting, epoch(setting, lambda step: other.disk.clear() if step in steps else None))
    check_cache(setting)
    return CaseOutcome("equal")


@fault("disk-full", expected="equal: blocks that do not fit are handed out uncached", quick=2)
def disk_full(rng: random.Random, folder: Path) -> CaseOutcome:
    """A tiny file system under the cache, or one that another process fills and frees meanwhile."""
    if mounts.problem():
        return CaseOutcome("skipped", mounts.problem())
    cache = folder / "cache"
    size = rng.choice([64 << 10, 400 << 10, 1 << 20])
    mounts.mount_tmpfs(cache, size)
    min_free = rng.choice([0, 0, size // 4])
    cached = rng.random() < 0.9
    setting = draw(rng, folder, cached=False, warmth="cold")
    try:
        disk = fb.DiskCache(cache, quota_bytes=64 << 20, min_free_bytes=min_free)
    except CacheUnusable as error:
        return clear_error(error, str(cache))
    setting = setting.with_disk(disk if cached else None)
    filler = cache / "somebody-elses"

    def strike(step: int) -> None:
        if step % 7 == 3:
            filler.unlink(missing_ok=True)
        elif step % 7 == 1 and rng.random() < 0.7:
            fill(filler)

    for _ in range(2):
        outcome = compare(setting, lambda: epoch(setting, strike), CacheUnusable, names=str(cache))
        filler.unlink(missing_ok=True)
    check_cache(setting)
    return outcome


def fill(path: Path) -> None:
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass


@fault("file-size-limit", expected="equal, uncached; `CacheUnusable` if not even the index may grow (EFBIG)", share=0.5)
def file_size_limit(rng: random.Random, folder: Path) -> CaseOutcome:
    import resource
    import signal

    setting = draw(rng, folder, cached=True, warmth="cold")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Room for the index and small blocks. The limit holds for this process only.
    resource.setrlimit(resource.RLIMIT_FSIZE, (rng.choice([2, 8, 64, 256]) << 10, most))
    try:
        outcome = compare(setting, lambda: epoch(setting), CacheUnusable, names=str(setting.disk.path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    check_cache(setting)
    return outcome


@fault("quota-short", expected="equal: never above the quota, at any moment")
def quota_short(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder, cached=True, quota="short")
    for _ in range(2):
        check(setting, epoch(setting, lambda step: check_quota(setting.disk)))
    check_cache(setting)
    return CaseOutcome("equal")


@fault("quota-shrunk", expected="equal: nothing more is stored while the cache is above its new quota")
def quota_shrunk(rng: random.Random, folder: Path) -> CaseOutcome:
    """The next process to open the cache sets a smaller quota, between epochs or in the middle of one."""
    setting = draw(rng, folder, cached=True, quota="enough")
    smaller = INDEX_BYTES + rng.randrange(1 << 18)
    shrunk = setting.with_disk(fb.DiskCache(setting.disk.path, quota_bytes=smaller, min_free_bytes=0))
    steps = rng.randrange(setting.plan.num_batches(setting.global_batch))
    if rng.random() < 0.5:
        seen = epoch(setting)
        check(setting, seen)
    else:
        # Two trainers with different quotas on one cache, the second one starting later.
        late: list[Seen] = []
        check(setting, epoch(setting, lambda step: late.append(epoch(shrunk)) if step == steps else None))
        for seen in late:
            check(shrunk, seen)
    blocks = setting.disk.path / "blocks"
    most = disk_bytes(blocks)
    for _ in range(2):
        check(shrunk, epoch(shrunk))
        now, total = disk_bytes(blocks), disk_bytes(setting.disk.path)
        # Above its quota it may still record its users: that room is part of every quota.
        assert total <= smaller or now <= most, f"blocks grew from {most} to {now} bytes under a quota of {smaller}"
    check_cache(setting)
    return CaseOutcome("equal")


@fault("read-only-remount", expected="equal, or `CacheUnusable` naming the directory; equal when it is writable again")
def read_only_remount(rng: random.Random, folder: Path) -> CaseOutcome:
    if mounts.problem():
        return CaseOutcome("skipped", mounts.problem())
    cache = folder / "cache"
    mounts.mount_tmpfs(cache, 64 << 20)
    setting = draw(rng, folder, cached=True)
    when = rng.choice([0, rng.randrange(setting.plan.num_batches(setting.global_batch))])
    changed = []

    def strike(step: int) -> None:
        # Refused while a file is being written. The kernel's own remount after an error is not refused.
        if step >= when and not changed and mounts.remount(cache, "ro"):
            changed.append(step)

    if not when:
        strike(0)
    outcome = compare(setting, lambda: epoch(setting, strike), CacheUnusable, names=str(cache))
    if changed:
        outcome = compare(setting, lambda: epoch(setting), CacheUnusable, names=str(cache))
        assert mounts.remount(cache, "rw")
    check_cache(setting)
    return outcome


@fault("cache-unwritable", expected="as above: the directory becomes immutable in the middle of an epoch")
def cache_unwritable(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder, cached=True)
    doomed = setting.disk.path / rng.choice(["blocks", "temp", "locks", "index", "."])
    done = []

    def strike() -> None:
        done.append(_attribute("+i", doomed))

    try:
        on_step = strike_at(rng, setting, strike)
        outcome = compare(setting, lambda: epoch(setting, on_step), CacheUnusable, names=str(setting.disk.path))
        if any(done):
            outcome = compare(setting, lambda: epoch(setting), CacheUnusable, names=str(setting.disk.path))
    finally:
        if done:
            _attribute("-i", doomed)
    if done and not done[0]:
        return CaseOutcome("skipped", "chattr +i is refused here")
    check_cache(setting)
    return outcome


def _attribute(change: str, path: Path) -> bool:
    return subprocess.run(["chattr", change, str(path)], capture_output=True, check=False).returncode == 0


@fault("descriptors-run-out", expected="equal, or a clear error; nothing is left behind", share=0.5)
def descriptors_run_out(rng: random.Random, folder: Path) -> CaseOutcome:
    """EMFILE: another part of the process holds all descriptors for a while."""
    setting = draw(rng, folder, ranks=1)
    held: list[int] = []

    def strike() -> None:
        try:
            while len(held) < 1 << 16:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for _ in range(rng.randint(0, 3)):
                os.close(held.pop())

    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        outcome = compare(setting, lambda: epoch(setting, strike_at(rng, setting, strike)), fb.ForebayError)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    check_cache(setting)
    return outcome


@fault("clock-jumps", expected="equal: deadlines do not look at the wall clock")
def clock_jumps(rng: random.Random, folder: Path) -> CaseOutcome:
    """The wall clock jumps back and forth by up to ten years at every look, while reads fail and are retried."""
    from tests.soak.strikes import Dice, reads

    setting = draw(rng, folder)
    dice = Dice(rng, 0.05, most_in_a_row=1)  # other readers come in between: a read has four attempts
    jumps, now, now_ns = random.Random(rng.random()), time.time, time.time_ns

    def jump_s() -> int:
        return jumps.choice([0, jumps.randint(-10 * 31_536_000, 10 * 31_536_000)])

    def strike(uri: str) -> None:
        if dice.hit():
            raise ConnectionResetError(104, "Connection reset by peer")

    time.time = lambda: now() + jump_s()
    time.time_ns = lambda: now_ns() + jump_s() * 1_000_000_000
    try:
        with reads(strike):
            for _ in range(2):
                check(setting, epoch(setting))
    finally:
        time.time, time.time_ns = now, now_ns
    check_cache(setting)
    return CaseOutcome("equal")
