"""The scheduler and the searcher of a start of a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator

from forebay.errors import InvalidOption
from forebay.job.job import Job
from forebay.sweep.choosing import check_population, scheduler_of, searcher_of
from forebay.sweep.sweep import Sweep


def job(lr: float = 0.1) -> Job:
    raise NotImplementedError


def sweep(**options: Any) -> Sweep:
    return Sweep(job, {"lr": (0.1, 0.2)}, "loss", "min", **options)


def test_every_start_has_a_scheduler_and_a_searcher_that_have_seen_nothing() -> None:
    made = sweep(scheduler=ASHAScheduler(max_t=9), searcher=BasicVariantGenerator())
    for _ in range(2):
        assert scheduler_of(made, None).set_search_properties("loss", "min")  # type: ignore[arg-type]
        assert searcher_of(made) is not made.searcher


def test_a_metric_of_its_own_may_be_the_sweeps() -> None:
    made = scheduler_of(sweep(scheduler=ASHAScheduler(metric="loss", mode="min")), None)  # type: ignore[arg-type]
    assert made.set_search_properties("loss", "min") and made.metric == "loss"


@pytest.mark.parametrize("own", [{"metric": "auc"}, {"mode": "max"}])
def test_another_metric_is_refused(own: dict[str, str]) -> None:
    with pytest.raises(
        InvalidOption, match=r"AsyncHyperBandScheduler\(.*is for another (metric|mode) than the sweep's"
    ):
        scheduler_of(sweep(scheduler=ASHAScheduler(**own)), None)  # type: ignore[arg-type]


def test_a_population_has_to_stand_side_by_side_unless_it_takes_turns() -> None:
    def population(**options: Any) -> PopulationBasedTraining:
        return PopulationBasedTraining(hyperparam_mutations={"lr": tune.uniform(0, 1)}, **options)

    with pytest.raises(InvalidOption, match="compare 5 trials while they train, and only 4 can"):
        check_population(population(), 5, 4)
    for scheduler, trials in ((population(), 4), (population(synch=True), 5), (FIFOScheduler(), 5)):
        check_population(scheduler, trials, 4)
