"""The notebook on submission runs from top to bottom, as a reader would run it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from studies.two_places import ray_place

from forebay.fleet.client.submission import JobFiles

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "submit.ipynb"


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
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not committed: they go stale"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert "epochs 2, loss 0." in text
    assert "submission 1, succeeded" in text
    cards = [html for output in outputs if (html := output.get("data", {}).get("text/html"))]
    assert "<caption>demo</caption>" in cards[0]
    assert "succeeded" in cards[-1]
    submission = JobFiles(storage=str(tmp_path / "runs"), name="demo").newest()
    assert submission is not None
    assert (submission.backend, submission.address) == ("ray" if dashboard else "local", dashboard)
