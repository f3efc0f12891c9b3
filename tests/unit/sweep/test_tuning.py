"""Checks and options that a sweep passes to Ray Tune."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.unit.sweep.made import record, trial

from forebay.errors import InvalidOption
from forebay.sweep.setup import prepare
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial_spec import pack
from forebay.sweep.tune.resources import trial_resources
from forebay.sweep.tune.resume import _validate_same_space
from forebay.sweep.tuning import _check_is_within_cluster
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.job import Job, Resources


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    bench = DriverBench(tmp_path)

    def make(cpus: float = 1.0) -> Job:
        if cpus == 3:
            raise ValueError("no job of three")
        return bench.job("x", resources=Resources(cpus=cpus))

    return make


def test_a_local_trial_asks_for_what_its_job_does_and_starts_even_if_that_raises(job: Callable[..., Job]) -> None:
    payload = pack(prepare(Sweep(job, {"cpus": [2, 3]}, "loss", "min", driver="local")).spec)
    asked: list[Any] = [
        trial_resources(payload, driver, {"CPU": 5.0}, {"cpus": cpus}).required_resources.get("CPU", 0)
        for driver, cpus in (("local", 2.0), ("local", 3.0), ("ray", 2.0))
    ]
    assert asked == [2, 5, 0]


def test_a_sweep_that_goes_on_draws_from_what_it_began_with(job: Callable[..., Job]) -> None:
    setup = prepare(Sweep(job, {"cpus": [1.0, 2.0]}, "loss", "min", num_trials=4))
    known = record(trial("a"), space=setup.space_texts, num_trials=4)
    _validate_same_space(known, setup)
    _validate_same_space(record(trial("a")), setup)
    for space, trials, changed in (([1.0, 2.0], 5, "num_trials=4; this one has 5"), ([1.0], 4, "cpus=Choice")):
        with pytest.raises(InvalidOption, match=f"'ctr' was started with {changed}"):
            _validate_same_space(known, prepare(Sweep(job, {"cpus": space}, "loss", "min", num_trials=trials)))


def test_a_sweep_from_outside_of_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(InvalidOption, match="started through ray://"):
        _check_is_within_cluster()
