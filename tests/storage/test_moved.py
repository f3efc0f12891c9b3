"""A run on S3 whose keys were copied or moved continues where they are now."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyarrow import fs
from tests.storage.conftest import ObjectStore

from forebay.storage.filesystem import resolve
from forebay.testing.drivers.bench import DriverBench, weights
from forebay.training.driver.driver import run
from forebay.training.runs.result import load_result


def contents(uri: str) -> dict[str, tuple[int, int | None]]:
    place = resolve(uri)
    found = place.fs.get_file_info(fs.FileSelector(place.path, recursive=True, allow_not_found=True))
    return {info.path: (info.size, info.mtime_ns) for info in found if info.is_file}


@pytest.mark.parametrize("is_kept", [True, pytest.param(False, marks=pytest.mark.variation("moved, as on a disk"))])
def test_a_run_continues_where_its_keys_are(is_kept: bool, s3: ObjectStore, tmp_path: Path) -> None:
    bench, base = DriverBench(tmp_path), f"moved-{uuid.uuid4().hex}"
    old, new = s3.uri(f"{base}/runs"), s3.uri(f"{base}/elsewhere")
    whole = run(bench.job("whole"), "local")
    run(bench.job("ctr", epochs=1, storage=old), "local")
    place, target = resolve(old), resolve(new)
    fs.copy_files(place.path, target.path, source_filesystem=place.fs, destination_filesystem=target.fs)
    if not is_kept:
        place.fs.delete_dir(place.path)
    before = contents(old)
    result = run(bench.job("ctr", storage=new), "local")
    assert contents(old) == before and bool(before) == is_kept
    assert result.path == s3.shown(f"{base}/elsewhere/ctr") and load_result(result.path) == result
    runs = [result, run(bench.job("ctr", storage=old), "local")] if is_kept else [result]
    for each in runs:
        assert [epoch.metrics for epoch in each.epochs] == [epoch.metrics for epoch in whole.epochs]
        assert all(weights(each)[name].equal(value) for name, value in weights(whole).items())
    assert load_result(result.path) == result
