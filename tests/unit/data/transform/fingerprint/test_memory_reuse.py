"""A function that returns the same memory twice is detected."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import forebay as fb
from forebay.errors import InvalidOption, TransformFailed

TABLE = pa.table({"x": [1.0, 2.0, 3.0]})


def scaled(batch: pa.RecordBatch, k: float) -> dict[str, np.ndarray]:
    return {"x": batch.column("x").to_numpy() * k}


def test_a_buffer_that_is_used_again_is_refused() -> None:
    buffer = np.zeros((3, 1))

    def reuses(batch: pa.RecordBatch) -> dict[str, Any]:
        buffer[:, 0] = batch.column("x").to_numpy()
        return {"x": buffer[:2] if batch.num_rows < 3 else buffer}

    transform = fb.Transform(fn=reuses, version="1")
    transform.apply(TABLE)
    with pytest.raises(TransformFailed, match="reuses returned the same array twice.*new array in every call"):
        transform.apply(TABLE)


def test_fresh_and_read_only_arrays_pass() -> None:
    constant = np.ones(3)
    constant.setflags(write=False)

    def fresh(batch: pa.RecordBatch) -> dict[str, Any]:
        both = np.stack([batch.column("x").to_numpy()] * 2, axis=1)
        return {"a": both[:, 0], "b": both[:, 1], "same": both, "raw": batch.column("x").to_numpy(), "one": constant}

    transform = fb.Transform(fn=fresh, version="1")
    kept = [transform.apply(TABLE) for _ in range(5)]
    assert [block.arrays["b"].tolist() for block in kept] == [[1.0, 2.0, 3.0]] * 5


def test_one_version_in_two_settings_is_two_transforms() -> None:
    prints = {fb.Transform(fn=partial(scaled, k=k), version="1").fingerprint for k in (1, 10, 1.5)}
    assert len(prints) == 3
    assert fb.Transform(fn=partial(scaled, k=1), version="1").fingerprint in prints


def test_sets_have_no_order() -> None:
    with pytest.raises(InvalidOption, match="Give a list"):
        fb.Dense({"x", "y"})


def test_numpy_dtypes_are_dtypes() -> None:
    assert fb.Dense("x", dtype=np.dtype("float32")) == fb.Dense("x") == fb.Dense("x", dtype=np.float32)
