"""RayJobs and RayClusters of KubeRay in one namespace.

PyPI has no `kuberay-client`. This file speaks of KubeRay's resources, with the verbs of upstream's client; it is what
to replace when there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from forebay.fleet.kube.api import SILENCE_S, KubeApi, Object, by_label
from forebay.fleet.kube.api_errors import ApiUnreachable, KubeError, ObjectChanged, ObjectExists, ObjectMissing

JOBS, CLUSTERS = "rayjobs", "rayclusters"
FENCE = "forebay.dev/fence"
IDENTITY = ("forebay.dev/key", "forebay.dev/attempt", FENCE)
"""Annotations by which an object is known as the one that was to be created.

A job whose folder was removed begins with attempt 1 again, with another fence.
"""
KEPT_OF_GROUPS = ("replicas", "scaleStrategy")
"""Fields of a worker group that the autoscaler writes."""

_POLL_S = 0.5


class NameTaken(KubeError):
    """Somebody else created an object of this name."""


class DeletionStuck(KubeError):
    """An object marked as deleted does not go.

    Its finalizer waits for an operator that may not run.
    """


class KubeRay:
    """RayJobs and RayClusters of `namespace`.

    Objects are JSON, as KubeRay's CRDs describe them. Raises `KubeError`s.
    """

    def __init__(self, api: KubeApi, namespace: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.api, self.namespace, self._sleep = api, namespace, sleep

    def create_job(self, body: Object, *, dry_run: bool = False) -> Object:
        """Create a RayJob, once.

        The job is returned also if it was created by a request whose answer was lost. Raises `NameTaken` if a job of
        this name has another key or attempt.
        """
        path = self._path(JOBS)
        try:
            return self.api.create(path, body, dry_run=dry_run)
        except (ApiUnreachable, ObjectExists) as error:
            found = self.job(body["metadata"]["name"])
            if found is None:
                if isinstance(error, ObjectExists):
                    raise
                return self.api.create(path, body, dry_run=dry_run)
        if _identity(found) != _identity(body):
            shown = [{name: each for name, each in _identity(job).items() if name != FENCE} for job in (found, body)]
            raise NameTaken(
                f"cluster {self.api.cluster} has a RayJob {found['metadata']['name']} with {shown[0]}, and "
                f"{shown[1] if shown[0] != shown[1] else 'one of a later submission'} was to be created. Delete it, or "
                "choose another name.",
                cluster=self.api.cluster,
            )
        return found

    def job(self, name: str) -> Object | None:
        """Return a RayJob, or None without one."""
        return self._found(JOBS, name)

    def jobs(self, selector: str = "") -> Iterator[Object]:
        """Yield RayJobs whose labels fit `selector`."""
        return self.api.items(self._path(JOBS), **by_label(selector))

    def delete_job(self, name: str, *, key: str | None = None, deadline_s: float = 60.0) -> None:
        """Delete a RayJob with its pods, and wait.

        No error if there is none. With `key`, only one of the job that has this key: of the same name, another one may
        have been created by somebody else. Raises `DeletionStuck` after `deadline_s` seconds. A finalizer is never
        removed here.
        """
        uid = None
        if key is not None:
            found = self.job(name)
            if found is None or _identity(found)[IDENTITY[0]] != key:
                return
            uid = found["metadata"]["uid"]
        self._delete(JOBS, name, deadline_s, uid)

    def cluster(self, name: str) -> Object | None:
        """Return a RayCluster, or None without one."""
        return self._found(CLUSTERS, name)

    def clusters(self, selector: str = "") -> Iterator[Object]:
        """Yield RayClusters whose labels fit `selector`."""
        return self.api.items(self._path(CLUSTERS), **by_label(selector))

    def apply_cluster(self, body: Object) -> Object:
        """Create a RayCluster, or change it to `body`.

        Groups that are there keep what the autoscaler set. The list of groups is one field for the API server. So a
        plain apply would set the workers of a running cluster back to the number in `body`, and end the others.
        """
        name = body["metadata"]["name"]
        for _ in range(5):
            found = self.cluster(name)
            if found is None:
                return self.api.create(self._path(CLUSTERS), body)
            try:
                return self.api.replace(self._path(CLUSTERS, name), merged_cluster(found, body))
            except ObjectChanged:
                # The autoscaler wrote between the two requests.
                self._sleep(_POLL_S)
        raise ObjectChanged(
            f"RayCluster {name} in {self.api.cluster} was changed at each of 5 attempts to apply a new spec. Repeat it "
            "when its autoscaler is at rest.",
            cluster=self.api.cluster,
        )

    def delete_cluster(self, name: str, *, deadline_s: float = 60.0) -> None:
        """Delete a RayCluster with its pods, as `delete_job` does."""
        self._delete(CLUSTERS, name, deadline_s)

    def pods(self, selector: str) -> list[Object]:
        """Return the pods whose labels fit `selector`."""
        return list(self.api.items(f"/api/v1/namespaces/{self.namespace}/pods", **by_label(selector)))

    def logs(
        self, pod: str, *, container: str | None = None, follow: bool = False, since: str | None = None
    ) -> Iterator[str]:
        """Yield the lines of a pod's log.

        With `follow`, until its container ends. With `since`, a time to the second, those from then on, each behind its
        own time. An empty `since` is the begin. Then a silence of 90 s ends the lines with `ApiUnreachable`: ask again
        with the last time.
        """
        query: dict[str, object] = {"container": container} if container else {}
        query |= {"follow": "true"} if follow else {}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        if since is None:
            return self.api.lines(path, query)
        query |= {"timestamps": "true"} | ({"sinceTime": since} if since else {})
        return self.api.lines(path, query, silence_s=SILENCE_S)

    def _found(self, kind: str, name: str) -> Object | None:
        try:
            return self.api.get(self._path(kind, name))
        except ObjectMissing:
            return None

    def _delete(self, kind: str, name: str, deadline_s: float, uid: str | None = None) -> None:
        path, end = self._path(kind, name), time.monotonic() + deadline_s
        try:
            self.api.delete(path, uid=uid)
            while time.monotonic() < end:
                if self.api.get(path)["metadata"]["uid"] != uid is not None:
                    return
                self._sleep(_POLL_S)
        except (ObjectMissing, ObjectChanged):  # changed: another one of this name took its place
            return
        raise DeletionStuck(
            f"{kind} {name} in {self.api.cluster} was deleted, and is still there after {deadline_s:g} s. Look whether "
            "KubeRay's operator runs there: it removes the finalizer.",
            cluster=self.api.cluster,
            path=path,
        )

    def _path(self, kind: str, name: str | None = None) -> str:
        return f"/apis/ray.io/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")


def merged_cluster(found: Object, body: Object) -> Object:
    """Return `body` as the next version of `found`.

    Groups of both keep what the autoscaler set in `found`.
    """
    kept = {
        group["groupName"]: {field: group[field] for field in KEPT_OF_GROUPS if field in group}
        for group in found["spec"].get("workerGroupSpecs") or ()
    }
    groups = [
        {
            **{
                field: value
                for field, value in group.items()
                if group["groupName"] not in kept or field not in KEPT_OF_GROUPS
            },
            **kept.get(group["groupName"], {}),
        }
        for group in body["spec"].get("workerGroupSpecs") or ()
    ]
    metadata = {**found["metadata"], **body["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
    return {**body, "metadata": metadata, "spec": {**body["spec"], "workerGroupSpecs": groups}}


def _identity(job: Object) -> dict[str, str]:
    annotations = job["metadata"].get("annotations") or {}
    return {each: annotations.get(each, "") for each in IDENTITY}
