"""Scheduler and searcher of one start of a sweep.

The user's, or the defaults.

Beyond Tune's documented surface, checked on Ray 2.56 to 2.60: the attributes in which both keep their metric and mode.
"""

from __future__ import annotations

import copy
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler, HyperBandForBOHB, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchAlgorithm, Searcher, create_searcher

from forebay.errors import InvalidOption
from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.setup import SweepSetup
from forebay.sweep.space import (
    Choice,
    Domain,
    Grid,
    TuneDomain,
    Uniform,
    WholeNumbers,
    depends_on_others,
    is_quantized,
)
from forebay.sweep.tune.sync_schedulers import end_stalled_rounds, is_synchronous

RANDOM = ("random", "variant_generator")
SEEDED = ("optuna", "bohb")
MOST_SEEDS = 1 << 32
"""Seeds that NumPy's `RandomState` takes."""


def make_scheduler(setup: SweepSetup) -> TrialScheduler:
    """Return the scheduler for one start.

    Raises `InvalidOption` for another kind of object, or one with another metric.
    """
    given = setup.sweep.scheduler
    if given is None:
        scheduler = _default_scheduler(setup)
    elif not isinstance(given, TrialScheduler):
        raise InvalidOption(f"scheduler={given!r} is not a scheduler of ray.tune.schedulers. Give one, or None.")
    else:
        # Schedulers keep state of trials. The next start of the same sweep needs a fresh one.
        scheduler = copy.deepcopy(given)
    _adopt_aim("scheduler", scheduler, setup)
    _validate_bohb(scheduler, setup)
    end_stalled_rounds(scheduler)
    return scheduler


def make_searcher(setup: SweepSetup, drawn: int = 0) -> Any:
    """Return the searcher for one start.

    `drawn` trials of earlier starts change the seed of a searcher that goes by name, so that it does not draw them
    again.

    Raises `InvalidOption` for another kind of object, or for missing packages.
    """
    given = setup.sweep.searcher
    if given is None or given in RANDOM:
        return BasicVariantGenerator(random_state=setup.sweep.seed)
    if isinstance(given, str | Searcher):
        _validate_drawable(setup)
    if not isinstance(given, str):
        if not isinstance(given, Searcher | SearchAlgorithm):
            raise InvalidOption(
                f"searcher={given!r} is not a searcher of ray.tune.search. Give one, its name, or None."
            )
        searcher = copy.deepcopy(given)
        _adopt_aim("searcher", searcher, setup)
        return searcher
    try:
        return create_searcher(given, **({"seed": (setup.sweep.seed + drawn) % MOST_SEEDS} if given in SEEDED else {}))
    except (ImportError, AssertionError) as error:
        raise InvalidOption(
            f"searcher={given!r} needs packages that are not installed ({error}). Install them, or leave searcher out "
            "to draw at random.",
            searcher=given,
        ) from error
    except ValueError as error:
        raise InvalidOption(f"searcher={given!r} is unknown to Ray Tune: {error}", searcher=given) from error


def validate_population(scheduler: TrialScheduler, num_trials: int, *, at_once: int | None, most: int | None) -> None:
    """Check that all trials of a population can train at once.

    `at_once` is the number of trials that can train at once, `most` the number that may. None means no limit. Trials of
    a synchronous population take turns. A trial that starts only after another one ends is compared with no trial.

    Raises `InvalidOption` if they cannot.
    """
    if not isinstance(scheduler, PopulationBasedTraining):
        return
    if most is not None and num_trials > most:
        raise InvalidOption(
            f"{type(scheduler).__name__} compares {num_trials} trials while they train, but only "
            f"max_concurrent={most} may train at a time. Leave max_concurrent out, or give num_trials={most}.",
            num_trials=num_trials,
            max_concurrent=most,
        )
    if at_once is not None and num_trials > at_once and not is_synchronous(scheduler):
        raise InvalidOption(
            f"{type(scheduler).__name__} compares {num_trials} trials while they train, but only {at_once} can train "
            f"at a time. Give it synch=True, so that they take turns, or num_trials={at_once}.",
            num_trials=num_trials,
            at_once=at_once,
        )


def tune_domain(domain: Domain) -> Any:
    """`domain` as a domain of Ray Tune."""
    match domain:
        case Uniform():
            return tune.uniform(domain.low, domain.high)
        case WholeNumbers():
            return tune.randint(domain.low, domain.high + 1)
        case Choice():
            return tune.choice(list(domain.values))
        case Grid():
            return tune.grid_search(list(domain.values))
        case TuneDomain():
            return domain.domain


def _default_scheduler(setup: SweepSetup) -> TrialScheduler:
    if _is_bohb(setup.sweep.searcher):
        return HyperBandForBOHB(time_attr="training_iteration", max_t=max(setup.job.epochs, 2))
    return FIFOScheduler() if setup.sweep.deadline_s is None else DeadlineScheduler(setup.sweep.deadline_s)


def _is_bohb(searcher: Any) -> bool:
    within = searcher.searcher if isinstance(searcher, ConcurrencyLimiter) else searcher
    # Compare by name: the module of the class imports packages that take seconds or may be missing.
    return within == "bohb" or any(kind.__name__ == "TuneBOHB" for kind in type(within).__mro__)


def _validate_bohb(scheduler: TrialScheduler, setup: SweepSetup) -> None:
    """Refuse half of BOHB.

    Its searcher alone learns nothing, and its scheduler alone fails at the first result.
    """
    is_bohb, is_for_bohb = _is_bohb(setup.sweep.searcher), isinstance(scheduler, HyperBandForBOHB)
    if is_bohb and not is_for_bohb:
        raise InvalidOption(
            f"searcher='bohb' learns only from the rounds of HyperBandForBOHB, but scheduler is a "
            f"{type(scheduler).__name__}. Leave scheduler out, or give another searcher ('optuna').",
            scheduler=type(scheduler).__name__,
        )
    if is_for_bohb and not is_bohb:
        raise InvalidOption(
            "HyperBandForBOHB works only with searcher='bohb'. Give that, or use HyperBandScheduler.",
            searcher=setup.sweep.searcher,
        )
    rounded = [name for name, domain in setup.domains.items() if is_quantized(domain)]
    if is_bohb and rounded:
        raise InvalidOption(
            f"searcher='bohb' does not round, but {rounded[0]} is drawn in steps. Give a list of values, or a "
            "range of whole numbers.",
            parameter=rounded[0],
        )


def _validate_drawable(setup: SweepSetup) -> None:
    """Check that a searcher can use all parameters.

    Raises `InvalidOption` for those drawn before or after it.
    """
    for name, domain in setup.domains.items():
        if isinstance(domain, Grid) or depends_on_others(domain):
            raise InvalidOption(
                f"space[{name!r}] is a {'grid' if isinstance(domain, Grid) else 'tune.sample_from'}, which no searcher "
                "but the random one draws. Give a list or a range, or leave searcher out.",
                parameter=name,
            )


def _adopt_aim(option: str, made: Any, setup: SweepSetup) -> None:
    """Pass the sweep's metric and mode on.

    Tune refuses them if they are given twice, even if equal.

    Tune also refuses a searcher with a space of its own beside the sweep's.
    """
    if getattr(getattr(made, "searcher", made), "_space", None):
        raise InvalidOption(
            f"{option}={type(made).__name__}(...) has a space of its own, and a sweep draws from Sweep(space=...). "
            "Leave it out there."
        )
    for name, wanted in (("metric", setup.sweep.metric), ("mode", setup.sweep.mode)):
        found = getattr(made, f"_{name}", None)
        if found not in (None, wanted):
            raise InvalidOption(
                f"{option}={type(made).__name__}({name}={found!r}) is for another {name} than the sweep's, {wanted!r}. "
                "Leave it out there: the sweep passes its own.",
                **{name: found},
            )
        if found is not None:
            setattr(made, f"_{name}", None)


LIMITED = (BasicVariantGenerator, ConcurrencyLimiter)
"""Searchers with a limit of their own. Tune accepts no second one."""


def concurrency_limit(searcher: Any, given: int | None) -> int | None:
    """Return the smaller of `given` and the searcher's limit.

    None without either.
    """
    own = searcher.max_concurrent if isinstance(searcher, LIMITED) else 0
    return min((number for number in (own, given) if number), default=None)


def limit_concurrency(searcher: Any, scheduler: TrialScheduler, most: int | None) -> int | None:
    """Limit `searcher` to `most` trials at once.

    Returns the limit that Tune must enforce, None for no limit.

    A `DeadlineScheduler` admits trials itself and may know all trials of a random search. Other searchers learn from
    results. They are asked for a few more trials than can train, because some must wait for resources.
    """
    if isinstance(scheduler, DeadlineScheduler):
        most = None if isinstance(searcher, BasicVariantGenerator) or most is None else most + max(most // 2, 1)
    if isinstance(searcher, LIMITED):
        searcher.max_concurrent = most or (
            0 if isinstance(searcher, BasicVariantGenerator) else searcher.max_concurrent
        )
        return None
    return most if isinstance(searcher, Searcher) else None
