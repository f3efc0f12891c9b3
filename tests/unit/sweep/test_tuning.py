"""Checks and options that a sweep passes to Ray Tune."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from tests.unit.sweep.made import record, trial

from forebay.errors import InvalidOption
from forebay.runtime.gpus import GpuSupply
from forebay.sweep.record.record import FILE_NAME, inexact_names, save_record
from forebay.sweep.result import SweepResult
from forebay.sweep.setup import prepare
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial_spec import pack
from forebay.sweep.tune.resources import trial_resources, worker_share
from forebay.sweep.tune.resume import _validate_same_space, open_record
from forebay.sweep.tuning import _check_is_within_cluster, _record_cut_off
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources


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


@pytest.mark.parametrize(
    ("gpus", "nodes", "share"), [(None, (0.0, 2.0), 2.0), (None, (0.0,), 0.0), (0, (2.0,), 0.0), (0.25, (1.0,), 0.25)]
)
def test_every_trial_takes_the_gpus_of_its_workers(
    tmp_path: Path, gpus: float | None, nodes: tuple[float, ...], share: float
) -> None:
    bench = DriverBench(tmp_path)

    def job(epochs: int = 1) -> Job:
        workers = 1 if gpus == 0.25 else 2
        return bench.job("x", epochs=epochs, workers=workers, resources=Resources(gpus=gpus))

    given = prepare(Sweep(job, {"epochs": [1, 2]}, "loss", "min", driver="local"))
    setup = given.with_gpus(GpuSupply(place="the cluster", nodes=nodes, grows=True))
    trial_job = setup.trial_spec("s", has_exchange=False).make_trial_job({"epochs": 2}, "t1")
    assert worker_share(trial_job)["GPU"] == worker_share(setup.job)["GPU"] == share
    assert worker_share(setup.spec.on_gpus(given.job))["GPU"] == share
    asked = trial_resources(pack(setup.spec), "local", {}, {"epochs": 2}).required_resources
    assert asked.get("GPU", 0.0) == share


def test_a_sweep_whose_first_trial_has_no_room_is_refused(tmp_path: Path) -> None:
    bench = DriverBench(tmp_path)

    def job(epochs: int = 1) -> Job:
        return bench.job("x", epochs=epochs, workers=2, resources=Resources())

    setup = prepare(Sweep(job, {"epochs": [1, 2]}, "loss", "min"))
    with pytest.raises(InvalidOption, match="2 workers need a GPU each.* this machine has a GPU"):
        setup.with_gpus(GpuSupply(place="this machine", nodes=(1.0,)))


def test_a_sweep_that_goes_on_draws_from_what_it_began_with(job: Callable[..., Job]) -> None:
    setup = prepare(Sweep(job, {"cpus": [1.0, 2.0]}, "loss", "min", num_trials=4))
    known = record(trial("a"), space=setup.space_texts, num_trials=4)
    _validate_same_space(known, setup)
    _validate_same_space(record(trial("a")), setup)
    for space, trials, changed in (([1.0, 2.0], 5, "num_trials=4; this one has 5"), ([1.0], 4, "cpus=Choice")):
        with pytest.raises(InvalidOption, match=f"'ctr' was started with {changed}"):
            _validate_same_space(known, prepare(Sweep(job, {"cpus": space}, "loss", "min", num_trials=trials)))


def test_a_sweep_that_goes_on_with_other_values_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = DriverBench(tmp_path)

    def job(cpus: float = 1.0, data: str = "a", api_key: str = "sesame") -> Job:
        assert data and api_key
        return bench.job("x", resources=Resources(cpus=cpus))

    def opened(**fixed: Any) -> str:
        caplog.clear()
        setup = prepare(Sweep(job, {"cpus": [1.0, 2.0]}, "auc", "max", fixed=fixed))
        made = open_record(setup, "ctr", str(tmp_path))
        made.put(trial("a", 0.5, state="finished", cpus=1.0))
        save_record(made, str(tmp_path))
        return caplog.text

    assert opened(data="s3://KEY:sesame@lake/a", api_key="sesame") == ""
    assert opened(data="s3://lake/a", api_key="other") == ""
    assert "Sweep 'ctr' goes on with data=s3://lake/b (before: s3://lake/a). Trials that have" in opened(
        data="s3://lake/b"
    )
    assert "sesame" not in Path(tmp_path, FILE_NAME).read_text()


def test_the_result_of_a_sweep_that_goes_on_has_the_values_of_its_space(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    def sized(sizes: tuple[int, ...] = (1,), seed: Any = 0) -> Job:
        assert sizes
        return job()

    setup = prepare(Sweep(sized, {"sizes": [(1, 2), (3,)], "seed": tune.sample_from(lambda _: (4,))}, "auc", "max"))
    config: dict[str, Any] = {"sizes": (1, 2), "seed": (4,)}
    ended = replace(trial("a", 0.5, state="finished", **config), best_config=config, inexact=inexact_names(config))
    save_record(record(ended), str(tmp_path))
    found = SweepResult.of(open_record(setup, "ctr", str(tmp_path)), str(tmp_path))
    assert found.best_config == {"sizes": (1, 2), "seed": [4]}  # what a function drew is not listed
    assert found.record.trials["a"].config == found.best_config


def test_a_folder_that_was_renamed_is_refused(job: Callable[..., Job], tmp_path: Path) -> None:
    setup = prepare(Sweep(job, {"cpus": [1.0, 2.0]}, "auc", "max"))
    save_record(record(trial("a")), str(tmp_path))
    assert open_record(setup, "ctr", str(tmp_path)).trials
    with pytest.raises(InvalidOption, match="holds the sweep 'ctr', .*Rename the folder to 'ctr'"):
        open_record(setup, "ctr2", str(tmp_path))


def test_a_sweep_from_outside_of_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(InvalidOption, match="started through ray://"):
        _check_is_within_cluster()


def test_trials_that_a_deadline_stopped_go_on_with_the_next_start() -> None:
    made = record(
        *(trial(name, 0.5, state=state) for name, state in (("a", "stopped"), ("b", "finished"), ("c", "stopped")))
    )
    _record_cut_off(made, {"a", "b", "gone"})
    assert {each.id: each.is_cut for each in made.trials.values()} == {"a": True, "b": False, "c": False}
    made.begin(0.0)
    assert made.trials["a"].state == "pending"
