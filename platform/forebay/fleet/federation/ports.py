"""Interfaces of clusters and storage for the federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from forebay.fleet.cluster import Cluster
from forebay.fleet.lifecycle.decide import SeenClaim, SeenRayJob
from forebay.fleet.lifecycle.states import Target
from forebay.fleet.placement.capacity import Capacity
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.training.runs.attempts.files import How


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster at one time.

    Attributes:
        capacity: Its free room.
        ray_jobs: RayJobs of Forebay, by name. None if the cluster gives no answer.
        counted: RayJobs whose pods are part of `capacity`.
        is_refused: Whether it refused our credentials.
        cluster: The cluster as it is described now. None: as in the fleet.
    """

    capacity: Capacity
    ray_jobs: Mapping[str, SeenRayJob] | None = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    is_refused: bool = False
    cluster: Cluster | None = None


class ClusterPort(Protocol):
    """Requests to the clusters of a fleet.

    Laws:
    - `look_all` has a view of every cluster, and does not raise. A cluster without an answer is a view with a fault,
      and delays the others by 10 s at most.
    - `delete` leaves a RayJob with another key than `key` alone: somebody else made it.
    - `create` and `delete` may be repeated. They raise `KubeError`, also for a request that was carried out.
    """

    def look_all(self, now: float) -> Mapping[str, ClusterView]: ...

    def create(self, cluster: str, attempt: PlacedAttempt) -> None: ...

    def delete(self, cluster: str, name: str, *, key: str | None = None) -> None: ...


class StoragePort(Protocol):
    """Claims and ends of runs, in storage.

    Laws:
    - `claim` creates exclusively: of all processes that claim a number, only one ever succeeds.
    - `end` records how attempt `number` ended, unless its end is recorded.
    - A method that gets no answer raises `ReadFailed` or `WriteFailed`.
    """

    def newest_claim(self, spec: JobSpec, task: Task) -> SeenClaim | None: ...

    def failures(self, spec: JobSpec, task: Task, *, since: int, before: int) -> int:
        """Count recorded failures of attempts `since` to `before` - 1."""

    def is_stopped(self, spec: JobSpec, task: Task, live: int = 0) -> bool: ...

    def claim(self, spec: JobSpec, task: Task, number: int, target: Target) -> bool: ...

    def end(self, spec: JobSpec, task: Task, number: int, how: How, why: str) -> None: ...
