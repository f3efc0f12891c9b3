"""A store that throttles, refuses, stalls or truncates.

The result is the same rows, or an error that says what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import ReadFailed
from forebay.runtime.metrics import Counters
from forebay.storage.retry import ReadPolicy

Folder = Callable[..., Path]


@pytest.fixture
def quick(quick: ReadPolicy) -> ReadPolicy:
    """A policy with spare attempts.

    A busy server may take longer to answer than the store's client waits.
    """
    return replace(quick, attempts=10)


@pytest.fixture
def manifest(s3: Any, faulty: Any, parquet_folder: Folder) -> fb.Manifest:
    s3.upload(parquet_folder({"a.parquet": [30, 20]}), "faults")
    return fb.scan(faulty.uri("faults"))


def ids_read(manifest: fb.Manifest, policy: ReadPolicy, index: int = 0) -> tuple[list[int], Counters]:
    counters = Counters()
    return RowGroupReader(manifest, policy, counters).read(index, ["id"])["id"].to_pylist(), counters


@pytest.mark.parametrize(("method", "retries"), [("GET", 2), ("HEAD", 1)])
def test_throttling_is_waited_out_and_counted(
    manifest: fb.Manifest, faults: Any, quick: ReadPolicy, method: str, retries: int
) -> None:
    faults.set({"kind": "status", "status": 503, "code": "SlowDown", "times": 2, "method": method})
    ids, counters = ids_read(manifest, quick)
    assert ids == list(range(30))
    assert faults.shown() == [2]
    # One request, one attempt: the store's client does not retry by itself. (After a failed read, the reader asks
    # whether the file has changed, so both refused HEAD requests belong to one attempt.) A slow answer may
    # cost one more.
    assert counters["retries"] >= retries


def test_throttling_without_end_is_an_error_after_four_times_as_many_requests_as_attempts(
    manifest: fb.Manifest, faults: Any, quick: ReadPolicy
) -> None:
    faults.set({"kind": "status", "status": 503, "code": "SlowDown", "method": "GET"})
    with pytest.raises(ReadFailed, match=r"40 attempts.*(SERVICE_UNAVAILABLE|SLOW_DOWN).*more attempts"):
        ids_read(manifest, quick)
    assert faults.shown() == [40]


def test_scanning_waits_out_throttling_too(faulty: Any, manifest: fb.Manifest, faults: Any, quick: ReadPolicy) -> None:
    faults.set({"kind": "status", "status": 503, "code": "SlowDown", "times": 3})
    assert fb.scan(faulty.uri("faults"), policy=quick) == manifest
    assert faults.shown() == [3]


@pytest.mark.parametrize(("method", "requests"), [("GET", 1), ("HEAD", 2)])
def test_a_refusal_is_not_tried_again(
    manifest: fb.Manifest, faults: Any, quick: ReadPolicy, method: str, requests: int
) -> None:
    faults.set({"kind": "status", "status": 403, "code": "AccessDenied", "method": method})
    with pytest.raises(ReadFailed, match=r"faults/a.parquet\S* may not be read.*check the credentials"):
        ids_read(manifest, quick)
    assert faults.shown() == [requests]


def test_a_refused_listing_says_so(faulty: Any, manifest: fb.Manifest, faults: Any, quick: ReadPolicy) -> None:
    faults.set({"kind": "status", "status": 403, "code": "AccessDenied"})
    with pytest.raises(ReadFailed, match=r"faults\S* may not be listed.*check the credentials"):
        fb.scan(faulty.uri("faults"), policy=quick)


def test_a_stalled_answer_is_replaced_at_its_deadline(manifest: fb.Manifest, faults: Any) -> None:
    faults.set({"kind": "delay", "seconds": 40, "times": 1, "method": "GET"})
    policy = ReadPolicy(attempts=10, deadline_s=2.0, first_wait_s=0.01, max_wait_s=0.05)
    start = time.monotonic()
    ids, counters = ids_read(manifest, policy)
    assert ids == list(range(30))
    assert counters["retries"] >= 1 and faults.shown() == [1]
    assert time.monotonic() - start < 35  # not the stalled answer


def test_half_an_object_is_asked_for_again(manifest: fb.Manifest, faults: Any, quick: ReadPolicy) -> None:
    faults.set({"kind": "cut", "times": 2, "method": "GET"})
    ids, counters = ids_read(manifest, quick)
    assert ids == list(range(30))
    assert counters["retries"] >= 2 and faults.shown() == [2]


def test_an_epoch_through_a_bad_line_is_the_epoch(
    s3: Any, faulty: Any, local_files: Path, faults: Any, cache: fb.DiskCache, epochs_of: Any
) -> None:
    expected, _ = epochs_of(fb.scan(local_files), None, 1)
    s3.upload(local_files, "line")
    manifest = fb.scan(faulty.uri("line"))
    faults.set(
        {"kind": "status", "status": 503, "code": "SlowDown", "times": 2},
        {"kind": "cut", "times": 2, "method": "GET"},
        {"kind": "status", "status": 500, "code": "InternalError", "times": 1},
    )
    digests, _ = epochs_of(manifest, cache, 1)
    assert digests == expected
    assert faults.shown() == [2, 2, 1]
