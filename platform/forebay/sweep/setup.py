"""A sweep resolved once, at the border: checked, with everything worked out that trials, Tune and the record need."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ray.tune.search.variant_generator import RecursiveDependencyError, generate_variants

from forebay.driver.driver import named_driver
from forebay.errors import BadJob, InvalidOption
from forebay.job.job import Job
from forebay.job.recipe import Recipe
from forebay.runs.worker_spec import title_of as name_of_function
from forebay.storage.credentials import Access
from forebay.storage.filesystem import resolve
from forebay.sweep.space import (
    RESERVED,
    Domain,
    Grid,
    SweepParameters,
    TuneDomain,
    check_fits,
    depends_on_others,
    domain_of,
    example_of,
    text_of,
)
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial_spec import TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSetup:
    """A checked sweep.

    Attributes:
        spec: What all trials share. Its `sweep` is empty until the sweep's folder is claimed (`trial_spec`).
        domains: Parameter -> what its values are drawn from.
        job: The job of one possible trial.
        name: The folder below the storage, None for a sweep that is to be called by its `title`.
        title: The job function's module or name, and the time.
        num_trials: Number of trials that the user asked for.
        scheduler: As the user gave it; `tune.search.scheduler_of` makes that of one start.
        searcher: As the user gave it; `tune.search.searcher_of` makes that of one start.
        deadline_s: Seconds, or None without a deadline.
        max_concurrent: Largest number of trials that train at once, None for as many as fit.
        seed: Seed of random draws.
        max_failures: Number of times that a trial's own process may be lost.
    """

    spec: TrialSpec
    domains: Mapping[str, Domain]
    job: Job
    name: str | None
    title: str
    num_trials: int
    scheduler: Any
    searcher: Any
    deadline_s: float | None
    max_concurrent: int | None
    seed: int
    max_failures: int

    @property
    def grid_size(self) -> int:
        """Number of trials in one round of the grid; 1 without a grid."""
        return math.prod(len(domain.values) for domain in self.domains.values() if isinstance(domain, Grid))

    @property
    def num_rounds(self) -> int:
        """Number of times that the grid is gone through: what Tune calls `num_samples`."""
        return max(self.num_trials // self.grid_size, 1)

    @property
    def space_texts(self) -> dict[str, str]:
        """Parameter -> text of its domain, to show and to compare."""
        return {name: text_of(domain) for name, domain in self.domains.items()}

    def trial_spec(self, name: str, *, exchanges: bool) -> TrialSpec:
        """What trials are made from under the name that was claimed; `exchanges` if they branch from each other."""
        return replace(self.spec, sweep=name, exchanges=exchanges)


def prepare(sweep: Sweep) -> SweepSetup:
    """Check `sweep` before any trial starts, and work out what follows from it.

    Raises:
        BadJob: A name that is not a parameter, one that is missing, or values of another type than the parameter's.
        InvalidOption: An empty list, a range that holds nothing, an unknown driver.
    """
    takes = SweepParameters.of(sweep.job, sweep.callbacks)
    domains = {name: domain_of(name, given) for name, given in sweep.space.items()}
    for name, domain in domains.items():
        takes.check_name(name, "space")
        for annotation in takes.annotations(name):
            check_fits(name, domain, annotation)
    for name in sweep.fixed:
        takes.check_name(name, "fixed")
    _check_complete(sweep, takes)
    named_driver(sweep.driver)
    spec = _spec(sweep, takes)
    return SweepSetup(
        spec=spec,
        domains=domains,
        job=_checked_job(spec, domains),
        name=sweep.name,
        title=title_of(sweep.job),
        num_trials=sweep.num_trials,
        scheduler=sweep.scheduler,
        searcher=sweep.searcher,
        deadline_s=sweep.deadline_s,
        max_concurrent=sweep.max_concurrent,
        seed=sweep.seed,
        max_failures=sweep.max_failures,
    )


def _check_complete(sweep: Sweep, takes: SweepParameters) -> None:
    twice = sorted(sweep.space.keys() & sweep.fixed.keys())
    if twice:
        raise InvalidOption(f"{twice[0]} is in space and in fixed. Leave it out of one of them.", parameter=twice[0])
    for name in RESERVED:
        if name in sweep.space:
            raise InvalidOption(
                f"space names {name!r}, which the sweep gives to its trials itself. Leave it out.", parameter=name
            )
    known = {**takes.job, **takes.callbacks}
    missing = [name for name, each in known.items() if each.required and name not in {**sweep.space, **sweep.fixed}]
    if missing:
        raise BadJob(
            f"every trial needs {', '.join(missing)}. Put it into space or fixed.{takes.listing}", parameter=missing[0]
        )


def _spec(sweep: Sweep, takes: SweepParameters) -> TrialSpec:
    storage = resolve(sweep.storage).uri
    return TrialSpec(
        sweep="",
        storage=storage,
        # By the URI without credentials: that is the one that the trials' processes open.
        access=Access([storage]),
        recipe=sweep.job,
        takes=takes,
        fixed=dict(sweep.fixed),
        driver=sweep.driver,
        metric=sweep.metric,
        mode=sweep.mode,
        hang_timeout_s=sweep.hang_timeout_s,
        callbacks=sweep.callbacks,
    )


def _checked_job(spec: TrialSpec, domains: Mapping[str, Domain]) -> Job:
    config = _example(domains)
    job = replace(spec.job(config), storage=spec.storage)
    spec.make_callbacks(config)
    job.check()
    return job


def _example(domains: Mapping[str, Domain]) -> dict[str, Any]:
    """A config that may be drawn, the same every time; `tune.sample_from` is given the others, as in the sweep."""
    config = {name: example_of(domain) for name, domain in domains.items() if not depends_on_others(domain)}
    functions = {
        name: each.domain for name, each in domains.items() if isinstance(each, TuneDomain) and name not in config
    }
    if not functions:
        return config
    try:
        _, spec = next(generate_variants({"config": {**config, **functions}}))
    except (ValueError, RecursiveDependencyError) as error:
        raise InvalidOption(
            f"{', '.join(functions)} (tune.sample_from) cannot be drawn: {error}. Give functions like "
            "`lambda spec: 2 * spec.config.other`, which do not wait for each other."
        ) from error
    return dict(spec["config"])


def title_of(recipe: Recipe) -> str:
    """Name for a sweep that has none: the job function's module or name, and the time."""
    title = name_of_function(recipe)
    if title == "job":
        module = str(getattr(recipe, "__module__", title)).rpartition(".")[2]
        title = re.sub(r"^forebay_job_|_[0-9a-f]{8}$", "", module)
    title = re.sub(r"[^A-Za-z0-9_]+", "-", title).strip("-_") or "sweep"
    return f"{title}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
