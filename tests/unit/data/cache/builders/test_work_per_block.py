"""Work that one block costs, counted: reads of its file, changes of the index, memory. A second copy of a block fails.

Bytes written and read by an epoch are counted in `tests/unit/bench/test_loader.py`.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tests.unit.runtime.memory.counting_pool import CountingPool

import forebay as fb
from forebay.data.cache.builders.block_builder import BlockBuilder
from forebay.data.cache.disk.accounts import IndexTables
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.disk.index import Index
from forebay.data.parquet import reading
from forebay.data.transform.dataset import Dataset
from forebay.runtime.memory import pool as memory_pool
from forebay.runtime.memory.pool import BufferPool
from forebay.runtime.metrics import Counters

COLUMNS = 16
ROWS = 16_384
ROW_GROUPS = 4
BLOCK_BYTES = 4 * COLUMNS * ROWS


class ReadsCountedFile:
    """Open file that counts its reads in `done`."""

    def __init__(self, file: pa.NativeFile, done: Counter[str]) -> None:
        self._file, self._done = file, done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_buffer(self, nbytes: int) -> pa.Buffer:
        """Bytes from the position on."""
        self._done["page reads"] += 1
        self._done["page bytes"] += nbytes
        return self._file.read_buffer(nbytes)

    def readinto(self, target: NDArray[np.uint8]) -> int:
        """Fill `target` with the bytes from the position on."""
        self._done["page reads"] += 1
        self._done["page bytes"] += target.nbytes
        return int(self._file.readinto(target))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """One file of row groups of 1 MiB, incompressible."""
    values = np.random.default_rng(0).random((COLUMNS, ROWS * ROW_GROUPS), np.float32)
    table = pa.table({f"x{number}": column for number, column in enumerate(values)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=ROWS, use_dictionary=False, compression="none")
    manifest = fb.scan(str(tmp_path / "a.parquet"))
    return Dataset(manifest, fb.Transform(x=fb.Dense(manifest.columns)))


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of reads of source files and of transactions of the index."""
    found: Counter[str] = Counter()
    open_input, transact = reading.open_input, Index.transact

    def counted(self: Index, work: Callable[[IndexTables], Any]) -> Any:
        found["transactions"] += 1
        return transact(self, work)

    monkeypatch.setattr(reading, "open_input", lambda uri: ReadsCountedFile(open_input(uri), found))
    monkeypatch.setattr(Index, "transact", counted)
    return found


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """Most bytes of arrays and objects of this process at a time, beyond those at the start, in `[-1]` at the end."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def test_a_block_is_read_once_and_recorded_in_two_transactions(
    dataset: Dataset, cache: DiskCache, done: Counter[str]
) -> None:
    builder, sizes = BlockBuilder(dataset, cache, counters=Counters()), []
    done.clear()
    for index in range(ROW_GROUPS):
        assert builder.build(index).origin == "store"
        sizes.append(done["page bytes"])
    assert done["page reads"] == ROW_GROUPS, "columns that lie beside each other are read at once"
    assert done["transactions"] == 2 * ROW_GROUPS, "one reserves, one records the file"
    assert sizes[-1] < 1.01 * ROW_GROUPS * BLOCK_BYTES

    done.clear()
    for index in range(ROW_GROUPS):
        assert builder.build(index).origin == "hit"
        assert builder.peek(index) is not None
    assert done == {}, "a cached block touches neither its file nor the index"


def test_building_a_block_takes_its_memory_once(
    dataset: Dataset, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the pool of arrays, beside the decoded columns. The pages are freed by then."""
    pool = CountingPool()
    monkeypatch.setattr(memory_pool, "array_pool", pool)
    builder = BlockBuilder(dataset, cache, counters=Counters())
    before = pa.total_allocated_bytes()
    with peak_bytes() as peak:
        builder.build(1)
    assert 2 * BLOCK_BYTES <= pool.peak_bytes < 2.5 * BLOCK_BYTES
    assert peak[-1] < 0.2 * BLOCK_BYTES
    assert pa.total_allocated_bytes() - before < 0.1 * BLOCK_BYTES
    assert pool.used_bytes == 0, "nothing of a stored block stays in memory: its file is mapped"
    with peak_bytes() as peak:
        assert builder.build(1).origin == "hit"
    assert peak[-1] < 0.1 * BLOCK_BYTES


def test_a_cached_epoch_copies_each_row_once(
    dataset: Dataset, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a buffer of the pool, which is the memory of the batch that the trainer gets."""
    lease, leased, places = BufferPool.lease, [], set()

    def counted(self: BufferPool, num_bytes: int) -> NDArray[np.uint8]:
        buffer = lease(self, num_bytes)
        leased.append(num_bytes)
        places.add(buffer.ctypes.data)
        return buffer

    monkeypatch.setattr(BufferPool, "lease", counted)
    options: dict[str, Any] = {"global_batch": ROWS // 4, "epochs": 2}
    with fb.Loader(fb.build_plan(dataset.manifest), dataset.transform, cache, **options) as loader:
        for _ in range(2):
            assert all(batch["x"].data_ptr() in places for batch in loader)
    assert leased == [BLOCK_BYTES // 4] * 4 * ROW_GROUPS * 2
