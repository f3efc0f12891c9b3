"""Footers of objects: the second scan sends no request for any."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.parquet_files import find_parquet
from forebay.runtime.metrics import Counters

NUM_OBJECTS = 100
NUM_GROUPS = 12


@pytest.fixture
def num_requests(faults: Any) -> Callable[[Callable[[], object]], list[int]]:
    """`num_requests(work)` is the number of HEAD and of GET requests that `work` sends."""

    def count(work: Callable[[], object]) -> list[int]:
        faults.set(*({"kind": "delay", "seconds": 0, "method": method} for method in ("HEAD", "GET")))
        work()
        found: list[int] = faults.shown()
        return [found[0], found[1]]

    return count


def test_readers_of_one_object_open_it_once(
    s3: Any,
    faulty: Any,
    num_requests: Callable[[Callable[[], object]], list[int]],
    parquet_folder: Callable[..., Path],
) -> None:
    """An open and a check of each row group: when each reader opened it, 1.8 HEAD requests a row group."""
    s3.write("shared/a.parquet", (parquet_folder({"a.parquet": [10] * NUM_GROUPS}) / "a.parquet").read_bytes())
    manifest, found = fb.scan(faulty.uri("shared")), list[int]()
    reader = RowGroupReader(manifest)

    def read_all() -> None:
        with ThreadPoolExecutor(NUM_GROUPS) as pool:
            tables = pool.map(lambda index: reader.read(index, ["id"]), range(NUM_GROUPS))
            found.extend(row for table in tables for row in table["id"].to_pylist())

    assert num_requests(read_all)[0] == 1 + NUM_GROUPS
    assert found == list(range(10 * NUM_GROUPS))
    assert num_requests(read_all)[0] == NUM_GROUPS


def test_an_object_that_is_written_again_alike_is_read_once_more(
    s3: Any, faulty: Any, parquet_folder: Callable[..., Path]
) -> None:
    content, counters = (parquet_folder({"a.parquet": [10]}) / "a.parquet").read_bytes(), Counters()
    s3.write("alike/a.parquet", content)
    reader = RowGroupReader(fb.scan(faulty.uri("alike")), counters=counters)
    reader.read(0, ["id"])
    time.sleep(1.1)  # a store dates objects by the second
    s3.write("alike/a.parquet", content)
    assert reader.read(0, ["id"]).num_rows == 10
    assert counters["retries"] == 1


def test_the_second_scan_of_objects_requests_no_footer(
    s3: Any,
    faulty: Any,
    num_requests: Callable[[Callable[[], object]], list[int]],
    parquet_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = (parquet_folder({"a.parquet": [30, 20]}) / "a.parquet").read_bytes()
    for number in range(NUM_OBJECTS):
        s3.write(f"footers/{number}.parquet", content)
    uri, cache = faulty.uri("footers"), tmp_path / "cache"
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + 60_000_000_000)  # no object is young
    listing = num_requests(lambda: find_parquet(uri).files)
    found: list[fb.Manifest] = []
    first = num_requests(lambda: found.append(fb.scan(uri, footers=cache)))
    assert first[0] - listing[0] >= NUM_OBJECTS
    assert first[1] - listing[1] >= NUM_OBJECTS
    assert num_requests(lambda: found.append(fb.scan(uri, footers=cache))) == listing
    assert found[0] == found[1]
    assert all(file.etag for file in found[1].files)
    s3.write("footers/7.parquet", (parquet_folder({"b.parquet": [9]}) / "b.parquet").read_bytes())
    again = num_requests(lambda: found.append(fb.scan(uri, footers=cache)))
    assert again[1] - listing[1] == 1
    assert found[2].num_rows == found[0].num_rows - 50 + 9
