"""Times that a user waits.

Measured are a submission until it is placed, and the table of clusters, with and without a dead one.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.fleet.conftest import fleet_file, kubeconfigs, make_namespace
from tests.k8s.fleet.controllers import ControllerFiles, command
from tests.k8s.fleet.created import CreatedJobs
from tests.k8s.objects import wait_for
from tests.k8s.player import Player

import forebay as fb
from forebay.cli.app import main
from forebay.fleet.kube.kuberay import KubeRay

pytestmark = pytest.mark.k8s

KUBECONFIG = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"

REPEATS = 5


def test_time_to_place_and_time_of_the_table(
    fleet: dict[str, ControlPlane],
    players: dict[str, Player],
    created: dict[str, CreatedJobs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Print the times, without a limit.

    A loaded machine may be slow.
    """
    make_namespace(fleet, "times")
    files = ControllerFiles(
        fleet=fleet_file(tmp_path, list(fleet), "times"),
        storage=str(tmp_path / "runs"),
        journal=str(tmp_path / "journal.sqlite"),
        trace="",
        output=str(tmp_path / "output"),
        kubeconfig=kubeconfigs(fleet),
    )
    # The package reads KUBECONFIG when it is imported.
    monkeypatch.setattr(KUBECONFIG, files.kubeconfig)
    for player in players.values():
        player.run_job = lambda _: "RUNNING"
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("print('hello')")

    def place(name: str) -> None:
        """Submit a job, and wait until its RayJob is there."""
        shape = fb.fleet.TaskWorkers(cpu="1", memory="1Gi", sku="small")
        spec = fb.JobSpec(name=name, storage=files.storage, task=(fb.fleet.Task(command=("true",), workers=shape),))
        fb.submit(spec, "fleet", folder=code)
        wait_for(lambda: any(name in job for each in created.values() for job in each.in_namespace("times")), 120)

    def table() -> str:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            main(["fleet", "clusters", "--fleet", files.fleet])
        return shown.getvalue()

    with command(files):
        place("warm")  # the controller has started
        assert all(name in table() for name in fleet)
        times = {
            "placed": [seconds(lambda number=number: place(f"job-{number}")) for number in range(REPEATS)],
            "table": [seconds(table) for _ in range(REPEATS)],
        }
        fleet["south"].freeze()
        try:
            times["placed, one is dead"] = [seconds(lambda number=number: place(f"dead-{number}")) for number in (1, 2)]
            times["table, one is dead"] = [seconds(table)]
            assert "south: cluster south gave no answer" in table()
        finally:
            fleet["south"].thaw()
    print({what: [round(each, 2) for each in found] for what, found in times.items()})
    for plane in fleet.values():
        kuberay = KubeRay(plane.api(), "times")
        for each in list(kuberay.jobs()):
            kuberay.delete_job(each["metadata"]["name"])


def seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
