"""Quota of a cache directory.

Reservations and evictions, decided in transactions over all processes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TypeVar

from forebay.data.cache.disk.accounts import INDEX_BYTES, CacheUsage, DatasetUse, Reservation, charge, smallest_quota
from forebay.data.cache.disk.allowance import ALLOWANCE, Allowance, allowance_bytes
from forebay.data.cache.disk.directory import CacheDirectory, new_part
from forebay.data.cache.disk.index import Index, IndexFull
from forebay.data.cache.disk.lease import ended_users
from forebay.data.cache.disk.transaction import CacheTransaction
from forebay.errors import CacheUnusable
from forebay.storage.file_lock import try_lock

T = TypeVar("T")

_PLENTY = 16
"""An allowance is reserved where this many of its size fit."""


class Quota:
    """Disk quota of a cache directory.

    Keeps everything below it within `quota_bytes`, and `min_free_bytes` of the disk free.

    A writer reserves a block's bytes before it writes them. Reservations of dead writers are released when the cache is
    opened, and whenever room is short. No block replaces one of its own dataset or of a dataset in use: each row is
    read once per epoch, so replacing would only thrash (CoorDL's MinIO, https://arxiv.org/abs/2007.06775).

    `is_checked`: another process has the directory open, and has corrected its accounts.
    """

    def __init__(
        self, directory: CacheDirectory, *, quota_bytes: int, min_free_bytes: int, is_checked: bool = False
    ) -> None:
        self._directory = directory
        self._quota_bytes = quota_bytes
        self._min_free_bytes = min_free_bytes
        self._index = Index(directory.index, directory.locks / "index", is_made=is_checked)
        self._allowance: Allowance | None = None
        # A quota that the index alone would exceed leaves the directory empty.
        self._open = quota_bytes >= smallest_quota(1) or self._index.file.exists()
        if self._open and not is_checked:
            with suppress(IndexFull):  # the first reservation finds the disk full as well
                self._change(CacheTransaction.check_on_open)

    @property
    def used_bytes(self) -> int:
        """Bytes that count against the quota.

        An upper bound of the disk space of the directory.
        """
        return self._change_or_raise(lambda transaction: transaction.tables.usage().used_bytes) if self._open else 0

    def datasets(self) -> list[DatasetUse]:
        """Usage of each dataset, oldest first."""
        found = self._change_or_raise(lambda transaction: transaction.tables.datasets()) if self._open else {}
        return sorted(found.values(), key=lambda use: (use.created_at, use.dataset))

    def reserve(self, name: str, reservation: Reservation) -> bool:
        """Reserve room for the part file `name`.

        The file exists and is locked. Returns False without room.
        """
        if smallest_quota(reservation.bytes) > self._quota_bytes:
            return False
        if ahead := self._allowance:
            with ahead.lock:
                if ahead.take(name, reservation):
                    return True
                self._renew(ahead, charge(reservation.bytes))
                if ahead.take(name, reservation):
                    return True
        return self._reserve(name, reservation)

    def reserve_ahead(self) -> None:
        """Reserve for several blocks at once from now on, while there is plenty of room.

        Finished blocks count as reserved until `record_finished`, which also releases what is left.
        """
        self._allowance = self._allowance or Allowance()

    def record_finished(self) -> None:
        """Record the blocks that were finished since the last transaction."""
        if ahead := self._allowance:
            with ahead.lock:
                if ahead.part:
                    self._renew(ahead, 0)

    def commit(self, name: str, reservation: Reservation) -> None:
        """Record a finished block.

        Its part file `name` was renamed to the block's file.
        """
        if self._allowance is None or not self._allowance.finish(name, reservation):
            self._change_if_possible(lambda transaction: transaction.record_part(name, reservation))

    def release(self, name: str) -> None:
        """Release the reservation of a removed part file.

        Does nothing without one.
        """
        if self._allowance is None or not self._allowance.give_back(name):
            self._change_if_possible(lambda transaction: transaction.tables.release(name))

    def quarantine(self, key: str, inode: int) -> bool:
        """Move a damaged block to quarantine.

        Returns False if its file was removed or replaced meanwhile.
        """
        try:
            return self._change(lambda transaction: transaction.quarantine(key, inode))
        except IndexFull:
            return not self._directory.block(key).exists()  # moved; still recorded as a block

    def clear(self, dataset: str | None) -> int:
        """Remove the blocks of `dataset`.

        None: all blocks and quarantined files. Returns the bytes freed.

        Raises `CacheUnusable` if the disk is too full for the index to change.
        """

        def work(transaction: CacheTransaction) -> int:
            transaction.reconcile()
            doomed = [name for name in transaction.tables.datasets() if dataset in (None, name)]
            freed = sum(transaction.evict(name) for name in doomed)
            while dataset is None and transaction.tables.quarantined():
                freed += transaction.drop_oldest_quarantined()
            return freed

        return self._change_or_raise(work) if self._open else 0

    def reconcile(self) -> None:
        """Correct the accounts to match the directory."""
        if self._open:
            self._change_or_raise(CacheTransaction.reconcile)

    @property
    def is_open(self) -> bool:
        """Whether the quota has room for index and leases."""
        return self._open

    def collect_ended_leases(self) -> None:
        """Add the hits of ended leases to the accounts.

        Also of dead processes. Removes their files.
        """
        with suppress(IndexFull), ended_users(self._directory) as ended:
            hits: dict[str, int] = {}
            for user in ended:
                hits[user.dataset] = hits.get(user.dataset, 0) + user.hits
            if self._open and any(hits.values()):
                self._change(lambda transaction: transaction.tables.add_hits(hits))

    def _change_or_raise(self, work: Callable[[CacheTransaction], T]) -> T:
        """Same as `_change`, for calls that a user makes.

        Raises `CacheUnusable` on a full disk.
        """
        try:
            return self._change(work)
        except IndexFull as error:
            raise CacheUnusable(
                f"cache directory {self._directory.root}: its disk is full, so that the index cannot change. Free some "
                f"of the disk, or remove the files in {self._directory.blocks}.",
                path=str(self._directory.root),
            ) from error

    def _change(self, work: Callable[[CacheTransaction], T]) -> T:
        self._open = True
        return self._index.transact(lambda tables: work(CacheTransaction(tables, self._directory)))

    def _change_if_possible(self, work: Callable[[CacheTransaction], None]) -> None:
        with suppress(
            IndexFull
        ):  # the part file was removed, so the next sweep releases the reservation in the same way
            self._change(work)

    def _reserve(self, name: str, reservation: Reservation) -> bool:
        def work(transaction: CacheTransaction) -> bool:
            room = self._make_room(transaction, reservation)
            if room:
                transaction.tables.reserve(name, reservation)
            return room

        try:
            return self._change(work)
        except IndexFull:
            return False

    def _renew(self, allowance: Allowance, needed: int) -> None:
        """Record finished blocks, and reserve `needed` bytes and more, if there is plenty of room."""
        writing = sum(allowance.writing.values())
        ahead = needed + allowance_bytes(self._quota_bytes) if needed else 0
        part = new_part(self._directory, ALLOWANCE, writing + ahead) if writing + ahead else None

        def work(transaction: CacheTransaction) -> int:
            for name, finished in allowance.finished:
                transaction.record_part(name, finished)
            if allowance.part:
                transaction.tables.release(allowance.part.path.name)
            # What this process is writing counts too: its allowance was released above.
            plenty = Reservation(key=ALLOWANCE, dataset="", bytes=writing + _PLENTY * ahead)
            left = ahead if ahead and self._missing(transaction.tables.usage(), plenty) <= 0 else 0
            if part and writing + left:
                held = Reservation(key=ALLOWANCE, dataset="", bytes=writing + left)
                transaction.tables.reserve(part.path.name, held)
            return left

        with ExitStack() as undo:
            if part:
                undo.callback(part.discard)
            try:
                left = self._change(work)
            except IndexFull:
                return
            undo.pop_all()
        if allowance.part:
            allowance.part.discard()
        if part and not writing + left:
            part.discard()
            part = None
        allowance.finished, allowance.left, allowance.part = [], left, part

    def _make_room(self, transaction: CacheTransaction, reservation: Reservation) -> bool:
        tables = transaction.tables
        if self._missing(tables.usage(), reservation) <= 0:
            return True
        transaction.release_dead_writers()
        while (usage := tables.usage()).quarantined and self._missing(usage, reservation) > 0:
            transaction.drop_oldest_quarantined()
        missing = self._missing(tables.usage(), reservation)
        if missing > 0:
            self._evict(transaction, missing, keep=reservation.dataset)
        return self._missing(tables.usage(), reservation) <= 0

    def _evict(self, transaction: CacheTransaction, missing: int, keep: str) -> None:
        """Remove unused datasets, oldest first.

        Only if they hold at least the `missing` bytes.
        """
        with ExitStack() as locks:
            unused = []
            for use in sorted(transaction.tables.datasets().values(), key=lambda use: use.created_at):
                lock = try_lock(self._directory.use_lock(use.dataset)) if use.dataset != keep else None
                if lock:
                    unused.append(use)
                    locks.enter_context(lock)
            if sum(use.bytes for use in unused) < missing:
                return
            for use in unused:
                if missing > 0:
                    missing -= transaction.evict(use.dataset)

    def _missing(self, usage: CacheUsage, reservation: Reservation) -> int:
        """Bytes to free before `reservation` fits.

        0 or less if it fits.
        """
        over_quota = usage.used_bytes + charge(reservation.bytes) - self._quota_bytes
        # During a transaction, a change of the index needs disk space too.
        free = shutil.disk_usage(self._directory.root).free - usage.reserved_bytes - INDEX_BYTES
        return max(over_quota, self._min_free_bytes - (free - charge(reservation.bytes)))
