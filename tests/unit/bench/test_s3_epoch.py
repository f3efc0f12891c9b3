"""The bench of epochs from S3: what counts as a request, its price, and the tables."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Bench = Callable[[str], ModuleType]


def test_requests_are_sorted_and_bytes_counted(bench: Bench) -> None:
    store = bench("storage.s3_epoch.store")

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response(
            "404 Not Found" if environ["PATH_INFO"].endswith("none") else "200 OK", [("Content-Length", "7")]
        )
        return [b"content"]

    counting = store.Counting(answer)
    paths = [("GET", "/bucket/a"), ("GET", "/bucket/none"), ("GET", "/bucket"), ("HEAD", "/bucket/a")]
    for method, path in [*paths, ("PUT", "/bucket/b"), ("POST", "/bucket/b")]:
        counting({"REQUEST_METHOD": method, "PATH_INFO": path, "CONTENT_LENGTH": "5"}, lambda *_: None)
    found = dict(counting._counts)
    assert found == {"GET": 2, "LIST": 1, "HEAD": 1, "PUT": 1, "POST": 1, "sent": 7, "received": 5}
    assert store.since(found, {"GET": 2, "sent": 3}) == {
        "LIST": 1, "HEAD": 1, "PUT": 1, "POST": 1, "sent": 4, "received": 5,
    }  # fmt: skip


def test_prices_scale_with_the_bytes(bench: Bench) -> None:
    costs = bench("storage.s3_epoch.costs")
    counts = {"GET": 900, "HEAD": 100, "LIST": 10, "DELETE": 50, "sent": 10**9}
    assert costs.requests(counts) == 1010
    assert costs.dollars(counts) == pytest.approx(0.0004 + 0.00005)
    assert costs.dollars(counts, other_region=True) == pytest.approx(0.02045)
    assert costs.scaled(counts, 10**9, 8) == {
        "GET": 900_000, "HEAD": 100_000, "LIST": 18, "DELETE": 50_000, "sent": 10**12,
    }  # fmt: skip


def test_tables_hold_failures_too(bench: Bench) -> None:
    bench_of = bench("storage.s3_epoch.__main__")
    lines = [
        {"system": "A", "turn": "first", "rows": 10, "cpu_s": 0.001, "counts": {"GET": 4, "sent": 150}},
        {"system": "B", "turn": "all", "failed": "no wheel"},
    ]
    text = bench_of.table(lines, 100, 10)
    assert "| A | first | 4 | 0 | 0 | 0 | 1.50 | 0.00 | 100 |" in text
    assert "failed: no wheel" in text
    assert "| A | first | 40,000,000,000 | 1.50 |" in bench_of.lake_table(lines, 100, 1)
