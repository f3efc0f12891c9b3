"""Job of the largest possible trial, which may need more than the first sample."""

from __future__ import annotations

import logging
from typing import Any

from forebay.ray_cluster.nodes import worker_capacity
from forebay.sweep.setup import SweepSetup
from forebay.sweep.space import Choice, Domain, Grid, TuneDomain, WholeNumbers, depends_on_others, example_value
from forebay.training.job.job import Job

MAX_CHOICES = 8
"""Number of choices tried per parameter: every call of the job function takes time."""

log = logging.getLogger(__name__)


def largest_job(setup: SweepSetup) -> Job:
    """Job that needs the most CPUs to start: that of `setup`, or one that differs from it in one parameter."""
    domains, spec = setup.domains, setup.spec
    example = {name: example_value(domain) for name, domain in domains.items() if not depends_on_others(domain)}
    configs = [
        {**example, name: value}
        for name, domain in domains.items()
        if name in spec.parameters.job
        for value in _extreme_values(domain)
        if value != example.get(name)
    ]
    return max([setup.job, *(made for config in configs if (made := spec.try_job(config)) is not None)], key=_need)


def warn_if_too_large(job: Job) -> None:
    """Log a warning if the cluster has no room for a trial with the job `job`. More nodes may still join."""
    there = worker_capacity(cpus=job.resources.cpus, gpus=job.resources.gpus)
    if there < job.min_workers:
        log.warning(
            "Some trials need %d workers with %s to start; the cluster has room for %d. They wait until there is "
            "room. Add nodes, or remove large numbers of workers from the space.",
            job.min_workers,
            job.resources,
            there,
        )


def _need(job: Job) -> tuple[float, float]:
    return job.min_workers * job.resources.gpus, job.min_workers * job.resources.cpus


def _extreme_values(domain: Domain) -> list[Any]:
    """Largest whole number, or every choice. Parameters with fractions are left out: they are never a number of
    workers.
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
