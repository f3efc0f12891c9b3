"""Changes of the cache's files together with their accounts, within one transaction of the index."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from forebay.data.cache.block_file import BadBlock, read_header
from forebay.data.cache.disk.accounts import CacheUsage, Reservation
from forebay.data.cache.disk.directory import CacheDirectory
from forebay.data.cache.disk.index import DamagedRow, IndexTable
from forebay.data.cache.disk.index_rows import read_entry, read_key, read_usage
from forebay.storage.file_lock import try_lock

_USAGE = "usage"
_BLOCK = "block/"
_BOOT = "boot"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KEPT_QUARANTINED = 8


class CacheTransaction:
    """Accounts (`usage`) and the files they describe, during one transaction."""

    def __init__(self, rows: IndexTable, directory: CacheDirectory) -> None:
        self._rows = rows
        self._directory = directory
        kept = rows.get(_USAGE)
        self.usage = CacheUsage() if kept is None else read_usage(kept)
        if kept is None:
            self.reconcile()

    def save(self) -> None:
        self._rows.set(_USAGE, asdict(self.usage))

    def record(self, reservation: Reservation) -> None:
        """Record the file of a block after its rename to the final name."""
        try:
            size = self._directory.block(reservation.key).stat().st_size
        except FileNotFoundError:  # cleared or quarantined meanwhile
            return
        self._forget(reservation.key)
        found = Reservation(
            key=reservation.key, dataset=reservation.dataset or self._dataset_of(reservation.key), bytes=size
        )
        self._rows.set(_BLOCK + reservation.key, {"dataset": found.dataset, "bytes": size})
        self.usage = self.usage.add(found, time.time())

    def evict(self, dataset: str) -> int:
        """Remove the blocks of `dataset`. Returns their bytes."""
        for key in self._keys():
            if read_entry(self._rows.get(_BLOCK + key)).dataset == dataset:
                self._directory.block(key).unlink(missing_ok=True)
                self._rows.delete(_BLOCK + key)
        freed = self.usage.datasets[dataset].bytes
        self.usage = self.usage.without_dataset(dataset)
        return freed

    def quarantine(self, key: str, inode: int) -> bool:
        """Move the block to quarantine. Returns False if its file is no longer the one with `inode`."""
        path = self._directory.block(key)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return False
        if found.st_ino != inode:
            return False
        name = f"{time.time_ns():020d}-{key}"
        self._forget(key)  # first: if this finds the index damaged, the whole transaction is repeated
        path.rename(self._directory.quarantine / name)
        self.usage = self.usage.with_quarantined({**self.usage.quarantined, name: found.st_size})
        while len(self.usage.quarantined) > _KEPT_QUARANTINED:
            self.drop_oldest_quarantined()
        return True

    def drop_oldest_quarantined(self) -> int:
        name = min(self.usage.quarantined)
        with suppress(IsADirectoryError):  # a folder in the place of a block
            (self._directory.quarantine / name).unlink(missing_ok=True)
        rest = {other: size for other, size in self.usage.quarantined.items() if other != name}
        freed = self.usage.quarantined[name]
        self.usage = self.usage.with_quarantined(rest)
        return freed

    def release_dead_writers(self) -> None:
        """Release the reservations of dead writers, and remove their unfinished files."""
        for name in {*self._directory.parts(), *self.usage.reservations}:
            part = self._directory.temp / name
            try:
                lock = try_lock(part, flags=0)
                if lock is None:
                    continue
                part.unlink(missing_ok=True)
                lock.release()
            except FileNotFoundError:
                pass
            if reservation := self.usage.reservations.get(name):
                self.usage = self.usage.release(name)
                # The writer may have died after the rename: then the block is complete, and only its row is missing.
                self.record(reservation)

    def check_on_open(self) -> None:
        """Correct the accounts for changes while no process had the cache open."""
        self.release_dead_writers()
        # The index is not synced to the disk: a power cut may have undone its last changes.
        if self._rows.get(_BOOT) != _boot() or self.num_files() != self.usage.num_blocks:
            self.reconcile()

    def reconcile(self) -> None:
        """Rebuild the accounts from the directory."""
        self._rows.set(_BOOT, _boot())
        reservations = dict(self.usage.reservations)
        for name, size in self._directory.parts().items():
            reservations.setdefault(name, Reservation(key=name[:40], dataset="", bytes=size))
        known = set(self._keys())
        entries = {key: read_entry(self._rows.get(_BLOCK + key)) for key in known}
        earlier = self.usage.datasets
        created = {dataset: use.created_at for dataset, use in earlier.items()}
        self.usage = CacheUsage(reservations=reservations, quarantined=self._directory.quarantined())
        for key in self._directory.block_keys():
            dataset = entries[key].dataset if key in entries else self._dataset_of(key)
            self._add_found(key, dataset, created)
            known.discard(key)
        for key in known:
            self._rows.delete(_BLOCK + key)
        self.usage = self.usage.add_hits({dataset: use.hits for dataset, use in earlier.items()})
        self.release_dead_writers()

    def num_files(self) -> int:
        return len(self._directory.block_keys())

    def _add_found(self, key: str, dataset: str, created: dict[str, float]) -> None:
        found = self._directory.block(key).stat()
        since = created.setdefault(dataset, found.st_mtime)
        self._rows.set(_BLOCK + key, {"dataset": dataset, "bytes": found.st_size})
        self.usage = self.usage.add(Reservation(key=key, dataset=dataset, bytes=found.st_size), since)

    def _forget(self, key: str) -> None:
        kept = self._rows.get(_BLOCK + key)
        if kept is None:
            return
        entry = read_entry(kept)
        use = self.usage.datasets.get(entry.dataset)
        if use is None or use.bytes < entry.bytes or use.blocks < 1:
            raise DamagedRow(f"the accounts do not know block {key} of {entry.dataset!r:.100}")
        self.usage = self.usage.remove(Reservation(key=key, dataset=entry.dataset, bytes=entry.bytes))
        self._rows.delete(_BLOCK + key)

    def _keys(self) -> list[str]:
        """Keys of all blocks that have a row."""
        return [read_key(name[len(_BLOCK) :]) for name in list(self._rows.names()) if name.startswith(_BLOCK)]

    def _dataset_of(self, key: str) -> str:
        try:
            return read_header(self._directory.block(key)).dataset
        except BadBlock:
            return "unknown"


def _boot() -> str:
    """Id of the machine's current boot. Empty if the system has none."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
