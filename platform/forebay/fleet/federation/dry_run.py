"""Dry run of a job on a fleet, without requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.fleet.cluster import Cluster
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.placement.capacity import HEAD_POOL, Capacity, NodeGroup, Shape
from forebay.fleet.placement.history import PlacementHistory
from forebay.fleet.placement.place import FleetView, Placement, machine_of, place, too_large
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.rayjob.pod_facts import PodFact, pod_facts
from forebay.fleet.rayjob.preflight import preflight
from forebay.fleet.rayjob.render import render
from forebay.fleet.spec.job_spec import JobSpec, Task, ordered
from forebay.fleet.spec.quantity import millicpus, nbytes
from forebay.fleet.submitter import Submitter


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Ranked clusters for a task, and its first RayJob.

    The RayJob is for the best cluster. None if none may be used. `too_large` says why no cluster could hold it even
    when empty. `pods` has what its pods get.
    """

    task: Task
    placement: Placement
    ray_job: Mapping[str, Any] | None
    too_large: str | None = None
    pods: tuple[PodFact, ...] = ()


def dry_run(
    spec: JobSpec,
    fleet: Fleet,
    capacities: Mapping[str, Capacity] | None = None,
    submitter: Submitter | None = None,
) -> tuple[TaskPlan, ...]:
    """Return plans of a job's tasks, in their order.

    A cluster without `capacities` counts as empty and large enough. Raises `InvalidJobSpec` for a job that no
    cluster could ever run, and `InvalidOption` for a RayJob that KubeRay's operator would refuse.
    """
    fleet.check(spec)
    # Figures count as new: they were read for this.
    found = {each.name: _empty(each) for each in fleet.cluster} | dict(capacities or {})
    view = FleetView(clusters=fleet.cluster, capacities=found)
    return tuple(_plan(spec, task, fleet, view, submitter) for task in ordered(spec.task))


def _plan(spec: JobSpec, task: Task, fleet: Fleet, view: FleetView, submitter: Submitter | None) -> TaskPlan:
    placement = place(spec, task, view, PlacementHistory(), now=0.0)
    best = placement.best
    if best is None:
        reason = too_large(spec, task, view, 0.0)
        return TaskPlan(task=task, placement=placement, ray_job=None, too_large=reason)
    attempt = PlacedAttempt(
        spec=spec,
        task=task,
        number=1,
        sku=best.sku,
        market=best.market,
        workers=best.workers,
        is_head_apart=best.is_head_apart,
        submitter=submitter,
    )
    cluster = fleet.named(best.cluster)
    ray_job = render(attempt, cluster)
    preflight(ray_job)
    return TaskPlan(task=task, placement=placement, ray_job=ray_job, pods=pod_facts(ray_job, attempt, cluster))


def _empty(cluster: Cluster) -> Capacity:
    """Return the capacity of an empty cluster.

    It has as many machines as its SKUs allow, or more than any job takes.
    """
    if not cluster.sku:
        return Capacity(cluster=cluster.name, observed_at=0.0, fault="its catalogue was not read")
    plenty = 1_000_000
    nodes = [
        NodeGroup(machine_of(sku), (f"{name}/{market}",), sku.most_nodes or plenty)
        for name, sku in cluster.sku.items()
        for market in sku.markets
    ]
    head = Shape(millicpus(cluster.head_cpu), nbytes(cluster.head_memory))
    return Capacity(cluster=cluster.name, observed_at=0.0, nodes=(*nodes, NodeGroup(head, (HEAD_POOL,), plenty)))
