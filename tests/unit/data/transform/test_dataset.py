"""A dataset: a manifest and a transform that fit together."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay as fb
from forebay.errors import InvalidOption, MissingColumn


def count(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"n": batch.column(0).to_numpy()}


def test_the_columns_of_a_function_are_all_that_the_manifest_selects(
    memory_manifest: Callable[..., fb.Manifest],
) -> None:
    one = memory_manifest([3])
    two = replace(one, columns=("id", "x"))
    function, features = fb.Transform(fn=count), fb.Transform(id=fb.Dense("id"))
    assert fb.Dataset(two, function).columns == ("id", "x")
    assert fb.Dataset(two, features).columns == ("id",)
    assert fb.Dataset(one, function).fingerprint != fb.Dataset(two, function).fingerprint
    assert fb.Dataset(one, features).fingerprint == fb.Dataset(two, features).fingerprint == features.fingerprint


def test_a_feature_without_its_column_is_refused_by_name(parquet_folder: Callable[..., Path]) -> None:
    manifest = fb.scan(str(parquet_folder({"a.parquet": [3]})))
    fb.Dataset(manifest, fb.Transform(x=fb.Dense("x0"))).validate_columns()
    with pytest.raises(MissingColumn, match="'x9'"):
        fb.Dataset(manifest, fb.Transform(x=fb.Dense("x9"))).validate_columns()


def test_it_travels_to_other_processes(memory_manifest: Callable[..., fb.Manifest]) -> None:
    dataset = fb.Dataset(memory_manifest([3, 4]), fb.Transform(id=fb.Dense("id")))
    again = pickle.loads(pickle.dumps(dataset))
    assert again.manifest == dataset.manifest
    assert again.fingerprint == dataset.fingerprint


def test_arguments_in_the_wrong_place_are_refused(memory_manifest: Callable[..., fb.Manifest]) -> None:
    manifest, transform = memory_manifest([3]), fb.Transform(id=fb.Dense("id"))
    with pytest.raises(InvalidOption, match=r"manifest=.*fb.scan"):
        fb.Dataset(transform, manifest)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"transform=None.*fb.Transform"):
        fb.Dataset(manifest, None)  # type: ignore[arg-type]
    lists = fb.Transform(tags=fb.Ragged("tags", padded=False))
    with pytest.raises(InvalidOption, match=r"augment= changes .* 'tags' is Ragged\(padded=False\). Give padded=True"):
        fb.Dataset(manifest, lists, augment=lambda batch, rng: batch)
    with pytest.raises(InvalidOption, match=r"transform=.*fb.Transform"):
        fb.Loader(fb.build_plan(manifest), manifest, global_batch=16)  # type: ignore[arg-type]
