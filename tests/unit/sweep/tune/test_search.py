"""Scheduler and searcher of one start of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
)
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher, create_searcher

from forebay.errors import InvalidOption
from forebay.sweep.setup import SweepSetup, prepare
from forebay.sweep.sweep import Sweep
from forebay.sweep.tune.search import make_scheduler, make_searcher, validate_population
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.job import Job


@pytest.fixture
def setup(tmp_path: Path) -> Callable[..., SweepSetup]:
    bench = DriverBench(tmp_path)

    def job(lr: float = 0.1, epochs: int = 2) -> Job:
        assert lr
        return bench.job("x", epochs=epochs)

    def make(domain: Any = (0.1, 0.2), epochs: int = 2, **options: Any) -> SweepSetup:
        return prepare(Sweep(job, {"lr": domain}, "loss", "min", fixed={"epochs": epochs}, **options))

    return make


def test_every_start_has_a_scheduler_and_a_searcher_that_have_seen_nothing(setup: Callable[..., SweepSetup]) -> None:
    made = setup(scheduler=ASHAScheduler(max_t=9), searcher=BasicVariantGenerator())
    for _ in range(2):
        assert make_scheduler(made).set_search_properties("loss", "min")
        assert make_searcher(made) is not made.sweep.searcher


def test_a_metric_of_its_own_may_be_the_sweeps(setup: Callable[..., SweepSetup]) -> None:
    made = make_scheduler(setup(scheduler=ASHAScheduler(metric="loss", mode="min")))
    assert made.set_search_properties("loss", "min") and made.metric == "loss"


@pytest.mark.parametrize("limit", [None, 2])
def test_a_space_of_the_searchers_own_is_refused(setup: Callable[..., SweepSetup], limit: int | None) -> None:
    space = {"lr": pytest.importorskip("optuna").distributions.FloatDistribution(0.1, 0.2)}
    searcher = create_searcher("optuna", space=space, metric="loss", mode="min")
    given = searcher if limit is None else ConcurrencyLimiter(searcher, max_concurrent=limit)
    with pytest.raises(InvalidOption, match=r"has a space of its own, .*Sweep\(space="):
        make_searcher(setup(searcher=given))


def test_every_seed_of_a_sweep_is_one_of_optuna(setup: Callable[..., SweepSetup]) -> None:
    pytest.importorskip("optuna")
    drawn = []
    for seed in (7, (1 << 32) + 7):
        searcher = make_searcher(setup(searcher="optuna", seed=seed))
        searcher.set_search_properties("loss", "min", {"lr": tune.uniform(0.0, 1.0)})
        drawn.append(searcher.suggest("a"))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("own", [{"metric": "auc"}, {"mode": "max"}])
def test_another_metric_is_refused(setup: Callable[..., SweepSetup], own: dict[str, str]) -> None:
    with pytest.raises(
        InvalidOption, match=r"AsyncHyperBandScheduler\(.*is for another (metric|mode) than the sweep's"
    ):
        make_scheduler(setup(scheduler=ASHAScheduler(**own)))


def test_a_population_has_to_stand_side_by_side_unless_it_takes_turns() -> None:
    with pytest.raises(InvalidOption, match="compares 5 trials while they train, but only 4 can"):
        validate_population(population(), 5, at_once=4, most=None)
    for scheduler, trials in ((population(), 4), (population(synch=True), 5), (FIFOScheduler(), 5)):
        validate_population(scheduler, trials, at_once=4, most=None)
    validate_population(population(), 5, at_once=None, most=5)


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_a_population_of_which_some_have_to_wait_for_the_end_of_others_is_refused(is_synchronous: bool) -> None:
    with pytest.raises(InvalidOption, match=r"compares 5 trials while they train, but only max_concurrent=4 may"):
        validate_population(population(synch=is_synchronous), 5, at_once=8, most=4)


def population(**options: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(hyperparam_mutations={"lr": tune.uniform(0, 1)}, **options)


def test_bohb_and_its_scheduler_come_together(setup: Callable[..., SweepSetup]) -> None:
    made = make_scheduler(setup(searcher="bohb", deadline_s=60.0, epochs=9))
    assert isinstance(made, HyperBandForBOHB) and made._max_t_attr == 9
    for wrong in (ASHAScheduler(), FIFOScheduler(), HyperBandScheduler()):
        with pytest.raises(InvalidOption, match=r"learns only from the rounds of HyperBandForBOHB, but scheduler is"):
            make_scheduler(setup(searcher="bohb", scheduler=wrong))
    for searcher in (None, "optuna", BasicVariantGenerator()):
        with pytest.raises(InvalidOption, match="HyperBandForBOHB works only with searcher='bohb'"):
            make_scheduler(setup(searcher=searcher, scheduler=HyperBandForBOHB()))


def test_bohb_is_known_within_a_limit_and_draws_no_steps(setup: Callable[..., SweepSetup]) -> None:
    given = ConcurrencyLimiter(TuneBOHB(), 2)
    assert isinstance(make_scheduler(setup(searcher=given, epochs=1)), HyperBandForBOHB)
    stepwise = setup(tune.quniform(0.2, 0.8, 0.2), searcher="bohb")
    with pytest.raises(InvalidOption, match="does not round, but lr is drawn in steps"):
        make_scheduler(stepwise)


@pytest.mark.parametrize(
    ("given", "what"), [({"grid_search": [1, 2]}, "grid"), (tune.sample_from(lambda _: 1), "tune")]
)
def test_a_searcher_draws_no_grid_and_nothing_that_depends_on_others(
    setup: Callable[..., SweepSetup], given: Any, what: str
) -> None:
    for searcher in ("optuna", ConcurrencyLimiter(TuneBOHB(), 2)):
        with pytest.raises(InvalidOption, match=rf"space\['lr'\] is a {what}.* which no searcher but the random one"):
            make_searcher(setup(given, searcher=searcher))
    for drawn in (None, "random", BasicVariantGenerator()):
        make_searcher(setup(given, searcher=drawn))


class TuneBOHB(Searcher):  # type: ignore[misc]
    """A searcher with the name of Ray Tune's, which needs packages that take seconds to import."""
