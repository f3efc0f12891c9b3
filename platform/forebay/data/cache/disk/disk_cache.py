"""Disk cache of blocks under a hard quota.

On one local disk, shared by all processes of a node.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from forebay.data.cache.block_file import BadBlock, block_file_bytes, map_block, read_header, write_block
from forebay.data.cache.block_key import KEY
from forebay.data.cache.disk.accounts import DatasetUse, Reservation
from forebay.data.cache.disk.directory import CacheDirectory, PartFile, local_folder, new_part
from forebay.data.cache.disk.lease import CacheLease, CacheUser, live_users, take_lease
from forebay.data.cache.disk.quota import Quota
from forebay.data.transform.block import Block
from forebay.errors import CacheUnusable, validate_type, whole_number
from forebay.runtime.metrics import Counters
from forebay.storage.atomic import NO_ROOM
from forebay.storage.file_lock import wait_lock

_SETTLED_NS = 100_000_000
"""Timestamps of files change every few milliseconds: a younger file could change and keep its timestamp."""
_MOST_ENDED = 8
"""From this number of lease files on, ended leases are added to the accounts. That changes the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Result of `DiskCache.verify`.

    Blocks `checked`, `bad` ones (moved to quarantine), and `bytes` read.
    """

    checked: int
    bad: int
    bytes: int


class DiskCache:
    """Transformed row groups in memory-mapped files below `path`.

    For any number of threads and processes.

    The directory never takes more than `quota_bytes`, including its index and unfinished files. It never leaves less
    than `min_free_bytes` of the disk free. A block that does not fit is not stored. Blocks are verified when a process
    first maps them. Pickling carries only the options, and unpickling opens the directory in the other process.

    Raises `CacheUnusable` for a quota of 0, or a directory that cannot be written or that others can write. Raises
    `InvalidOption` for a negative number of bytes.
    """

    def __init__(self, path: str | os.PathLike[str], *, quota_bytes: int, min_free_bytes: int = 1 << 30) -> None:
        validate_type("path", path, str | os.PathLike, "the folder of the cache as a text or a Path")
        self.path = local_folder(path)
        self.quota_bytes = quota_bytes = whole_number("quota_bytes", quota_bytes)
        self.min_free_bytes = min_free_bytes = whole_number("min_free_bytes", min_free_bytes)
        if quota_bytes == 0:
            raise CacheUnusable(
                f"quota_bytes=0 for the cache in {self.path}: nothing would ever fit. "
                "Set a quota above 0, or cache=None to train without a cache.",
                quota_bytes=quota_bytes,
            )
        self._open(CacheDirectory(self.path))

    @classmethod
    def of_owner(cls, path: str, *, quota_bytes: int, min_free_bytes: int) -> DiskCache:
        """Cache that the process has opened which this one works for.

        It has checked the directory and its accounts. 14 data workers that did so again waited 0.1 s for each other.
        """
        cache = cls.__new__(cls)
        cache.path, cache.quota_bytes, cache.min_free_bytes = Path(path), quota_bytes, min_free_bytes
        cache._open(CacheDirectory(cache.path), is_checked=True)  # noqa: SLF001 - its own
        cache.account_in_batches()
        return cache

    def _open(self, directory: CacheDirectory, *, is_checked: bool = False) -> None:
        self._directory = directory
        if not is_checked:
            directory.prepare()
        sizes = {"quota_bytes": self.quota_bytes, "min_free_bytes": self.min_free_bytes}
        try:
            self._quota = Quota(directory, **sizes, is_checked=is_checked)
        except FileNotFoundError as error:
            raise CacheUnusable(
                f"the cache directory {self.path} was removed while it was being opened ({error.filename} is missing). "
                "Open it again, and find the process that removes it.",
                path=str(self.path),
            ) from error
        self._verified: dict[str, tuple[int, int, int]] = {}
        self._leases: list[CacheLease] = []

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (str(self.path), self.quota_bytes, self.min_free_bytes)

    def account_in_batches(self) -> None:
        """Account for several blocks at once from now on, while there is plenty of room.

        For one of many processes that store blocks. It calls `record_stored` when it is idle and before it ends.
        """
        self._quota.reserve_ahead()

    def record_stored(self) -> None:
        """Record the stored blocks that are not yet accounted for."""
        try:
            self._quota.record_finished()
        except OSError as error:
            raise self._unusable(error) from error

    @property
    def used_bytes(self) -> int:
        """Bytes that count against the quota.

        Blocks, unfinished and quarantined files, and the index.
        """
        return self._quota.used_bytes

    def keys(self) -> list[str]:
        """Keys of the blocks in the cache, sorted.

        Takes about a second per million blocks.
        """
        return self._directory.block_keys()

    def datasets(self) -> list[DatasetUse]:
        """Blocks, bytes and hits of each dataset, oldest first."""
        self._quota.collect_ended_leases()
        hits: dict[str, int] = {}
        for user in self.users():
            hits[user.dataset] = hits.get(user.dataset, 0) + user.hits
        return [replace(use, hits=use.hits + hits.get(use.dataset, 0)) for use in self._quota.datasets()]

    def users(self) -> list[CacheUser]:
        """Lease holders in all processes of this node.

        Oldest first.
        """
        return live_users(self._directory)

    def get(self, key: str, counters: Counters | None = None, *, dataset: str | None = None) -> Block | None:
        """Map the block `key`, or return None.

        None for a missing block, and for a damaged one, which is counted and moved to quarantine.

        The hit counts for a lease of `dataset`. By default the file's header is read for its name, if there are leases
        of several datasets.
        """
        counters = counters or Counters()
        block = self.load(key, counters)
        return self._hit(key, block, counters, dataset) if block else None

    def peek(self, key: str, counters: Counters, *, dataset: str | None = None) -> Block | None:
        """Map a block that this process verified before.

        Does not read it. Counts a hit as `get` does.

        None does not mean that the block is missing: `get` decides that.
        """
        if key not in self._verified:
            return None
        with counters.timed("map_s"):
            block = self._peek(key)
        return self._hit(key, block, counters, dataset) if block else None

    def load(self, key: str, counters: Counters) -> Block | None:
        """Same as `get`, but without counting a hit.

        For a block that the same request has stored.
        """
        with counters.timed("map_s"):
            return self._load(key, counters)

    def state_of(self, key: str) -> tuple[int, int, int] | None:
        """State of the file of a block that this process has verified or written."""
        return self._verified.get(key)

    def adopt(self, key: str, state: tuple[int, int, int]) -> Block | None:
        """Map a block that a process of the same owner has just written.

        `state` is that process's `state_of`. None if the file is gone, or another one.
        """
        self._verified[key] = state
        return self._peek(key)

    def put(
        self, key: str, dataset: str, block: Block, counters: Counters | None = None, *, maps: bool = True
    ) -> Block | None:
        """Store `block` and return it mapped.

        Returns None if the quota or the disk has no room for it. Without `maps`, `block` itself is returned: a data
        worker does not use what it has stored.

        Raises `CacheUnusable` if the directory cannot be used any more.
        """
        counters = counters or Counters()
        with counters.timed("write_s"):
            stored = self._load(key, counters) or self._store(key, dataset, block, maps=maps)
        if stored:
            counters.add("stores")
            counters.add("stored_bytes", stored.nbytes)
        return stored

    @contextmanager
    def single_flight(self, key: str, deadline_s: float, cancelled: threading.Event | None = None) -> Iterator[bool]:
        """Hold the build lock of block `key`.

        Across all threads and processes.

        Waits for the current holder. Yields False, without the lock, after `deadline_s` or once `cancelled` is set.
        """
        path = self._directory.flight_lock(key)
        try:
            lock = wait_lock(path, deadline_s, cancelled=cancelled)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            yield lock is not None
        finally:
            if lock:
                lock.remove(path)

    def lease(self, dataset: str) -> CacheLease | None:
        """Protect `dataset` from eviction.

        Until the lease is released or this process ends.

        Meanwhile `users` lists it, and hits of this object are counted for the dataset. Returns None if an eviction
        of the dataset takes longer than 5 s.
        """
        try:
            if len(self._directory.user_files()) >= _MOST_ENDED:
                self._quota.collect_ended_leases()
            lease = take_lease(self._directory, dataset, listed=self._quota.is_open)
        except OSError as error:
            raise self._unusable(error) from error
        self._leases = [other for other in self._leases if other.is_held] + ([lease] if lease else [])
        return lease

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Read every block, and quarantine the damaged ones.

        Calls `progress(done, total)` after each.

        Also corrects the accounts for files that were removed by hand.
        """
        keys = self._directory.block_keys()
        bad = checked_bytes = 0
        for done, key in enumerate(keys, 1):
            counters = Counters()
            self._verified.pop(key, None)
            block = self._load(key, counters)
            bad += int(counters["quarantined"])
            checked_bytes += block.nbytes if block else 0
            if progress:
                progress(done, len(keys))
        self._quota.reconcile()
        return VerifyReport(checked=len(keys), bad=bad, bytes=checked_bytes)

    def clear(self, dataset: str | None = None) -> int:
        """Remove one dataset, or all blocks.

        Returns the bytes freed. Mapped blocks stay valid.
        """
        return self._quota.clear(dataset)

    def _load(self, key: str, counters: Counters) -> Block | None:
        path = self._directory.block(key)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        seen = _seen(found)
        try:
            block = map_block(path, key, verify=self._verified.get(key) != seen)
        except FileNotFoundError:
            return None
        except (BadBlock, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EIO:
                raise self._unusable(error) from error
            self._quarantine(key, found.st_ino, counters)
            return None
        if time.time_ns() - found.st_mtime_ns > _SETTLED_NS:
            self._verified[key] = seen
        return block

    def _peek(self, key: str) -> Block | None:
        path, seen = self._directory.block(key), self._verified.get(key)
        try:
            if seen is not None and seen == _seen(path.lstat()):
                return map_block(path, key, verify=False, size=seen[-1])
        except (BadBlock, OSError):
            pass  # `get` handles it
        return None

    def _hit(self, key: str, block: Block, counters: Counters, dataset: str | None) -> Block:
        counters.add("hits")
        counters.add("hit_bytes", block.nbytes)
        self._count_hit(key, dataset)
        return block

    def _count_hit(self, key: str, dataset: str | None) -> None:
        leases = {lease.dataset: lease for lease in self._leases if lease.is_held}
        if not leases:
            return
        try:
            # The holder of only one lease reads that dataset. With several leases, the file's header says which one.
            if dataset is None:
                dataset = next(iter(leases)) if len(leases) == 1 else read_header(self._directory.block(key)).dataset
        except (BadBlock, OSError):  # removed since it was mapped
            return
        if dataset in leases:
            leases[dataset].count_hit()

    def _quarantine(self, key: str, inode: int, counters: Counters) -> None:
        self._verified.pop(key, None)
        try:
            found = self._quota.quarantine(key, inode)
        except OSError as error:
            raise self._unusable(error) from error
        if found:
            counters.add("quarantined")

    def _store(self, key: str, dataset: str, block: Block, *, maps: bool) -> Block | None:
        assert KEY.fullmatch(key), f"{key!r} is not a block key"
        reservation = Reservation(key=key, dataset=dataset, bytes=block_file_bytes(block, key, dataset))
        try:
            part = new_part(self._directory, key, reservation.bytes)
            try:
                has_room = self._quota.reserve(part.path.name, reservation)
                return self._write(part, reservation, block, maps=maps) if has_room else None
            finally:
                part.discard()
        except OSError as error:
            if error.errno in NO_ROOM:
                return None
            raise self._unusable(error) from error

    def _write(self, part: PartFile, reservation: Reservation, block: Block, *, maps: bool) -> Block:
        with ExitStack() as undo:
            undo.callback(self._quota.release, part.path.name)
            undo.callback(part.discard)
            with part.path.open("r+b") as file:
                # No fsync: the checksum finds a block torn by a power cut before its use (ADR 0010).
                write_block(file, block, reservation.key, reservation.dataset)
            # Any later change gives the file another timestamp, however coarse the clock is. So this process need not
            # verify the block that it has just written.
            settled_ns = time.time_ns() - 2 * _SETTLED_NS
            os.utime(part.path, ns=(settled_ns, settled_ns))
            stored = map_block(part.path, reservation.key, verify=False) if maps else block
            written = _seen(part.path.lstat())
            part.path.rename(self._directory.block(reservation.key))
            undo.pop_all()
        self._quota.commit(part.path.name, reservation)
        self._verified[reservation.key] = written
        return stored

    def _unusable(self, error: OSError) -> CacheUnusable:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            remedy = "Let this process open more files (ulimit -n), or close some."
        else:
            remedy = "Is the disk healthy and writable? Name another directory, or set cache=None to train without one."
        return CacheUnusable(
            f"cache directory {self.path}: {error.strerror or error}. {remedy}",
            path=str(self.path),
        )


def _seen(found: os.stat_result) -> tuple[int, int, int]:
    """Identity of one state of a file."""
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reopen(path: str, quota_bytes: int, min_free_bytes: int) -> DiskCache:
    return DiskCache(path, quota_bytes=quota_bytes, min_free_bytes=min_free_bytes)
