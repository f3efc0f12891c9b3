"""RayJobs that were ever created, seen by watches."""

from __future__ import annotations

import threading
from contextlib import suppress

from tests.k8s.control_plane import ControlPlane

from forebay.fleet.kube.api_errors import KubeError

JOBS = "/apis/ray.io/v1/rayjobs"


class CreatedJobs(threading.Thread):
    """Watches the RayJobs of a cluster.

    `uids` are those that were there, by namespace and name.
    """

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(daemon=True)
        self._api, self.ended = plane.api(), threading.Event()
        self.uids: dict[tuple[str, str], set[str]] = {}
        (page,) = self._api.pages(JOBS)
        self._version = page["metadata"]["resourceVersion"]

    def run(self) -> None:
        while not self.ended.is_set():
            with suppress(KubeError):
                for kind, found in self._api.watch(JOBS, version=self._version, timeout_s=2):
                    meta = found["metadata"]
                    self._version = meta["resourceVersion"]
                    if kind != "BOOKMARK":
                        self.uids.setdefault((meta["namespace"], meta["name"]), set()).add(meta["uid"])

    def in_namespace(self, namespace: str) -> dict[str, int]:
        """Number of RayJobs that were created, by name."""
        return {name: len(uids) for (found, name), uids in list(self.uids.items()) if found == namespace}
