"""Clusters of a fleet, by their API servers.

RayJobs are KubeRay's, and capacity comes from the agent of the chart.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.errors import InvalidOption
from forebay.fleet.capacity_agent import CAPACITY
from forebay.fleet.catalogue import CATALOGUE, parse_catalogue
from forebay.fleet.cluster import Cluster
from forebay.fleet.federation.ports import ClusterView
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.kube.api import KubeApi, Object
from forebay.fleet.kube.api_errors import AccessRefused, ApiUnreachable, KubeError, ObjectMissing
from forebay.fleet.kube.connection import by_context, in_cluster
from forebay.fleet.kube.kuberay import KubeRay
from forebay.fleet.lifecycle.decide import Phase, SeenRayJob
from forebay.fleet.placement.capacity import Capacity
from forebay.fleet.placement.counting import count
from forebay.fleet.rayjob.attempt import DOMAIN, PlacedAttempt
from forebay.fleet.rayjob.preflight import preflight
from forebay.fleet.rayjob.render import SUBMITTER, render
from forebay.runtime.formatting import printable

OURS = "app.kubernetes.io/managed-by=forebay"
UNSTARTABLE_REASONS = ("CreateContainerConfigError", "ImagePullBackOff", "InvalidImageName")
"""Reasons of the kubelet that end a start at once. `ErrImagePull` is not one: the kubelet pulls again."""
ANSWER_S = 2.5
"""Deadline of a request: with its repetitions, a silent cluster delays a round by less than 10 s."""
SILENT_S = 30.0
"""Time after which a silent cluster is asked again."""
MOST_THREADS = 16
_EXIT_CODE = re.compile(r"[^\n]*failed with exit code (\d+)")
"""Begin of Ray's message about an entrypoint that failed. Its other lines are the end of the log (Ray 2.60)."""
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Colors and movements of the cursor."""
LAST_LINES = 5
LONGEST_WORDS = 1000
_ENDED: Mapping[tuple[str, str], Phase] = {
    # A job that was stopped is complete, too.
    ("Complete", "SUCCEEDED"): "succeeded",
    ("Complete", "STOPPED"): "stopped",
}
BEATS = 2
"""Writes of the agent after which a pod that was seen is part of its figures."""


@dataclass(slots=True)
class _Figures:
    """Newest figures of a cluster's agent.

    `first_seen` has the beats at which pods of RayJobs were first seen.
    """

    beat: int = -1
    capacity: Capacity | None = None
    first_seen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Silence:
    """A cluster gave no answer.

    It is asked again at `until`, by the monotonic clock.
    """

    until: float
    why: str


class KubeClusters:
    """`ClusterPort` over the API servers of `fleet`.

    Args:
        fleet: The clusters. Each is reached by its context, or as the cluster that this process runs in.
        connect: Called with a cluster once, when it is first needed.
        delete_s: Seconds that a deletion may take before it counts as not done.

    Attributes:
        complete: Called with an attempt before its RayJob is rendered: adds its token and its code.
    """

    def __init__(
        self,
        fleet: Fleet,
        connect: Callable[[Cluster], KubeApi] | None = None,
        *,
        delete_s: float = 1.0,
    ) -> None:
        self._fleet, self._connect, self._delete_s = fleet, connect or api_of, delete_s
        self.complete: Callable[[PlacedAttempt], PlacedAttempt] = lambda attempt: attempt
        self._kuberays: dict[str, KubeRay] = {}
        self._figures = {each.name: _Figures() for each in fleet.cluster}
        self._silences: dict[str, _Silence] = {}
        self._described = {each.name: each for each in fleet.cluster}
        self._catalogues: dict[str, str] = {}

    def fleet(self) -> Fleet:
        """Return the fleet as its clusters are described now."""
        return replace(self._fleet, cluster=tuple(self._described.values()))

    def describe_all(self) -> dict[str, str]:
        """Read the catalogues of clusters that are not described.

        Returns the faults, by cluster.
        """
        names = [each.name for each in self._fleet.cluster if not each.sku]

        def fault_of(cluster: str) -> str | None:
            try:
                return self._fault_of_catalogue(cluster)
            except ApiUnreachable as error:
                return str(error).splitlines()[0]

        with ThreadPoolExecutor(MOST_THREADS) as pool:
            faults = dict(zip(names, pool.map(fault_of, names), strict=True))
        return {name: fault for name, fault in faults.items() if fault is not None}

    def _fault_of_catalogue(self, cluster: str) -> str | None:
        """Read the catalogue, and return why it cannot be used. Raises `ApiUnreachable`."""
        try:
            self._describe(cluster)
        except ApiUnreachable:
            raise
        except (KubeError, InvalidOption) as error:
            return str(error).splitlines()[0]
        return None

    def _describe(self, cluster: str) -> None:
        """Read the catalogue of a cluster, which may have changed.

        Raises `InvalidOption` for a cluster without one, and for one that the fleet file describes as well.
        """
        found = self._fleet.named(cluster)
        path = f"/api/v1/namespaces/{found.namespace}/configmaps/{CATALOGUE}"
        where = f"the ConfigMap {CATALOGUE} in namespace {found.namespace} of {cluster}"
        if found.sku:
            if self._kuberay(cluster).api.exists(path):
                raise InvalidOption(
                    f"{where} describes the cluster, and the fleet file does, too. Keep name, context, namespace and "
                    "labels of it there, and remove the other keys."
                )
            return
        try:
            data = self._kuberay(cluster).api.get(path).get("data") or {}
        except ObjectMissing:
            raise InvalidOption(
                f"{where} is missing. Install the chart deploy/helm/forebay there, or describe the cluster in the "
                "fleet file by the keys of its values."
            ) from None
        text = data.get("catalogue.json", "")
        if self._catalogues.get(cluster) != text:
            # A catalogue that cannot be used is read again in the next round: nothing is placed until then.
            self._described[cluster] = parse_catalogue(text, where, found)
            self._catalogues[cluster] = text

    def look_all(self, now: float) -> dict[str, ClusterView]:
        """Return views of all clusters, asked in parallel."""
        names = [each.name for each in self._fleet.cluster]
        with ThreadPoolExecutor(min(MOST_THREADS, len(names))) as pool:
            return dict(zip(names, pool.map(lambda name: self.look(name, now), names), strict=True))

    def look(self, cluster: str, now: float) -> ClusterView:
        """Return a view of a cluster.

        It does not raise: a cluster without an answer has a fault. A cluster that gave no answer is not asked for 30 s,
        and then by one short request first.
        """
        silence = self._silences.get(cluster)
        if silence is not None and time.monotonic() < silence.until:
            return ClusterView(capacity=_fault(cluster, now, silence.why), ray_jobs=None)
        try:
            view = self._look(cluster, now, is_silent=silence is not None)
        except ApiUnreachable as error:
            self._silences[cluster] = _Silence(time.monotonic() + SILENT_S, str(error))
            return ClusterView(capacity=_fault(cluster, now, str(error)), ray_jobs=None)
        self._silences.pop(cluster, None)
        return view

    def _look(self, cluster: str, now: float, *, is_silent: bool) -> ClusterView:
        try:
            kuberay = self._kuberay(cluster)
            if is_silent:
                kuberay.api.clock()
            jobs = {each["metadata"]["name"]: each for each in kuberay.jobs(OURS)}
            pods = _by_job(jobs, kuberay.pods(OURS)) if jobs else {}
            capacity, counted = self._room(cluster, now, pods)
        except ApiUnreachable:
            raise
        except AccessRefused as error:
            return ClusterView(capacity=_fault(cluster, now, str(error)), ray_jobs=None, is_refused=True)
        except (KubeError, InvalidOption) as error:
            return ClusterView(capacity=_fault(cluster, now, str(error)), ray_jobs=None)
        seen = {name: seen_job(job, pods.get(name, ())) for name, job in jobs.items()}
        return ClusterView(capacity=capacity, ray_jobs=seen, counted=counted, cluster=self._described[cluster])

    def _room(
        self, cluster: str, now: float, pods: Mapping[str, tuple[Object, ...]]
    ) -> tuple[Capacity, frozenset[str]]:
        """Return the capacity, and the RayJobs whose pods are part of it.

        A catalogue or figures that cannot be used are a fault: nothing new is placed there, and its jobs are followed.
        """
        why = self._fault_of_catalogue(cluster)
        if why is None:
            try:
                return self._capacity(cluster, now, pods)
            except InvalidOption as error:
                why = str(error)
        return _fault(cluster, now, why), frozenset()

    def create(self, cluster: str, attempt: PlacedAttempt) -> None:
        """Create the RayJob of an attempt, once.

        Raises `KubeError`, and `InvalidOption` for a job that cannot run.
        """
        self._refuse_silent(cluster)
        found = self._described[cluster]
        if attempt.sku not in found.sku:
            raise InvalidOption(f"{cluster} has no SKU {attempt.sku} now: {found.described_by} was changed.")
        body = render(self.complete(attempt), found)
        preflight(body)
        self._kuberay(cluster).create_job(body)

    def delete(self, cluster: str, name: str, *, key: str | None = None) -> None:
        """Delete a RayJob, unless it has another key.

        Raises `KubeError`.
        """
        self._refuse_silent(cluster)
        self._kuberay(cluster).delete_job(name, key=key, deadline_s=self._delete_s)

    def _refuse_silent(self, cluster: str) -> None:
        """Raise `ApiUnreachable` for a silent cluster.

        Each request to it would cost a round seconds.
        """
        silence = self._silences.get(cluster)
        if silence is not None:
            raise ApiUnreachable(silence.why, cluster=cluster)

    def log(self, cluster: str, attempt: PlacedAttempt, since: str, *, follow: bool) -> Iterator[str]:
        """Yield the lines of an attempt's log.

        They begin at a time, and each has its own in front. No lines without a submitter. With `follow`, until its
        container ends.

        Raises `KubeError`s.
        """
        kuberay = self._kuberay(cluster)
        selector = ",".join(f"{name}={value}" for name, value in attempt.labels.items())
        pods = [each for each in kuberay.pods(selector) if each["spec"]["containers"][0]["name"] == SUBMITTER]
        if pods:
            newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
            yield from kuberay.logs(newest["metadata"]["name"], container=SUBMITTER, follow=follow, since=since)

    def _kuberay(self, cluster: str) -> KubeRay:
        if cluster not in self._kuberays:
            found = self._fleet.named(cluster)
            self._kuberays[cluster] = KubeRay(self._connect(found), found.namespace)
        return self._kuberays[cluster]

    def _capacity(
        self, cluster: str, now: float, pods: Mapping[str, tuple[Object, ...]]
    ) -> tuple[Capacity, frozenset[str]]:
        api, found = self._kuberay(cluster).api, self._described[cluster]
        try:
            data = api.get(f"/api/v1/namespaces/{found.namespace}/configmaps/{CAPACITY}").get("data") or {}
        except ObjectMissing:
            # A cluster without the chart's agent: two lists from outside, up to some 5,000 pods.
            counted = count(found, api.items("/api/v1/nodes"), api.items("/api/v1/pods"), now)
            return counted, frozenset(pods)
        figures = self._figures[cluster]
        try:
            beat = int(data.get("beat", "-1"))
        except ValueError:
            raise InvalidOption(f"the ConfigMap {CAPACITY} has beat={data['beat']!r}, which is not a number.") from None
        if beat != figures.beat and "capacity.json" in data:
            # The time at which new figures were first seen here: the clocks of two machines differ.
            capacity = replace(Capacity.from_json(data["capacity.json"], now), cluster=cluster)
            figures.beat, figures.capacity = beat, capacity
        figures.first_seen = {name: figures.first_seen.get(name, beat) for name in pods}
        if figures.capacity is None:
            return Capacity(
                cluster=cluster, observed_at=now, fault="its agent has not written figures yet"
            ), frozenset()
        seen = frozenset(name for name, first in figures.first_seen.items() if beat >= first + BEATS)
        return figures.capacity, seen


def api_of(cluster: Cluster) -> KubeApi:
    """API server of a cluster. Raises `InvalidOption` without its context."""
    connect = in_cluster if cluster.context is None else by_context(cluster.context)
    return KubeApi(connect, cluster=cluster.name, deadline_s=ANSWER_S)


def seen_job(job: Object, pods: tuple[Object, ...] = ()) -> SeenRayJob:
    """Return a RayJob in the terms of the lifecycle.

    While it starts, its words are what the scheduler says about its own `pods`.
    """
    seen = seen_ray_job(job)
    if seen.phase != "starting":
        return seen
    if faults := sorted(set(_unstartable(pods))):
        return replace(seen, words="; ".join(faults), is_unstartable=True)
    words = "; ".join(sorted(set(_unplaced(pods))))
    return replace(seen, words=words) if words else seen


def _unstartable(pods: tuple[Object, ...]) -> Iterator[str]:
    """Yield messages about containers that cannot start.

    The kubelet reports a missing Secret, or an image that it cannot pull.
    """
    for pod in pods:
        status = pod.get("status") or {}
        for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in UNSTARTABLE_REASONS:
                yield f"{waiting['reason']}: {waiting.get('message') or 'without a message'}"


def _unplaced(pods: tuple[Object, ...]) -> list[str]:
    """Return the scheduler's messages about unscheduled pods."""
    return [
        str(condition.get("message", ""))
        for pod in pods
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def _by_job(jobs: Mapping[str, Object], pods: list[Object]) -> dict[str, tuple[Object, ...]]:
    """Group pods by the name of their RayJob.

    Both have the labels of the attempt.
    """
    names = {_labels(job): name for name, job in jobs.items()}
    found: dict[str, tuple[Object, ...]] = {}
    for pod in pods:
        if (name := names.get(_labels(pod))) is not None:
            found[name] = (*found.get(name, ()), pod)
    return found


def _labels(found: Object) -> tuple[str | None, ...]:
    labels = found["metadata"].get("labels") or {}
    return tuple(labels.get(f"{DOMAIN}/{each}") for each in ("job", "task", "attempt"))


def _fault(cluster: str, now: float, why: str) -> Capacity:
    return Capacity(cluster=cluster, observed_at=now, fault=why.splitlines()[0])


def seen_ray_job(job: Mapping[str, Any]) -> SeenRayJob:
    """Return the phase, last message and exit code.

    Checked on KubeRay 1.7.0. `ValidationFailed` is an end as well: the operator looks at the RayJob no more.
    """
    status = job.get("status") or {}
    deployment, run = str(status.get("jobDeploymentStatus") or ""), str(status.get("jobStatus") or "")
    message = str(status.get("message") or status.get("reason") or "")
    found = _EXIT_CODE.match(message)
    words = last_words(message) if found is None else f"exit code {found[1]}: {last_words(message[found.end() :])}"
    return SeenRayJob(phase=_phase(deployment, run), words=words, exit_code=int(found[1]) if found else None)


def last_words(text: str) -> str:
    r"""Return the last lines as one safe line.

    Control characters, by which a cluster or a job could steer a terminal, are replaced.

    >>> last_words("step 1\n\x1b[31mUnusableStorage: s3://lake\x1b[0m cannot be used\n")
    'step 1 | UnusableStorage: s3://lake cannot be used'
    """
    lines = [_SEQUENCE.sub("", line).strip() for line in text.splitlines()]
    joined = " | ".join([line for line in lines if line][-LAST_LINES:])
    return printable(joined)[-LONGEST_WORDS:]


def _phase(deployment: str, run: str) -> Phase:
    if deployment in ("Complete", "Failed", "ValidationFailed"):
        return _ENDED.get((deployment, run), "failed")
    return "running" if deployment == "Running" and run in ("", "RUNNING", "SUCCEEDED") else "starting"
