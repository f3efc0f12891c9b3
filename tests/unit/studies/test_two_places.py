"""A job moves to a second place when the first is silent, and the first is fenced when it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from studies.two_places import LocalPlace, move


@pytest.mark.variation("minutes of training in processes; the fence has its own tests")
@pytest.mark.timeout(1800)
def test_job_goes_on_at_the_second_place_and_the_first_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = move(tmp_path, (LocalPlace(), LocalPlace()))
    assert found.first.how == "fenced", found.first
    assert found.attempts == 2
    assert found.moved.plan_id == found.undisturbed.plan_id
    assert [epoch.rows for epoch in found.moved.epochs] == [epoch.rows for epoch in found.undisturbed.epochs]
    assert found.moved.metrics == pytest.approx(found.undisturbed.metrics, rel=1e-5)
