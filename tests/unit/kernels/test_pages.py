"""Damaged pages are refused, or give as many numbers as they should. No byte outside of the given memory is touched."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.kernels import calls as kernels

ROWS = 300
CASES = 500


class _Guarded:
    """Memory that ends where a protected page begins: reading or writing behind the end is a SIGSEGV."""

    def __init__(self, num_bytes: int) -> None:
        size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size + mmap.PAGESIZE)
        whole = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(whole.ctypes.data + size)
        assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0, ctypes.get_errno()
        self.array = whole[size - num_bytes : size]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mprotect"), reason="needs POSIX memory protection")
@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_damaged_pages_stay_within_their_memory(tmp_path: Path, compression: str, dictionary: bool) -> None:
    rng = np.random.default_rng(7)
    values = np.repeat(rng.integers(1 << 40, size=ROWS // 6), 6)
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": values}), path, compression=compression, use_dictionary=dictionary, data_page_size=400
    )
    chunk = pq.read_metadata(path).row_group(0).column(0)
    start = chunk.dictionary_page_offset if dictionary else chunk.data_page_offset
    good = np.frombuffer(path.read_bytes(), np.uint8)[start : start + chunk.total_compressed_size]
    source, target = _Guarded(len(good)), _Guarded(ROWS * 8)
    scratch, table = _Guarded(ROWS * 10), _Guarded(ROWS * 8)

    def is_decoded() -> bool:
        chunks = np.array([[source.array.ctypes.data, len(good), 1, compression == "snappy"]], np.int64)
        places = np.array([ROWS, target.array.ctypes.data, 0], np.int64)
        return bool(kernels.decode_columns(chunks, places, scratch.array, table.array.view(np.int64))[0])

    source.array[:] = good
    assert is_decoded()
    assert (target.array.view(np.int64) == values).all()
    refused = 0
    for _ in range(CASES):
        source.array[:] = good
        for place in rng.integers(len(good), size=rng.integers(1, 4)):
            source.array[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
        if rng.random() < 0.2:
            source.array[rng.integers(len(good)) :] = 0
        refused += not is_decoded()
    assert CASES / 100 < refused < CASES
