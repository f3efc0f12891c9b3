"""Damaged pages are refused, or give as many numbers as they should. No byte outside of the given memory is touched."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.data.parquet.guarded import Guarded, needs_protection

from forebay.data.parquet import page_kernels as kernels

ROWS = 300
CASES = 500


class _GuardedChunk:
    """Column chunk of one column, in guarded memory."""

    def __init__(self, path: Path, column: pa.Array, **options: object) -> None:
        pq.write_table(pa.table({"x": column}), path, data_page_size=400, **options)
        chunk = pq.read_metadata(path).row_group(0).column(0)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        self._good = np.frombuffer(path.read_bytes(), np.uint8)[start : start + chunk.total_compressed_size]
        self._bytes = Guarded(len(self._good)).array
        self.place = (self._bytes.ctypes.data, len(self._good))
        self.heal()

    def heal(self) -> None:
        self._bytes[:] = self._good

    def damage(self, rng: np.random.Generator) -> None:
        """Change one to three bytes of the right ones, and at times end the chunk with zeros."""
        self.heal()
        for place in rng.integers(len(self._good), size=rng.integers(1, 4)):
            self._bytes[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
        if rng.random() < 0.2:
            self._bytes[rng.integers(len(self._good)) :] = 0


@needs_protection
@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_damaged_pages_stay_within_their_memory(tmp_path: Path, compression: str, dictionary: bool) -> None:
    rng = np.random.default_rng(7)
    values = np.repeat(rng.integers(1 << 40, size=ROWS // 6), 6)
    source = _GuardedChunk(tmp_path / "a.parquet", pa.array(values), compression=compression, use_dictionary=dictionary)
    target, scratch, table = Guarded(ROWS * 8), Guarded(ROWS * 10), Guarded(ROWS * 8)

    def is_decoded() -> bool:
        chunks = np.array([[*source.place, 1, compression == "snappy"]], np.int64)
        places = np.array([ROWS, target.array.ctypes.data, 0], np.int64)
        return bool(kernels.decode_columns(chunks, places, scratch.array, table.array.view(np.int64))[0])

    assert is_decoded()
    assert (target.array.view(np.int64) == values).all()
    refused = 0
    for _ in range(CASES):
        source.damage(rng)
        refused += not is_decoded()
    assert CASES / 100 < refused < CASES


@needs_protection
@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("is_optional", [True, False])
def test_damaged_pages_of_lists_stay_within_their_memory(
    tmp_path: Path, compression: str, dictionary: bool, is_optional: bool
) -> None:
    rng = np.random.default_rng(8)
    values, lengths = rng.integers(1 << 20, size=ROWS).astype(np.int32), rng.integers(9, size=ROWS // 3)
    bounds = np.minimum([0, *np.cumsum(lengths)], ROWS).astype(np.int32)
    kind = pa.list_(pa.field("element", pa.int32(), nullable=is_optional))
    lists = pa.Array.from_buffers(
        kind, len(lengths), [None, pa.py_buffer(bounds)], children=[pa.array(values[: bounds[-1]])]
    )
    path = tmp_path / "a.parquet"
    source = _GuardedChunk(path, lists, compression=compression, use_dictionary=dictionary, write_batch_size=50)
    entries = pq.read_metadata(path).row_group(0).column(0).num_values
    target, scratch, table = Guarded(entries * 4), Guarded(entries * 5 + 100), Guarded(entries * 4)
    offsets, is_null, marks = Guarded(len(lengths) * 4 + 4), Guarded(len(lengths)), Guarded(entries // 8 * 3 + 54)

    address = target.array.ctypes.data

    def decoded() -> int:
        chunk = np.array([*source.place, 1, compression == "snappy", 2 + is_optional, entries, address], np.int64)
        lists = offsets.array.view(np.int32), is_null.array
        return kernels.decode_lists(chunk, *lists, marks.array, scratch.array, table.array.view(np.int32))

    assert decoded() == bounds[-1]
    assert (target.array.view(np.int32)[: bounds[-1]] == values[: bounds[-1]]).all()
    assert (offsets.array.view(np.int32) == bounds).all()
    refused = 0
    for _ in range(CASES):
        source.damage(rng)
        made = decoded()
        refused += made < 0
        if made >= 0:
            found = offsets.array.view(np.int32)
            assert found[0] == 0
            assert found[-1] == made
            assert (np.diff(found) >= 0).all()
    assert CASES / 100 < refused < CASES


@needs_protection
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_damaged_pages_of_texts_stay_within_their_memory(tmp_path: Path, compression: str) -> None:
    rng = np.random.default_rng(9)
    numbers = rng.integers(40, size=ROWS)
    column = pa.array([str(number) * (number % 5) for number in numbers])
    source = _GuardedChunk(tmp_path / "a.parquet", column, compression=compression)
    entries, num_bytes = kernels.find_dictionary(*source.place)
    texts, offsets, indices = Guarded(num_bytes), Guarded(entries * 4 + 4), Guarded(ROWS * 4)
    scratch, numbers_of = Guarded(num_bytes + ROWS * 4), Guarded(entries * 4)
    numbers_of.array.view(np.int32)[:] = np.arange(entries)

    def is_decoded() -> bool:
        assert max(kernels.find_dictionary(*source.place)) <= 1 << 31
        chunk = np.array([*source.place, 1, compression == "snappy"], np.int64)
        places = offsets.array.view(np.int32), texts.array, indices.array.view(np.int32)
        return kernels.decode_texts(chunk, *places, scratch.array, numbers_of.array.view(np.int32))

    assert is_decoded()
    bounds = offsets.array.view(np.int32)
    words = [texts.array[start:stop].tobytes().decode() for start, stop in itertools.pairwise(bounds)]
    assert [words[index] for index in indices.array.view(np.int32)] == column.to_pylist()
    refused = 0
    for _ in range(CASES):
        source.damage(rng)
        if not is_decoded():
            refused += 1
            continue
        assert bounds[0] == 0
        assert bounds[-1] <= num_bytes - 4 * entries
        assert (np.diff(bounds) >= 0).all()
        assert (indices.array.view(np.uint32) < entries).all()
    assert CASES / 100 < refused < CASES
