"""A sweep that cannot work is refused before any trial starts. Jobs of trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.search.repeater import TRIAL_INDEX

from forebay.errors import BadJob, InvalidOption, MissingColumn
from forebay.events import Event
from forebay.sweep.run_sweep import run_sweep
from forebay.sweep.setup import prepare, title_of
from forebay.sweep.space import domain_text, parse_domain
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial_spec import TrialSpec, pack, unpack
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.runs.control import Callback, Control

JobFunction = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path) -> JobFunction:
    bench = DriverBench(tmp_path)

    def make(checkpoint_every: int = 3, seed: int = 0, most: int = 2, storage: str = "runs") -> Job:
        elastic = Elastic(min_workers=1, max_workers=most)
        return bench.job("x", checkpoint_every=checkpoint_every, seed=seed, elastic=elastic, storage=storage)

    return make


@dataclass(frozen=True)
class Doubling:
    every: int

    def __call__(self, event: Event, control: Control) -> None:
        """Does nothing."""


def doubling(every: int = 30) -> Sequence[Callback]:
    return [Doubling(every)]


def sweep(job: JobFunction, space: dict[str, Any], tmp_path: Path, **options: Any) -> Sweep:
    return Sweep(job, space, "loss", "min", **{"storage": str(tmp_path / "sweeps"), "driver": "local", **options})


def spec_of(made: Sweep, has_exchange: bool = False) -> TrialSpec:
    return prepare(made).trial_spec("ctr", has_exchange=has_exchange)


def test_a_sweep_that_can_work_is_checked_without_a_trace(job: JobFunction, tmp_path: Path) -> None:
    checked = sweep(
        job, {"checkpoint_every": [2, 4], "every": (1, 8)}, tmp_path, callbacks=doubling, fixed={"seed": "3"}
    )
    assert prepare(checked).job.seed == 3
    assert list((tmp_path / "sweeps").iterdir()) == []


@pytest.mark.parametrize(
    ("space", "options", "error", "message"),
    [
        (
            {"chekpoint_every": [1]},
            {},
            BadJob,
            "Did you mean 'checkpoint_every'.*The job takes:\n  checkpoint_every: int = 3",
        ),
        ({"every": (1, 3)}, {}, BadJob, "not a parameter"),
        ({"checkpoint_every": (3, 1)}, {}, InvalidOption, "less than high"),
        ({"checkpoint_every": (0.5, 2.5)}, {}, BadJob, "but checkpoint_every is a int"),
        ({"checkpoint_every": [2, 0]}, {"fixed": {"sed": 1}}, BadJob, "fixed names 'sed'.*Did you mean 'seed'"),
        ({"checkpoint_every": [1]}, {"fixed": {"seed": "x"}}, BadJob, "seed=x is not of type int"),
        ({"seed": [1]}, {"fixed": {"seed": 2}}, InvalidOption, "in space and in fixed"),
        ({"storage": ["a", "b"]}, {}, InvalidOption, "the sweep sets for its trials"),
        ({"checkpoint_every": [0]}, {}, InvalidOption, "checkpoint_every=0 cannot work"),
        ({"seed": [1]}, {"driver": "rai"}, InvalidOption, "driver='rai' is unknown"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    job: JobFunction, tmp_path: Path, space: dict[str, Any], options: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        run_sweep(sweep(job, space, tmp_path, **options))
    assert not (tmp_path / "sweeps").exists() or list((tmp_path / "sweeps").iterdir()) == []


@pytest.mark.parametrize("metric", ["epoch", "workers", "timestamp"])
def test_a_metric_that_a_result_would_hide_is_refused(job: JobFunction, tmp_path: Path, metric: str) -> None:
    with pytest.raises(InvalidOption, match=f"metric='{metric}' is the name of a fact .*another name"):
        prepare(replace(sweep(job, {"seed": [1]}, tmp_path), metric=metric))


def test_missing_parameter_is_named(tmp_path: Path) -> None:
    def needy(lr: float, depth: int) -> Job:
        raise NotImplementedError

    with pytest.raises(BadJob, match=r"(?s)needs depth.*depth: int \(required\)"):
        prepare(sweep(needy, {"lr": (0.1, 0.2)}, tmp_path))


def test_what_is_wrong_with_the_job_is_found_before_a_trial(tmp_path: Path) -> None:
    def bad(lr: float = 0.1) -> Job:
        raise MissingColumn("the files have no column 'z'")

    with pytest.raises(MissingColumn, match="no column 'z'"):
        run_sweep(sweep(bad, {"lr": (0.1, 0.2)}, tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_trials": 0}, "num_trials"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"hang_timeout_s": float("nan")}, "hang_timeout_s"),
        ({"name": "../x"}, "cannot name a folder"),
        ({"name": "x" * 250}, "cannot name a folder, and its trials' runs. Use up to 230"),
    ],
)
def test_options_that_can_never_work_are_refused(job: JobFunction, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Sweep(job, {"seed": [1]}, "loss", "min", **options)


@pytest.mark.parametrize(
    ("metric", "mode", "space"), [("", "min", {"a": [1]}), ("x", "best", {"a": [1]}), ("x", "min", {})]
)
def test_metric_mode_and_space_are_needed(job: JobFunction, metric: str, mode: Any, space: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Sweep(job, space, metric, mode)


class TestTask:
    def test_trial_has_its_own_name_and_its_least_workers(self, job: JobFunction, tmp_path: Path) -> None:
        spec = spec_of(sweep(job, {"most": (2, 4)}, tmp_path, hang_timeout_s=9.0))
        made = spec.make_trial_job({"most": 4}, "ab_1", generation=2)
        assert made.name == "ctr.ab_1.2"
        assert made.storage == str(tmp_path / "sweeps" / "ctr" / "runs")
        assert made.elastic == Elastic(min_workers=1, max_workers=4, start=1)
        assert made.hang_timeout_s == 9.0

    def test_parameters_of_callbacks_are_swept_beside_those_of_the_job(self, job: JobFunction, tmp_path: Path) -> None:
        spec = spec_of(sweep(job, {"every": [2, 5], "checkpoint_every": [1]}, tmp_path, callbacks=doubling))
        config = {"every": 5, "checkpoint_every": 7}
        assert spec.job(config).checkpoint_every == 7
        (made,) = spec.make_callbacks(config)
        assert made == Doubling(5)

    def test_commits_for_others_go_to_storage_at_once(self, job: JobFunction, tmp_path: Path) -> None:
        spec = spec_of(sweep(job, {"seed": [1]}, tmp_path), has_exchange=True)
        made = spec.make_trial_job({"seed": 1}, "ab_1")
        assert made.storage_every_s == 0.0 and made.keep_last >= 3

    def test_what_a_scheduler_mutates_is_a_parameter(self, job: JobFunction, tmp_path: Path) -> None:
        spec = spec_of(sweep(job, {"seed": (1, 9)}, tmp_path))
        with pytest.raises(BadJob, match="config names 'sed', which is not a parameter. Did you mean 'seed'"):
            spec.job({"seed": 4, "sed": 5})

    def test_what_tune_adds_to_a_config_is_no_parameter(self, job: JobFunction, tmp_path: Path) -> None:
        spec = spec_of(sweep(job, {"seed": (1, 9)}, tmp_path))
        assert spec.job({"seed": 4, TRIAL_INDEX: 0}).seed == 4

    def test_numbers_of_numpy_are_numbers(self, job: JobFunction, tmp_path: Path) -> None:
        spec = spec_of(sweep(job, {"seed": (1, 9)}, tmp_path))
        assert spec.job({"seed": np.int64(4)}).seed == 4

    def test_travels_with_the_users_own_code(self, job: JobFunction, tmp_path: Path) -> None:
        spec = unpack(pack(spec_of(sweep(job, {"seed": [1]}, tmp_path, callbacks=doubling))))
        assert spec.make_trial_job({"seed": 5}, "ab_1").seed == 5

    def test_what_cannot_travel_is_said(self, job: JobFunction, tmp_path: Path) -> None:
        with (tmp_path / "open").open("w") as file:

            def make(seed: int = 0) -> Job:
                file.write("x")
                return job(seed=seed)

            with pytest.raises(BadJob, match="cannot be sent"):
                pack(spec_of(sweep(make, {"seed": [1]}, tmp_path)))


class Called:
    """A job function that is an object."""

    def __call__(self, seed: int = 0) -> Job:
        raise NotImplementedError


@pytest.mark.parametrize("made", [partial(Called(), seed=1), Called()])
def test_a_job_without_a_name_names_its_sweep(made: JobFunction) -> None:
    assert title_of(made).startswith("Called-20")


def test_a_parameter_that_follows_from_others_needs_no_default(job: JobFunction, tmp_path: Path) -> None:
    def needs(seed: int, checkpoint_every: int) -> Job:
        return job(seed=seed, checkpoint_every=checkpoint_every)

    space = {"seed": [4], "checkpoint_every": tune.sample_from(lambda spec: spec.config.seed * 2)}
    assert prepare(sweep(needs, space, tmp_path)).job.checkpoint_every == 8
    space["checkpoint_every"] = tune.sample_from(lambda spec: spec.config.sed)
    with pytest.raises(InvalidOption, match=r"checkpoint_every .*cannot be drawn"):
        prepare(sweep(needs, space, tmp_path))


def test_spaces_have_texts_to_compare() -> None:
    def texts(**space: Any) -> dict[str, str]:
        return {name: domain_text(parse_domain(name, given)) for name, given in space.items()}

    def twice(config: dict[str, Any]) -> int:
        return 2 * int(config["b"])

    assert texts(a=tune.loguniform(1e-3, 1), b=[1], c=tune.sample_from(twice), d=tune.choice([twice])) == texts(
        a=tune.loguniform(1e-3, 1), b=[1], c=tune.sample_from(twice), d=tune.choice([twice])
    )
    drawn: list[Any] = [
        tune.uniform(1, 100),
        tune.loguniform(1, 100),
        tune.quniform(0, 100, 5),
        tune.qloguniform(5, 100, 5),
        tune.randint(1, 100),
        tune.randn(1, 100),
        tune.randn(1, 10),
        tune.choice([1, 100]),
        (1, 100),
        [1, 100],
        {"grid_search": [1, 100]},
    ]
    assert len({texts(a=each)["a"] for each in drawn}) == len(drawn)
    assert " at 0x" not in str(texts(d=tune.choice([twice])))
