"""A hundred submissions at once, and a killed controller.

Three clusters have room for sixty.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.fleet.conftest import fleet_file, kubeconfigs, make_namespace
from tests.k8s.fleet.controllers import ControllerFiles, command
from tests.k8s.fleet.created import CreatedJobs
from tests.k8s.objects import wait_for
from tests.k8s.player import Player

import forebay as fb
from forebay.fleet.client.submission import JobFiles
from forebay.fleet.kube.kuberay import KubeRay

pytestmark = pytest.mark.k8s

JOBS, ROOM = 100, 60


@pytest.mark.timeout(900)
def test_sixty_of_a_hundred_jobs_run_and_the_others_wait_with_their_reason(
    fleet: dict[str, ControlPlane], players: dict[str, Player], created: dict[str, CreatedJobs], tmp_path: Path
) -> None:
    make_namespace(fleet, "storm")
    storage = str(tmp_path / "runs")
    files = ControllerFiles(
        fleet=fleet_file(tmp_path, list(fleet), "storm"),
        storage=storage,
        journal=str(tmp_path / "journal.sqlite"),
        trace="",
        output=str(tmp_path / "output"),
        kubeconfig=kubeconfigs(fleet),
    )
    for player in players.values():
        player.run_job = lambda _: "RUNNING"
    names = [f"storm-{number:02d}" for number in range(JOBS)]

    def submit(name: str) -> None:
        shape = fb.fleet.TaskWorkers(cpu="1", memory="1Gi", gpus=1, sku="storm")
        spec = fb.JobSpec(name=name, storage=storage, task=(fb.fleet.Task(command=("true",), workers=shape),))
        fb.submit(spec, "fleet", folder=code)

    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("print('hello')")
    began = time.monotonic()
    with command(files):
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(submit, names))
        submitted = time.monotonic() - began
        wait_for(lambda: len(started(storage, names)) >= ROOM, 240)
        print(f"submitted in {submitted:.1f} s, {ROOM} run after {time.monotonic() - began:.1f} s")
        # The others have had rounds in which to be placed wrongly.
        time.sleep(12)
        waiting = sorted(set(names) - started(storage, names))
        assert len(waiting) == JOBS - ROOM
        lines = Path(files.output).read_text()
        reasons = dict(re.findall(r"^\S+ (storm-\d+): (.*has room for .*)$", lines, re.MULTILINE))
        assert set(waiting) <= set(reasons)
        assert all(reasons[name].count("storm on-demand has room for 0 workers") == len(fleet) for name in waiting)
    assert {name: len(each.in_namespace("storm")) for name, each in created.items()} == ROOMS
    for journal in tmp_path.glob("journal.sqlite*"):
        journal.unlink()
    # The next controller finds a full fleet and no journal.
    with command(files):
        time.sleep(12)
        assert sum(len(each.in_namespace("storm")) for each in created.values()) == ROOM
        for player in players.values():
            player.run_job = lambda _: "SUCCEEDED"
        wait_for(lambda: len(succeeded(storage, names)) == JOBS, 240)
    print(f"all end after {time.monotonic() - began:.1f} s")
    claims = [each.name for each in Path(storage).glob("*/attempts/*.json") if re.fullmatch(r"\d{6}\.json", each.name)]
    # No attempt was withdrawn.
    assert claims == ["000001.json"] * JOBS
    counts = [count for each in created.values() for count in each.in_namespace("storm").values()]
    assert counts == [1] * JOBS
    for plane in fleet.values():
        kuberay = KubeRay(plane.api(), "storm")
        for each in list(kuberay.jobs()):
            kuberay.delete_job(each["metadata"]["name"])


ROOMS = {"west": 10, "east": 20, "south": 30}


def started(storage: str, names: list[str]) -> set[str]:
    return {name for name in names if (Path(storage) / name / "submissions" / "000001.started.json").exists()}


def succeeded(storage: str, names: list[str]) -> set[str]:
    ends = {name: JobFiles(storage=storage, name=name).ended(1) for name in names}
    return {name for name, end in ends.items() if end is not None and end.how == "succeeded"}
