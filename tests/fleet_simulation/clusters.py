"""Simulated clusters with faulty API servers.

RayJobs wait, run, save and end there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.fleet_simulation.machines import BoundPod, SimulatedNodes
from tests.fleet_simulation.storage import SimulatedStorage

from forebay.fleet.cluster import Cluster
from forebay.fleet.federation.ports import ClusterView
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.kube.api_errors import ApiUnreachable, KubeError, TooManyRequests
from forebay.fleet.lifecycle.decide import Phase, SeenRayJob
from forebay.fleet.placement.capacity import Capacity, NodeGroup
from forebay.fleet.placement.place import gang_of
from forebay.fleet.rayjob.attempt import PlacedAttempt

COMMIT_S = 60.0
TTL_S = 600.0


@dataclass(slots=True)
class SimulatedRayJob:
    """RayJob of one attempt.

    `done` is its work, of which storage has `saved`.
    """

    attempt: PlacedAttempt
    created_at: float
    phase: Phase = "starting"
    words: str = "0 nodes are available: Insufficient nvidia.com/gpu"
    pods: list[BoundPod] = field(default_factory=list)
    started_at: float = 0.0
    ended_at: float = 0.0
    saved: float = 0.0
    done: float = 0.0
    next_commit: float = 0.0

    @property
    def run(self) -> str:
        return self.attempt.spec.run_name(self.attempt.task)


class SimulatedCluster:
    """One cluster. The attributes are its faults.

    Attributes:
        is_cut: Its API server gives no answer to controllers. Its pods run on.
        is_storage_cut: Its pods do not reach storage.
        is_refusing: It answers 401.
        is_throttling: It answers 429.
        loses_answers: It carries requests out, and its answers are lost.
        frozen: Figures that it shows instead of the true ones, since it stopped to count.
    """

    def __init__(self, cluster: Cluster, nodes: Iterable[NodeGroup]) -> None:
        self.cluster, self.nodes = cluster, SimulatedNodes(nodes)
        self.jobs: dict[str, SimulatedRayJob] = {}
        self.is_cut = self.is_storage_cut = self.is_refusing = self.is_throttling = self.loses_answers = False
        self.frozen: Capacity | None = None
        self.busy_gpus = 0

    def capacity(self, now: float) -> Capacity:
        """True figures."""
        waiting = sum(
            job.attempt.world_size * job.attempt.task.workers.gpus
            for job in self.jobs.values()
            if job.phase == "starting"
        )
        return Capacity(cluster=self.cluster.name, observed_at=now, nodes=self.nodes.groups, pending_gpus=waiting)

    def advance(self, storage: SimulatedStorage, work: Callable[[str], float], now: float, seconds: float) -> None:
        """Let `seconds` pass until `now`.

        `work` is the whole work of a run.
        """
        for name, job in list(self.jobs.items()):
            if job.phase == "starting":
                self._schedule(job, storage, now)
            elif job.phase == "running":
                self._train(job, storage, work(job.run), now, seconds)
            elif now - job.ended_at > TTL_S:
                del self.jobs[name]

    def end(self, job: SimulatedRayJob, phase: Phase, words: str, now: float) -> None:
        """End an attempt, and free its nodes."""
        self.nodes.release(job.pods)
        if job.pods:
            self.busy_gpus -= job.attempt.world_size * job.attempt.task.workers.gpus
        job.pods, job.phase, job.words, job.ended_at = [], phase, words, now

    def _schedule(self, job: SimulatedRayJob, storage: SimulatedStorage, now: float) -> None:
        attempt = job.attempt
        if now - job.created_at > attempt.spec.scheduling.start_within + 60:
            self.end(job, "failed", "PreRunningDeadlineExceeded", now)
            return
        gang = gang_of(attempt.spec, attempt.task, self.cluster, attempt.sku, attempt.market)
        pods = self.nodes.bind(replace(gang, workers=attempt.world_size))
        if pods is not None:
            job.pods, job.phase, job.words, job.started_at = pods, "running", "", now
            job.saved = job.done = storage.runs[job.run].progress
            job.next_commit = now + COMMIT_S
            self.busy_gpus += attempt.world_size * attempt.task.workers.gpus

    def _train(self, job: SimulatedRayJob, storage: SimulatedStorage, work: float, now: float, seconds: float) -> None:
        job.done = min(work, job.done + seconds * job.attempt.world_size)
        if now < job.next_commit and job.done < work:
            return
        if self.is_storage_cut:
            return
        job.next_commit = now + COMMIT_S
        if not storage.commit(job.run, job.attempt.number, job.saved, job.done):
            self.end(job, "failed", "fenced", now)
            return
        job.saved = job.done
        if job.done >= work:
            storage.finish(job.run, job.attempt.number)
            self.end(job, "succeeded", "", now)


class SimulatedFleet:
    """`ClusterPort` over simulated clusters.

    `before` and `after` each effect a test may end the controller.
    """

    def __init__(self, fleet: Fleet, nodes: Callable[[Cluster], Iterable[NodeGroup]]) -> None:
        self.clusters = {each.name: SimulatedCluster(each, nodes(each)) for each in fleet.cluster}
        self.now = 0.0
        self.requests = 0
        self.effect: Callable[[str], None] = lambda _: None
        self.changes: list[tuple[str, str, str]] = []
        """Changes: "started" or "deleted", the cluster, the RayJob."""

    def look_all(self, now: float) -> dict[str, ClusterView]:
        """Views of all clusters."""
        return {name: self.look(name, now) for name in self.clusters}

    def look(self, cluster: str, now: float) -> ClusterView:
        """One list of RayJobs, and the figures of the agent."""
        self.requests += 2
        found = self.clusters[cluster]
        if found.is_cut or found.is_refusing or found.is_throttling:
            reason = "its API server gives no answer" if found.is_cut else "it refuses our requests"
            fault = Capacity(cluster=cluster, observed_at=now, fault=reason)
            return ClusterView(capacity=fault, ray_jobs=None, is_refused=not found.is_cut)
        jobs = {name: SeenRayJob(phase=job.phase, words=job.words) for name, job in found.jobs.items()}
        counted = frozenset(name for name, job in found.jobs.items() if job.pods and found.frozen is None)
        return ClusterView(capacity=found.frozen or found.capacity(now), ray_jobs=jobs, counted=counted)

    def create(self, cluster: str, attempt: PlacedAttempt) -> None:
        """Create a RayJob, once per name."""
        found = self._reach(cluster, "create")
        if attempt.name not in found.jobs:
            found.jobs[attempt.name] = SimulatedRayJob(attempt=attempt, created_at=self.now)
            self.changes.append(("started", cluster, attempt.name))
        self._answer(found, "created")

    def delete(self, cluster: str, name: str, *, key: str | None = None) -> None:
        """Delete a RayJob, if it is there."""
        found = self._reach(cluster, "delete")
        job = found.jobs.pop(name, None)
        if job is not None:
            found.end(job, "stopped", "deleted", self.now)
            self.changes.append(("deleted", cluster, name))
        self._answer(found, "deleted")

    def _reach(self, cluster: str, effect: str) -> SimulatedCluster:
        self.effect(f"before {effect}")
        self.requests += 1
        found = self.clusters[cluster]
        if found.is_cut:
            raise ApiUnreachable("no answer")
        if found.is_throttling:
            raise TooManyRequests("wait")
        if found.is_refusing:
            raise KubeError("401")
        return found

    def _answer(self, cluster: SimulatedCluster, effect: str) -> None:
        self.effect(effect)
        if cluster.loses_answers:
            raise ApiUnreachable("the answer was lost")
