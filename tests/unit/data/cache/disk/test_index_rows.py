"""Rows of the index: written rows read back equal. Any other row is damage, from which the index recovers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forebay.data.cache.disk.accounts import CacheUsage, Reservation
from forebay.data.cache.disk.directory import CacheDirectory
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.disk.index import DamagedRow, Index
from forebay.data.cache.disk.index_rows import read_entry, read_key, read_usage
from forebay.data.transform.block import Block

KEY = "ab" * 20
PART = f"{KEY}-100-{'c' * 16}.part"
QUARANTINED = f"{'1' * 20}-{KEY}"


def kept() -> Any:
    """Accounts as decoded from JSON."""
    reservation = Reservation(key=KEY, dataset="clicks", bytes=100)
    usage = CacheUsage(quarantined={QUARANTINED: 5}).add(reservation, 1.5).reserve(PART, reservation)
    return json.loads(json.dumps(asdict(usage)))


def test_what_was_written_is_read() -> None:
    assert asdict(read_usage(kept())) == kept()
    assert read_entry({"dataset": "clicks", "bytes": 7}).bytes == 7
    assert read_key(KEY) == KEY


def nowhere(facts: Any, *path: str, value: Any) -> Any:
    holder = facts
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value
    return facts


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("datasets",), []),
        (("datasets", "clicks"), None),
        (("datasets", "clicks", "bytes"), -1),
        (("datasets", "clicks", "bytes"), True),
        (("datasets", "clicks", "blocks"), "1"),
        (("datasets", "clicks", "dataset"), "others"),
        (("datasets", "clicks", "created_at"), "today"),
        (("datasets", "clicks", "created_at"), float("nan")),
        (("datasets", "clicks", "more"), 1),
        (("reservations", PART, "key"), "../../x"),
        (("reservations", "../../x"), {"key": KEY, "dataset": "clicks", "bytes": 1}),
        (("quarantined", "../../x"), 5),
        (("quarantined", QUARANTINED), 1.5),
        (("quarantined", QUARANTINED), 1 << 70),
    ],
)
def test_accounts_that_are_invalid(path: tuple[str, ...], value: object) -> None:
    with pytest.raises(DamagedRow, match="the accounts are invalid"):
        read_usage(nowhere(kept(), *path, value=value))


@pytest.mark.parametrize("found", [None, 5, [], {}, {"datasets": {}}])
def test_no_accounts_at_all(found: object) -> None:
    with pytest.raises(DamagedRow):
        read_usage(found)


@pytest.mark.parametrize("found", [None, 5, {}, {"dataset": 1, "bytes": 1}, {"dataset": "a", "bytes": -1}])
def test_block_rows_that_make_no_sense(found: object) -> None:
    with pytest.raises(DamagedRow, match="row of a block"):
        read_entry(found)


@pytest.mark.parametrize("name", ["", "../x", KEY.upper(), KEY + "0", KEY + "\n"])
def test_names_that_are_no_keys(name: str) -> None:
    with pytest.raises(DamagedRow, match="is not a block key"):
        read_key(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("usage", 5), ("usage", {"datasets": {}}), (f"block/{KEY}", [1]), ("block/../x", {"dataset": "a", "bytes": 1})],
)
def test_the_cache_rebuilds_its_index_from_the_blocks(
    tmp_path: Path, block_of: Callable[..., Block], name: str, value: object
) -> None:
    cache = DiskCache(tmp_path, quota_bytes=16 << 20, min_free_bytes=0)
    cache.put(KEY, "clicks", block_of())
    before = cache.datasets()
    Index(tmp_path / "index", tmp_path / "locks" / "index").transact(lambda rows: rows.set(name, value))
    cache.verify()
    assert [(use.dataset, use.blocks, use.bytes) for use in cache.datasets()] == [
        (use.dataset, use.blocks, use.bytes) for use in before
    ]
    assert cache.clear("clicks") == before[0].bytes
    assert not CacheDirectory(cache.path).block(KEY).exists()
