"""What the greatest trial of a sweep needs to begin, which may be more than a first sample does."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from forebay.job.job import Job
from forebay.ray_cluster.nodes import worker_capacity
from forebay.sweep.setup import SweepSetup
from forebay.sweep.space import Choice, Domain, Grid, TuneDomain, WholeNumbers, depends_on_others, example_of

MAX_WORDS = 8
"""Of longer lists only the first are tried: every job function called takes its time."""

log = logging.getLogger(__name__)


def greatest_job(setup: SweepSetup) -> Job:
    """The job that needs the most CPUs to begin: that of `setup`, or one that differs from it in one parameter."""
    domains, spec = setup.domains, setup.spec
    example = {name: example_of(domain) for name, domain in domains.items() if not depends_on_others(domain)}
    configs = [
        {**example, name: value}
        for name, domain in domains.items()
        if name in spec.takes.job
        for value in _far_values(domain)
        if value != example.get(name)
    ]
    return max([setup.job, *(made for config in configs if (made := _made(spec.job, config)) is not None)], key=_need)


def check_greatest(job: Job) -> None:
    """Say so where the cluster has no room for a trial whose job is `job`: more nodes may still come."""
    there = worker_capacity(cpus=job.resources.cpus, gpus=job.resources.gpus)
    if there < job.min_workers:
        log.warning(
            "Some trials need %d workers with %s to begin; the cluster takes %d such workers. They wait until there "
            "is room. Add nodes, or leave so many workers out of the space.",
            job.min_workers,
            job.resources,
            there,
        )


def _need(job: Job) -> tuple[float, float]:
    return job.min_workers * job.resources.gpus, job.min_workers * job.resources.cpus


def _made(make: Any, config: Mapping[str, Any]) -> Job | None:
    try:
        made: Job = make(config)
    except Exception:  # noqa: BLE001 - the user's function may raise anything; the trial fails by itself
        return None
    return made


def _far_values(domain: Domain) -> list[Any]:
    """The greatest where they are whole numbers, and each word; no parameter with fractions counts workers."""
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
    return values[:MAX_WORDS]
