"""Ray Data with few workers: each takes 1 to 3 CPU seconds of imports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray.data import DataContext


@pytest.fixture(autouse=True)
def few_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """By itself, Ray Data starts a worker per CPU, and eight actors that read the footers of two files."""
    monkeypatch.setenv("RAY_DATA_PARQUET_FOOTER_NUM_ACTORS", "1")
    options = DataContext.get_current().execution_options
    before = options.resource_limits
    options.resource_limits = before.copy(cpu=2)
    yield
    options.resource_limits = before
