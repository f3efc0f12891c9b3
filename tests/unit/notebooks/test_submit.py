"""The notebook on submission runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from studies.two_places import ray_place
from tests.notebook import executed

from forebay.fleet.client.submission import JobFiles


@pytest.fixture
def dashboard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the dashboard of a Ray cluster that takes jobs. Empty for the local backend."""
    if request.param == "local":
        yield ""
        return
    with ray_place(tmp_path_factory.mktemp("head") / "place") as place:
        address, deadline = place.backend.address, time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/jobs/", timeout=5).close()
            except OSError:
                assert time.monotonic() < deadline, "the dashboard does not answer"
                time.sleep(0.5)
            else:
                break
        yield address


@pytest.mark.variation("four processes and a Ray cluster; tests/unit/deploy/client has the same parts")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dashboard", ["local", "ray"], indirect=True)
def test_submit_runs(tmp_path: Path, dashboard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_RAY_DASHBOARD", dashboard)
    done = executed("submit", tmp_path, timeout_s=600)
    assert "epochs 2, loss 0." in done.text
    assert "submission 1, succeeded" in done.text
    cards = [page for page in done.pages if "<caption>" in page]
    assert "<caption>demo</caption>" in cards[0]
    assert "succeeded" in cards[-1]
    submission = JobFiles(storage=str(tmp_path / "runs"), name="demo").newest()
    assert submission is not None
    assert (submission.backend, submission.address) == ("ray" if dashboard else "local", dashboard)
