"""A job moves from one Ray cluster to another when the first is cut off, and the first is fenced when it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from studies.two_places import move, ray_place


@pytest.mark.variation("minutes of two clusters; the fence has its own tests")
@pytest.mark.timeout(1800)
def test_job_goes_on_in_the_second_cluster_and_the_first_is_fenced(
    ray_off: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with ray_place(tmp_path / "first") as first, ray_place(tmp_path / "second") as second:
        found = move(tmp_path, (first, second))
    assert found.first.how == "fenced", found.first
    assert found.attempts == 2
    assert found.moved.plan_id == found.undisturbed.plan_id
    assert [epoch.rows for epoch in found.moved.epochs] == [epoch.rows for epoch in found.undisturbed.epochs]
    assert found.moved.metrics == pytest.approx(found.undisturbed.metrics, rel=1e-5)
