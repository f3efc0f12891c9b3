"""Accounts: used bytes follow from blocks, reservations and quarantined files.

Sums of the tables follow from additions and removals. Any other value is damage, which is rebuilt.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.data.cache.disk.accounts import (
    SCHEMA,
    CacheUsage,
    DamagedRow,
    DatasetUse,
    IndexTables,
    Reservation,
    charge,
    smallest_quota,
    whole_pages,
)
from forebay.data.cache.disk.directory import CacheDirectory
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.block import Block

KEY = "ab" * 20
PART = f"{KEY}-100-{'c' * 16}.part"
QUARANTINED = f"{'1' * 20}-{KEY}"

blocks_of_datasets = st.lists(
    st.builds(
        Reservation,
        key=st.text("0123456789abcdef", min_size=40, max_size=40),
        dataset=st.sampled_from(["a", "b", "c"]),
        bytes=st.integers(0, 1 << 40),
    ),
    unique_by=lambda block: block.key,
)


def connect(path: Path | str = ":memory:") -> sqlite3.Connection:
    """Tables of an index, read as the index does."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.text_factory = bytes
    return connection


@pytest.fixture
def connection() -> Any:
    with closing(connect()) as found:
        for table in SCHEMA:
            found.execute(table)
        yield found


@pytest.fixture
def tables(connection: sqlite3.Connection) -> IndexTables:
    """A row in each table."""
    tables = IndexTables(connection)
    tables.set_boot("b00t")
    tables.add_block(Reservation(key=KEY, dataset="clicks", bytes=100), 1.5)
    tables.reserve(PART, Reservation(key=KEY, dataset="clicks", bytes=100))
    tables.quarantine(QUARANTINED, 5)
    return tables


def test_what_was_written_is_read(tables: IndexTables) -> None:
    use, usage = tables.datasets()["clicks"], tables.usage()
    assert (use.dataset, use.blocks, use.bytes, use.created_at, use.hits) == ("clicks", 1, 4096, 1.5, 0)
    assert usage.used_bytes == CacheUsage().used_bytes + charge(100) + charge(100) + charge(5)
    assert usage.reservations == {PART: Reservation(key=KEY, dataset="clicks", bytes=100)}
    assert (tables.boot(), usage.quarantined, tables.block_datasets()) == ("b00t", {QUARANTINED: 5}, {KEY: "clicks"})
    tables.add_hits({"clicks": 3, "others": 1})
    tables.release(PART)
    tables.release(PART)
    tables.remove_quarantined(QUARANTINED)
    assert tables.usage() == CacheUsage(datasets=tables.datasets())
    assert {name: use.hits for name, use in tables.datasets().items()} == {"clicks": 3}
    tables.add_block(Reservation(key="0" * 40, dataset="clicks", bytes=1), 9.0)
    assert tables.datasets()["clicks"].created_at == 1.5, "a dataset has the age of its first block"
    keys, freed = tables.remove_dataset("clicks")
    assert (sorted(keys), freed, tables.datasets()) == (["0" * 40, KEY], 8192, {})


@given(blocks_of_datasets, st.randoms())
def test_what_was_added_can_be_removed(blocks: list[Reservation], random: Random) -> None:
    with closing(connect()) as connection:
        for table in SCHEMA:
            connection.execute(table)
        tables = IndexTables(connection)
        empty = tables.usage()
        for block in blocks:
            tables.add_block(block, 1.0)
        added = tables.usage()
        assert added.num_blocks == len(blocks)
        assert added.used_bytes == empty.used_bytes + sum(charge(block.bytes) for block in blocks)
        tables.replace_blocks(blocks, dict.fromkeys("abc", 1.0))
        assert tables.usage() == added, "the sums are those of all blocks"
        random.shuffle(blocks)
        for block in blocks:
            tables.remove_block(block.key)
            tables.remove_block(block.key)
        assert tables.usage() == empty


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("datasets SET bytes", -1),
        ("datasets SET bytes", 1 << 62),
        ("datasets SET bytes", 1.5),
        ("datasets SET blocks", "many"),
        ("datasets SET hits", b"x"),
        ("datasets SET name", b"\xff"),
        ("datasets SET created_at", "today"),
        ("datasets SET created_at", -1.0),
        ("datasets SET created_at", float("inf")),
        ("reservations SET key", "../../x"),
        ("reservations SET name", "../../x"),
        ("reservations SET bytes", 1.5),
        ("quarantined SET name", "../../x"),
        ("quarantined SET bytes", 1.5),
        ("quarantined SET bytes", -(1 << 63)),
    ],
)
def test_accounts_that_are_invalid(
    connection: sqlite3.Connection, tables: IndexTables, change: str, value: object
) -> None:
    connection.execute(f"UPDATE {change} = ?", (value,))
    with pytest.raises(DamagedRow):
        tables.usage()


@pytest.mark.parametrize("name", ["", "../x", KEY.upper(), KEY + "0", KEY + "\n", b"\xff", 5.5])
def test_names_that_do_not_become_files(connection: sqlite3.Connection, tables: IndexTables, name: object) -> None:
    connection.execute("UPDATE blocks SET key = ?", (name,))
    for use in (tables.block_datasets, lambda: tables.remove_dataset("clicks")):
        with pytest.raises(DamagedRow):
            use()


@pytest.mark.parametrize(
    "change", ["bytes = -1", "bytes = 'x'", "bytes = 8192", "dataset = 'others'", "dataset = x'ff'"]
)
def test_blocks_that_do_not_fit_their_dataset(connection: sqlite3.Connection, tables: IndexTables, change: str) -> None:
    connection.execute(f"UPDATE blocks SET {change}")
    with pytest.raises(DamagedRow):
        tables.remove_block(KEY)


def test_a_dataset_of_more_blocks_than_rows(connection: sqlite3.Connection, tables: IndexTables) -> None:
    connection.execute("UPDATE blocks SET dataset = 'others'")
    with pytest.raises(DamagedRow, match="has 0 rows for 1 blocks"):
        tables.remove_dataset("clicks")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE datasets SET bytes = 'x'",
        "DELETE FROM datasets",
        "DELETE FROM boots",
        "UPDATE blocks SET key = '../x'",
        "UPDATE blocks SET bytes = -1",
        "INSERT INTO reservations VALUES ('../x', 'x', 'x', 1)",
    ],
)
def test_the_cache_rebuilds_its_index_from_the_blocks(
    tmp_path: Path, block_of: Callable[..., Block], change: str
) -> None:
    cache = DiskCache(tmp_path, quota_bytes=16 << 20, min_free_bytes=0)
    cache.put(KEY, "clicks", block_of())
    before = cache.datasets()
    with closing(connect(tmp_path / "index" / "accounts.db")) as connection:
        connection.execute(change)
    cache.verify()
    assert [(use.dataset, use.blocks, use.bytes) for use in cache.datasets()] == [
        (use.dataset, use.blocks, use.bytes) for use in before
    ]
    assert cache.clear("clicks") == before[0].bytes
    assert not CacheDirectory(cache.path).block(KEY).exists()


sizes = st.lists(st.integers(0, 1 << 40))


def use_of(found: list[int]) -> DatasetUse:
    return DatasetUse(dataset="a", blocks=len(found), bytes=sum(map(whole_pages, found)), created_at=1.0)


@given(sizes, sizes, sizes)
def test_everything_below_the_directory_is_charged(
    blocks: list[int], reserved: list[int], quarantined: list[int]
) -> None:
    reservations = {
        str(number): Reservation(key="0" * 40, dataset="a", bytes=size) for number, size in enumerate(reserved)
    }
    files = {str(number): size for number, size in enumerate(quarantined)}
    usage = CacheUsage(datasets={"a": use_of(blocks)}, reservations=reservations, quarantined=files)
    assert usage.num_blocks == len(blocks)
    assert usage.reserved_bytes == sum(map(charge, reserved))
    assert usage.used_bytes == CacheUsage().used_bytes + sum(map(charge, [*blocks, *reserved, *quarantined]))


def test_a_block_costs_the_same_reserved_and_stored() -> None:
    reservation = Reservation(key="0" * 40, dataset="a", bytes=5000)
    assert (
        CacheUsage(reservations={"x": reservation}).used_bytes
        == CacheUsage(datasets={"a": use_of([5000])}).used_bytes
        == smallest_quota(5000)
    )


def test_whole_pages_are_charged() -> None:
    assert charge(1) == charge(4096) < charge(4097)
