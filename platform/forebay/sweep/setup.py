"""Setup of a sweep, checked before the first trial."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.search.variant_generator import RecursiveDependencyError, generate_variants

from forebay.errors import BadJob, InvalidOption
from forebay.ray_cluster.nodes import worker_capacity
from forebay.runtime.gpus import GpuSupply
from forebay.storage.credentials import Access
from forebay.storage.filesystem import resolve
from forebay.sweep.space import (
    RESERVED,
    Choice,
    Domain,
    Grid,
    SweepParameters,
    TuneDomain,
    WholeNumbers,
    depends_on_others,
    domain_text,
    example_value,
    parse_domain,
    validate_domain,
)
from forebay.sweep.sweep import Sweep
from forebay.sweep.trial_spec import RESULT_FACTS, TrialSpec
from forebay.training.driver.driver import named_driver
from forebay.training.job.job import Job
from forebay.training.job.recipe import Recipe
from forebay.training.job.resources import Resources, settled, share_text
from forebay.training.runs.job_facts import public_fact
from forebay.training.runs.worker_spec import title_of as name_of_function

MAX_CHOICES = 8
"""Choices tried per parameter for the largest job: every call of the job function takes time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSetup:
    """A checked and resolved sweep.

    Attributes:
        sweep: The sweep as given. `tune.search` makes the scheduler and the searcher of a single start from it.
        spec: Options shared by all trials. Its `sweep` is empty until the sweep's folder is acquired (`trial_spec`).
        domains: Parameter -> domain of its values.
        job: Job of one possible trial.
        title: Name for an unnamed sweep: the job function's module or name, and the time.
    """

    sweep: Sweep
    spec: TrialSpec
    domains: Mapping[str, Domain]
    job: Job
    title: str

    @property
    def grid_size(self) -> int:
        """Return the number of trials per round of the grid.

        1 without a grid.
        """
        return math.prod(len(domain.values) for domain in self.domains.values() if isinstance(domain, Grid))

    @property
    def num_rounds(self) -> int:
        """Number of rounds through the grid: Tune's `num_samples`."""
        return max(self.sweep.num_trials // self.grid_size, 1)

    @property
    def space_texts(self) -> dict[str, str]:
        """Return parameter -> text of its domain.

        To show and to compare.
        """
        return {name: domain_text(domain) for name, domain in self.domains.items()}

    @property
    def fixed_texts(self) -> dict[str, str]:
        """Return parameter -> text of the value that all trials share, without credentials."""
        return {name: f"{public_fact(name, value)}" for name, value in self.spec.fixed.items()}

    def with_gpus(self, supply: GpuSupply) -> SweepSetup:
        """Return the setup with the GPUs of each worker decided.

        For all trials alike. Raises `InvalidOption` if the first of them has no room, and none can come.
        """
        job = self.job
        given = settled(job.resources, supply, workers=job.min_workers)
        if text := share_text(job.resources, given, supply, workers=job.min_workers):
            log.info("Each trial: %s.", text)
        default = settled(Resources(), supply, workers=0).gpus
        return replace(self, job=replace(job, resources=given), spec=replace(self.spec, gpus=default))

    def trial_spec(self, name: str, *, has_exchange: bool) -> TrialSpec:
        """Return the trials' spec under the claimed `name`.

        `has_exchange`: trials fork from each other's checkpoints.
        """
        return replace(self.spec, sweep=name, has_exchange=has_exchange)


def prepare(sweep: Sweep) -> SweepSetup:
    """Check `sweep` before any trial starts and resolve it.

    Raises:
        BadJob: A name that is not a parameter, a missing parameter, or values of a wrong type.
        InvalidOption: An empty list, an empty range, an unknown driver, a metric of a name that results use.
    """
    if sweep.metric in {*RESULT_FACTS, *AUTO_RESULT_KEYS}:
        raise InvalidOption(
            f"metric={sweep.metric!r} is the name of a fact that every trial's result has. Report the metric under "
            "another name.",
            metric=sweep.metric,
        )
    parameters = SweepParameters.of(sweep.job, sweep.callbacks)
    domains = {name: parse_domain(name, given) for name, given in sweep.space.items()}
    for name, domain in domains.items():
        parameters.validate_name(name, "space")
        for annotation in parameters.annotations(name):
            validate_domain(name, domain, annotation)
    for name in sweep.fixed:
        parameters.validate_name(name, "fixed")
    _check_complete(sweep, parameters)
    named_driver(sweep.driver)
    spec = _spec(sweep, parameters)
    return SweepSetup(
        sweep=sweep, spec=spec, domains=domains, job=_checked_job(spec, domains), title=title_of(sweep.job)
    )


def _check_complete(sweep: Sweep, parameters: SweepParameters) -> None:
    twice = sorted(sweep.space.keys() & sweep.fixed.keys())
    if twice:
        raise InvalidOption(f"{twice[0]} is in space and in fixed. Leave it out of one of them.", parameter=twice[0])
    for name in RESERVED:
        if name in sweep.space:
            raise InvalidOption(
                f"space names {name!r}, which the sweep sets for its trials. Leave it out.", parameter=name
            )
    known = {**parameters.job, **parameters.callbacks}
    missing = [name for name, each in known.items() if each.required and name not in {**sweep.space, **sweep.fixed}]
    if missing:
        raise BadJob(
            f"every trial needs {', '.join(missing)}. Put it into space or fixed.{parameters.listing}",
            parameter=missing[0],
        )


def _spec(sweep: Sweep, parameters: SweepParameters) -> TrialSpec:
    storage = resolve(sweep.storage).uri
    return TrialSpec(
        sweep="",
        storage=storage,
        # The access is for the URI without credentials, which the trials' processes open.
        access=Access([storage]),
        recipe=sweep.job,
        parameters=parameters,
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
    """Return a deterministic sample config.

    `tune.sample_from` receives the other values, as in the sweep.
    """
    config = {name: example_value(domain) for name, domain in domains.items() if not depends_on_others(domain)}
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
    """Name a sweep without a name.

    By the job function's module or name, and the time.
    """
    title = name_of_function(recipe)
    if title == "job":
        module = str(getattr(recipe, "__module__", title)).rpartition(".")[2]
        title = re.sub(r"^forebay_job_|_[0-9a-f]{8}$", "", module)
    title = re.sub(r"[^A-Za-z0-9_]+", "-", title).strip("-_") or "sweep"
    return f"{title}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def largest_job(setup: SweepSetup) -> Job:
    """Return the possible job that needs the most CPUs.

    To start: the job of `setup`, or one that differs from it in one parameter.
    """
    domains, spec = setup.domains, setup.spec
    example = {name: example_value(domain) for name, domain in domains.items() if not depends_on_others(domain)}
    configs = [
        {**example, name: value}
        for name, domain in domains.items()
        if name in spec.parameters.job
        for value in _extreme_values(domain)
        if value is not example.get(name)
    ]
    return max([setup.job, *(made for config in configs if (made := spec.try_job(config)) is not None)], key=_need)


def warn_if_too_large(job: Job) -> None:
    """Log a warning if the cluster is too small for `job`.

    More nodes may still join.
    """
    there = worker_capacity(job.resources.bundle)
    if there < job.min_workers:
        log.warning(
            "Some trials need %d workers with %s to start; the cluster has room for %d. They wait until there is "
            "room. Add nodes, or remove large numbers of workers from the space.",
            job.min_workers,
            job.resources,
            there,
        )


def _need(job: Job) -> tuple[float, float]:
    share = job.resources.bundle
    return job.min_workers * share["GPU"], job.min_workers * share["CPU"]


def _extreme_values(domain: Domain) -> list[Any]:
    """Return the largest whole number, or every choice.

    Parameters with fractions are left out: they are never a number of workers.
    """
    match domain:
        case WholeNumbers():
            return [domain.high]
        case Choice() | Grid():
            return _far(list(domain.values))
        case TuneDomain() if getattr(domain.domain, "categories", None) is not None:
            return _far(list(domain.domain.categories))
        case TuneDomain() if isinstance(upper := getattr(domain.domain, "upper", None), int):
            return [upper - 1]
    return []


def _far(values: list[Any]) -> list[Any]:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [max(values)] if isinstance(max(values), int) else []
    return values[:MAX_CHOICES]
