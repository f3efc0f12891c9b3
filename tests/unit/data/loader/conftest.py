"""Numbers of gather threads that laws of loaders are tried with."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[1, 3])
def gatherers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread gathers, or several gather each batch together, however small."""
    monkeypatch.setenv("FOREBAY_GATHER_THREADS", str(request.param))


@pytest.fixture(params=[1, pytest.param(3, marks=pytest.mark.variation)])
def more_gatherers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `gatherers`, for tests that take long."""
    monkeypatch.setenv("FOREBAY_GATHER_THREADS", str(request.param))
