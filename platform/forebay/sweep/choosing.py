"""The scheduler and the searcher of one start of a sweep: the user's own, or those that fit what was asked for.

Beyond Tune's documented surface, checked on Ray 2.60, is where both keep their metric and mode.
"""

from __future__ import annotations

import copy
from typing import Any

from ray.tune.schedulers import FIFOScheduler, HyperBandForBOHB, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher, create_searcher

from forebay.errors import InvalidOption
from forebay.job.job import Job
from forebay.sweep.rounds import is_synchronous, keep_rounds_going
from forebay.sweep.scheduler import DeadlineScheduler
from forebay.sweep.sweep import Sweep

SEEDED = ("optuna", "bohb")


def scheduler_of(sweep: Sweep, job: Job) -> TrialScheduler:
    """A scheduler for one start of `sweep`. Raises `InvalidOption` for one that is none, or for another metric."""
    given = sweep.scheduler
    if given is None:
        scheduler = _own_scheduler(sweep, job)
    elif not isinstance(given, TrialScheduler):
        raise InvalidOption(f"scheduler={given!r} is none of ray.tune.schedulers. Give one, or None.")
    else:
        # They keep what they have seen of trials: the next start of the same sweep has to begin without it.
        scheduler = copy.deepcopy(given)
    _check_aim("scheduler", scheduler, sweep)
    keep_rounds_going(scheduler)
    return scheduler


def searcher_of(sweep: Sweep) -> Any:
    """A searcher for one start of `sweep`. Raises `InvalidOption` for one that is none, or needs what is missing."""
    given = sweep.searcher
    if given is None or given == "random":
        return BasicVariantGenerator(random_state=sweep.seed)
    if not isinstance(given, str):
        if not isinstance(given, Searcher | SearchAlgorithm):
            raise InvalidOption(f"searcher={given!r} is none of ray.tune.search. Give one, the name of one, or None.")
        searcher = copy.deepcopy(given)
        _check_aim("searcher", searcher, sweep)
        return searcher
    try:
        return create_searcher(given, **({"seed": sweep.seed} if given in SEEDED else {}))
    except (ImportError, AssertionError) as error:
        raise InvalidOption(
            f"searcher={given!r} needs packages that are not installed ({error}). Install them, or leave searcher out "
            "to draw at random.",
            searcher=given,
        ) from error
    except ValueError as error:
        raise InvalidOption(f"searcher={given!r} is unknown to Ray Tune: {error}", searcher=given) from error


def check_population(scheduler: TrialScheduler, num_trials: int, slots: int) -> None:
    """Raises `InvalidOption` for trials that are to go on from each other's commits, and never stand side by side."""
    if not isinstance(scheduler, PopulationBasedTraining) or is_synchronous(scheduler) or num_trials <= slots:
        return
    raise InvalidOption(
        f"{type(scheduler).__name__} is to compare {num_trials} trials while they train, and only {slots} can at a "
        f"time. Give it synch=True, which lets them take turns, or num_trials={slots}.",
        num_trials=num_trials,
        slots=slots,
    )


def _own_scheduler(sweep: Sweep, job: Job) -> TrialScheduler:
    if sweep.searcher == "bohb":
        return HyperBandForBOHB(time_attr="training_iteration", max_t=max(job.epochs, 2))
    return FIFOScheduler() if sweep.deadline_s is None else DeadlineScheduler(sweep.deadline_s)


def _check_aim(option: str, made: Any, sweep: Sweep) -> None:
    """Tune refuses a metric or mode in two places, even the same; a searcher with a space of its own needs its own."""
    if getattr(made, "_space", None):
        return
    for name, wanted in (("metric", sweep.metric), ("mode", sweep.mode)):
        found = getattr(made, f"_{name}", None)
        if found not in (None, wanted):
            raise InvalidOption(
                f"{option}={type(made).__name__}({name}={found!r}) is for another {name} than the sweep's, {wanted!r}. "
                "Leave it out there: the sweep hands on its own.",
                **{name: found},
            )
        if found is not None:
            setattr(made, f"_{name}", None)
