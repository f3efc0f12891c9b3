"""Arrays equal NumPy's, and large ones use the pool."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from forebay.runtime.memory.arrays import array_pool, empty_array


@pytest.mark.parametrize(("shape", "dtype"), [((0, 3), "float32"), ((5,), "int64"), ((300, 70), "float64")])
def test_empty_arrays_are_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    ours, numpys = empty_array(shape, dtype), np.empty(shape, dtype)
    assert (ours.shape, ours.dtype, ours.strides) == (numpys.shape, numpys.dtype, numpys.strides)
    assert ours.flags.c_contiguous and ours.flags.aligned and ours.flags.writeable


def test_small_arrays_take_no_memory_of_the_pool() -> None:
    before = array_pool.idle_bytes
    empty_array((100,), "float32")
    assert array_pool.idle_bytes <= before


def test_an_array_that_fits_nowhere_is_an_error_of_memory() -> None:
    with pytest.raises(MemoryError, match="needs 4611686018427387904 bytes"):
        empty_array((1 << 59,), "float64")


def test_arrays_may_outlive_the_interpreter() -> None:
    code = """
import sys
from forebay.runtime.memory.arrays import empty_array
sys.kept = [empty_array((1 << 20,), "int64") for _ in range(3)]
sys.kept.pop()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
