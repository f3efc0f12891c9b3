"""A thousand generated jobs, sent with `dryRun=All`.

The API server validates strictly.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.k8s.control_plane import ControlPlane
from tests.unit.fleet.rayjob.made import attempts

from forebay.fleet.cluster import Cluster
from forebay.fleet.kube.kuberay import KubeRay
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.rayjob.preflight import preflight
from forebay.fleet.rayjob.render import render

pytestmark = pytest.mark.k8s

JOBS = 1000


def test_the_api_server_takes_every_generated_job(planes: dict[str, ControlPlane]) -> None:
    api, began, taken = planes["west"].api(), time.monotonic(), 0
    api.create("/api/v1/namespaces", {"metadata": {"name": "dry"}})
    kuberay = KubeRay(api, "dry")

    # Generated alone: a failure is shown as it was found, because each step of shrinking is a request.
    @settings(
        max_examples=JOBS,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(attempts())
    def dry_run(made: tuple[PlacedAttempt, Cluster]) -> None:
        nonlocal taken
        attempt, cluster = made
        body = render(attempt, cluster)
        preflight(body)
        body["metadata"]["namespace"] = "dry"
        found = kuberay.create_job(body, dry_run=True)
        assert found["spec"]["entrypoint"] == body["spec"]["entrypoint"]
        taken += 1

    dry_run()
    assert taken >= JOBS
    assert list(kuberay.jobs()) == []
    print(f"{taken} jobs in {time.monotonic() - began:.0f} s")
