"""Snappy is decompressed as by Arrow, and damaged bytes within the given memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.parquet.guarded import Guarded, needs_protection

from forebay.data.kernels.kernel import Kernel
from forebay.data.parquet import snappy

UNSNAPPY = Kernel(lambda: snappy, "unsnappy")

pytestmark = needs_protection

_PATTERNS = st.tuples(st.binary(min_size=1, max_size=70), st.integers(1, 300))
"""Bytes and how often they are repeated: copies over all short distances."""


def _decompressed(content: np.ndarray, capacity: int) -> bytes | None:
    source, target = Guarded(len(content)), Guarded(capacity)
    source.array[:] = content
    made = UNSNAPPY.call(source.array.ctypes.data, len(content), target.array.ctypes.data, capacity)
    assert -1 <= made <= capacity
    return None if made < 0 else target.array[:made].tobytes()


def _compressed(content: bytes) -> np.ndarray:
    return np.frombuffer(pa.compress(content, "snappy", asbytes=True), np.uint8)


@settings(max_examples=60, deadline=None)
@given(st.lists(_PATTERNS | st.tuples(st.binary(max_size=3_000), st.just(1)), max_size=12))
def test_any_bytes(parts: list[tuple[bytes, int]]) -> None:
    content = b"".join(part * count for part, count in parts)
    assert _decompressed(_compressed(content), len(content)) == content
    assert content == b"" or _decompressed(_compressed(content), len(content) - 1) is None


@pytest.mark.parametrize("item_bytes", [1, 2, 3, 4, 7, 8, 9, 16, 40])
def test_numbers_of_few_bytes(item_bytes: int) -> None:
    rng = np.random.default_rng(item_bytes)
    items = np.zeros((9_000, item_bytes), np.uint8)
    items[:, : -(-item_bytes // 2)] = rng.integers(40, size=(9_000, -(-item_bytes // 2)))
    assert _decompressed(_compressed(items.tobytes()), items.nbytes) == items.tobytes()


def test_damaged_bytes() -> None:
    rng = np.random.default_rng(3)
    content = np.repeat(rng.integers(300, size=90), rng.integers(1, 9, size=90)).astype(np.int64).tobytes()
    good, refused = _compressed(content), 0
    for _ in range(300):
        damaged = good.copy()
        for place in rng.integers(len(good), size=rng.integers(1, 4)):
            damaged[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.integers(256)])
        found = _decompressed(damaged[: rng.integers(1, 2 * len(good))], len(content))
        refused += found is None
    assert 0 < refused < 300
