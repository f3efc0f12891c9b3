"""Transactions over the cache's files and their accounts."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from forebay.data.cache.block_file import BadBlock, read_header
from forebay.data.cache.disk.accounts import IndexTables, Reservation
from forebay.data.cache.disk.allowance import ALLOWANCE
from forebay.data.cache.disk.directory import CacheDirectory
from forebay.storage.file_lock import try_lock

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KEPT_QUARANTINED = 8


class CacheTransaction:
    """Accounts (`tables`) and the files they describe, during one transaction."""

    def __init__(self, tables: IndexTables, directory: CacheDirectory) -> None:
        self.tables = tables
        self._directory = directory
        self._boot = tables.boot()
        if self._boot is None:
            self.reconcile()

    def record(self, reservation: Reservation) -> None:
        """Record a block's file after its rename."""
        key = reservation.key
        try:
            size = self._directory.block(key).stat().st_size
        except FileNotFoundError:  # cleared or quarantined meanwhile
            return
        self.tables.remove_block(key)
        dataset = reservation.dataset or self._dataset_of(key)
        self.tables.add_block(Reservation(key=key, dataset=dataset, bytes=size), time.time())

    def record_part(self, name: str, reservation: Reservation) -> None:
        """Record a block whose part file `name` was renamed to it."""
        self.tables.release(name)
        self.record(reservation)

    def evict(self, dataset: str) -> int:
        """Remove the blocks of `dataset`. Returns their bytes."""
        keys, freed = self.tables.remove_dataset(dataset)
        for key in keys:
            self._directory.block(key).unlink(missing_ok=True)
        return freed

    def quarantine(self, key: str, inode: int) -> bool:
        """Move the block to quarantine.

        Returns False if its file no longer has `inode`.
        """
        path = self._directory.block(key)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return False
        if found.st_ino != inode:
            return False
        name = f"{time.time_ns():020d}-{key}"
        self.tables.remove_block(key)  # first: if this finds the index damaged, the whole transaction is repeated
        path.rename(self._directory.quarantine / name)
        self.tables.quarantine(name, found.st_size)
        while len(self.tables.quarantined()) > _KEPT_QUARANTINED:
            self.drop_oldest_quarantined()
        return True

    def drop_oldest_quarantined(self) -> int:
        """Remove the oldest quarantined file. Returns its bytes."""
        files = self.tables.quarantined()
        name = min(files)
        with suppress(IsADirectoryError):  # a folder with the name of a block
            (self._directory.quarantine / name).unlink(missing_ok=True)
        self.tables.remove_quarantined(name)
        return files[name]

    def release_dead_writers(self) -> None:
        """Release the reservations of dead writers.

        Removes their unfinished files.
        """
        reservations = self.tables.reservations()
        is_recount = False
        for name in {*self._directory.parts(), *reservations}:
            part = self._directory.temp / name
            try:
                lock = try_lock(part, flags=0)
                if lock is None:
                    continue
                part.unlink(missing_ok=True)
                lock.release()
            except FileNotFoundError:
                pass
            if reservation := reservations.get(name):
                # The writer may have died after the rename: then the block is complete, and only its row is missing.
                self.record_part(name, reservation)
                is_recount |= reservation.key == ALLOWANCE
        if is_recount:
            self._recount_blocks()

    def check_on_open(self) -> None:
        """Correct the accounts when a cache is opened.

        For changes while no process had it open.
        """
        self.release_dead_writers()
        self._directory.remove_ended_flights()
        # The index is not synced to the disk: a power cut may have undone its last changes.
        usage = self.tables.usage()
        is_ahead = any(each.key == ALLOWANCE for each in usage.reservations.values())
        if self._boot != _boot() or (len(self._directory.block_keys()) != usage.num_blocks and not is_ahead):
            self.reconcile()

    def reconcile(self) -> None:
        """Rebuild the accounts from the directory."""
        self._boot = _boot()
        self.tables.set_boot(self._boot)
        known = self.tables.reservations()
        for name, size in self._directory.parts().items():
            if name not in known:
                self.tables.reserve(name, Reservation(key=name[:40], dataset="", bytes=size))
        for name in self.tables.quarantined():
            self.tables.remove_quarantined(name)
        for name, size in self._directory.quarantined().items():
            self.tables.quarantine(name, size)
        self._recount_blocks()
        self.release_dead_writers()

    def _recount_blocks(self) -> None:
        created_at = {name: use.created_at for name, use in self.tables.datasets().items()}
        self.tables.replace_blocks(self._found_blocks(created_at), created_at)

    def _found_blocks(self, created_at: dict[str, float]) -> list[Reservation]:
        """Blocks in the directory.

        Adds the age of the first one of a new dataset to `created_at`.
        """
        datasets, blocks = self.tables.block_datasets(), []
        for key in self._directory.block_keys():
            dataset = datasets[key] if key in datasets else self._dataset_of(key)
            found = self._directory.block(key).stat()
            created_at.setdefault(dataset, found.st_mtime)
            blocks.append(Reservation(key=key, dataset=dataset, bytes=found.st_size))
        return blocks

    def _dataset_of(self, key: str) -> str:
        try:
            return read_header(self._directory.block(key)).dataset
        except BadBlock:
            return "unknown"


def _boot() -> str:
    """Id of the machine's current boot.

    Empty if the system has none.
    """
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
