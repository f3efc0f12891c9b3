"""Results that an augment may return, and identities of augments."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from forebay.data.transform.augment import Augment, as_augment
from forebay.data.transform.row_random import RowRandom
from forebay.errors import AugmentFailed, InvalidOption, Unfingerprintable

ROWS = np.arange(3, dtype=np.uint64)
Made = Callable[[dict[str, Any], RowRandom], Any]


def scale(batch: dict[str, Any], rng: RowRandom, factor: float = 2.0) -> dict[str, Any]:
    return batch | {"x": batch["x"] * factor}


def boom(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    raise KeyError("color")


def ends_a_sentence(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    raise ValueError("There is no such color.")


def apply(fn: Made) -> dict[str, Any]:
    arrays = {"x": np.ones((3, 2), np.float32), "y": np.arange(3)}
    return dict(Augment(fn, version="1").apply(arrays, RowRandom(1, ROWS), where=lambda: "batch 7").arrays)


def test_arrays_are_replaced_kept_and_added() -> None:
    made = apply(lambda batch, rng: {"z": rng.uniform(), "y": batch["y"], "x": batch["x"][:, ::-1]})
    assert list(made) == ["z", "y", "x"] and made["z"].shape == (3,) and made["x"].flags.c_contiguous


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (boom, "augment boom raised KeyError in batch 7: 'color'. Mend"),
        (ends_a_sentence, "raised ValueError in batch 7: There is no such color. Mend"),
        (lambda batch, rng: None, "returned a NoneType for batch 7. Return the batch"),
        (lambda batch, rng: {"x": batch["x"]}, "returned no 'y' for batch 7, only 'x'. Return every array"),
        (lambda batch, rng: batch | {"y": batch["y"][1:]}, "returned 2 rows of 'y' for the 3 rows of batch 7. Keep"),
        (lambda batch, rng: batch | {"y": ["a"] * 3}, "for batch 7: Array 'y' is a list. Return a NumPy array"),
        (lambda batch, rng: batch | {"y": batch["y"].astype(str)}, "'y' has dtype <U21, which no tensor can hold"),
        (lambda batch, rng: batch | {"y": rng.bernoulli(2.0)}, "raised InvalidOption in batch 7: rng.bernoulli"),
    ],
)
def test_what_is_no_batch_is_refused_with_name_and_place(fn: Made, text: str) -> None:
    with pytest.raises(AugmentFailed, match="augment ") as failure:
        apply(fn)
    assert text in str(failure.value)
    assert pickle.loads(pickle.dumps(failure.value)).facts["function"] == failure.value.facts["function"]


def test_code_settings_and_version_tell_augments_apart() -> None:
    found = [Augment(scale), Augment(partial(scale, factor=3.0)), Augment(boom), Augment(scale, version="2")]
    assert len({each.fingerprint for each in found}) == 4
    assert Augment(scale).fingerprint == pickle.loads(pickle.dumps(found[0])).fingerprint
    assert as_augment(None) is None and as_augment(found[0]) is found[0]


def test_what_cannot_work_is_refused_at_once() -> None:
    hidden = io.StringIO()

    def reads(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
        return batch if hidden.read() else {}

    with pytest.raises(Unfingerprintable, match=r"augment .*reads cannot .*'hidden'.* Give fb.Augment\(fn, version="):
        Augment(reads)
    assert Augment(reads, version="1").name.endswith("reads")
    with pytest.raises(InvalidOption, match="augment=3 cannot be called. Give a function"):
        Augment(3)  # type: ignore[arg-type]
