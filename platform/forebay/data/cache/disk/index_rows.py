"""Decoding of the index rows. An invalid row means a damaged index, which is rebuilt.

Names in rows become names of files to remove, so each must have the form of a Forebay file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.data.cache.block_key import KEY
from forebay.data.cache.disk.accounts import CacheUsage, DatasetUse, Reservation
from forebay.data.cache.disk.directory import PART, QUARANTINED
from forebay.data.cache.disk.index import DamagedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEntry:
    """Row of one block."""

    dataset: str
    bytes: int


def read_usage(kept: object) -> CacheUsage:
    """Decode the accounts. Raises `DamagedRow`."""
    try:
        facts = _mapping(kept)
        usage = CacheUsage(
            datasets={name: DatasetUse(**_mapping(use)) for name, use in _mapping(facts["datasets"]).items()},
            reservations={
                name: Reservation(**_mapping(reservation))
                for name, reservation in _mapping(facts["reservations"]).items()
            },
            quarantined=_mapping(facts["quarantined"]),
        )
    except (KeyError, TypeError) as error:
        raise DamagedRow(f"the accounts are invalid: {error!r:.200}") from error
    whole = [size for use in usage.datasets.values() for size in (use.blocks, use.bytes, use.hits)]
    whole += [each.bytes for each in usage.reservations.values()] + list(usage.quarantined.values())
    forms = [
        all(map(_is_count, whole)),
        all(name == use.dataset and _is_time(use.created_at) for name, use in usage.datasets.items()),
        all(PART.fullmatch(name) and _is_reservation(each) for name, each in usage.reservations.items()),
        all(map(QUARANTINED.fullmatch, usage.quarantined)),
    ]
    if not all(forms):
        raise DamagedRow(f"the accounts are invalid: {kept!r:.200}")
    return usage


def read_entry(kept: object) -> BlockEntry:
    """Decode the row of a block. Raises `DamagedRow`."""
    try:
        entry = BlockEntry(**_mapping(kept))
    except TypeError as error:
        raise DamagedRow(f"the row of a block is invalid: {error!r:.200}") from error
    if not isinstance(entry.dataset, str) or not _is_count(entry.bytes):
        raise DamagedRow(f"the row of a block is invalid: {kept!r:.200}")
    return entry


def read_key(name: str) -> str:
    """Check the key of a block. Raises `DamagedRow`."""
    if not KEY.fullmatch(name):
        raise DamagedRow(f"{name!r:.100} is not a block key")
    return name


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.100} is not a mapping")
    return value


def _is_reservation(found: Reservation) -> bool:
    return isinstance(found.key, str) and bool(KEY.fullmatch(found.key)) and isinstance(found.dataset, str)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
