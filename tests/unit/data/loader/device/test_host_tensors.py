"""Tensors of a buffer are made once, and hold no lease on it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.data.loader.device.host_tensors import HostTensors
from forebay.runtime.memory.pool import BufferPool


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.booleans()), max_size=30))
def test_tensors_show_the_arrays_they_were_made_for(steps: list[tuple[int, int, bool]]) -> None:
    """Batches of several sizes and layouts, some of them held while the next ones are made."""
    pool, host, held = BufferPool(kept_bytes=1 << 20), HostTensors(), []
    for number, (rows, layout, is_held) in enumerate(steps):
        shapes = {"x": ("f4", (rows, 3)), "id": (("i8", "i4", "f8")[layout], (rows,))}
        arrays, _ = pool.lease_arrays(shapes)
        for array in arrays.values():
            array[:] = number
        tensors = host.of(arrays)
        for name, tensor in tensors.items():
            assert tensor.dtype == torch.from_numpy(arrays[name]).dtype
            assert tensor.data_ptr() == arrays[name].ctypes.data and torch.equal(tensor, torch.from_numpy(arrays[name]))
        if is_held:
            held.append((number, tensors, arrays))
    assert all((tensor == number).all() for number, tensors, _ in held for tensor in tensors.values())


def test_a_buffer_returns_to_its_pool_while_its_tensors_are_kept() -> None:
    pool, host = BufferPool(kept_bytes=1 << 20), HostTensors()
    arrays, _ = pool.lease_arrays({"x": ("f4", (8,))})
    first = host.of(arrays)["x"]
    assert pool.idle_bytes == 0
    del arrays
    assert pool.idle_bytes > 0
    again, _ = pool.lease_arrays({"x": ("f4", (8,))})
    assert host.of(again)["x"] is first


def test_arrays_of_no_pool_are_taken_too() -> None:
    host, array = HostTensors(), np.arange(5)
    assert host.of({"x": array})["x"].tolist() == [0, 1, 2, 3, 4]


def test_few_buffers_are_kept() -> None:
    host = HostTensors()
    for size in range(1, 40):
        assert len(host.of({"x": np.zeros(size)})["x"]) == size
    assert len(host._kept) == 8


def test_arrays_with_gaps_keep_them() -> None:
    arrays, _ = BufferPool(kept_bytes=1 << 20).lease_arrays({"x": ("i4", (6, 4))})
    arrays["x"][:] = np.arange(24).reshape(6, 4)
    for part in (arrays["x"], arrays["x"][::2], arrays["x"][:3, 1:3]):
        assert HostTensors().of({"x": part})["x"].tolist() == part.tolist()
