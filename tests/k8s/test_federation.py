"""Rounds of the federation over real API servers.

Jobs are placed where they fit, wait with a reason, and run once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import IMAGE
from tests.k8s.player import Player

import forebay as fb
from forebay.fleet.cluster import CacheVolume, Cluster, Sku
from forebay.fleet.federation.controller import FleetController
from forebay.fleet.federation.federation import Federation
from forebay.fleet.federation.kube_clusters import KubeClusters
from forebay.fleet.federation.run_storage import RunStorage
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.kube.kuberay import KubeRay
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.lifecycle.states import AttemptRunning, JobState
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles

pytestmark = pytest.mark.k8s

ROUND_S = 10.0
"""Time of the federation's clock between two rounds."""


def cluster(name: str) -> Cluster:
    sku = Sku(cpu="16", memory="64Gi", gpus=4, node_selector={"sku": "gpu"})
    return Cluster(
        name=name,
        context=name,
        image=IMAGE,
        sku={"gpu": sku},
        head_cpu="1",
        head_memory="1Gi",
        head_node_selector={"sku": "cpu"},
        cache=CacheVolume(mode="none"),
    )


class FleetOfPlanes:
    """One controller over both clusters, whose clock a test moves."""

    def __init__(self, planes: dict[str, ControlPlane], folder: Path) -> None:
        self.planes, self.storage, self.folder, self.now = planes, RunStorage(), folder, 0.0
        self.fleet = Fleet(cluster=tuple(cluster(name) for name in planes))
        self.start()

    def start(self) -> None:
        """Start a controller that lost its journal."""
        clusters = KubeClusters(self.fleet, lambda found: self.planes[found.name].api(deadline_s=1.0), delete_s=1.0)
        self.journal = JobJournal(":memory:")
        self.federation = Federation(self.fleet, clusters, self.storage, self.journal)

    def submit(self, name: str, **scheduling: object) -> fb.JobSpec:
        task = fb.fleet.Task(command=("true",), workers=fb.fleet.TaskWorkers(cpu="2", memory="1Gi", gpus=4))
        spec = fb.JobSpec(
            name=name, storage=str(self.folder), task=(task,), scheduling=fb.fleet.Scheduling(**scheduling)
        )
        self.federation.submit(spec, self.now)
        return spec

    def until(self, done: Callable[[], bool], seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, {entry.name: entry.state for entry in self.journal.entries()}
            self.now += ROUND_S
            self.federation.step(self.now)
            time.sleep(0.1)

    def states(self) -> dict[str, JobState]:
        return {entry.name: entry.state for entry in self.journal.entries()}

    def count(self, kind: str) -> int:
        return sum(type(state).__name__ == kind for state in self.states().values())

    def ray_jobs(self) -> dict[str, list[str]]:
        return {
            name: sorted(
                each["metadata"]["labels"]["forebay.dev/job"]
                for each in KubeRay(plane.api(), "default").jobs("app.kubernetes.io/managed-by=forebay")
            )
            for name, plane in self.planes.items()
        }


@pytest.fixture
def bench(planes: dict[str, ControlPlane], players: dict[str, Player], tmp_path: Path) -> Iterator[FleetOfPlanes]:
    for player in players.values():
        player.run_job = lambda _: "RUNNING"
    yield FleetOfPlanes(planes, tmp_path)
    for name, player in players.items():
        player.run_job = lambda _: "SUCCEEDED"
        kuberay = KubeRay(planes[name].api(), "default")
        for each in list(kuberay.jobs("app.kubernetes.io/managed-by=forebay")):
            kuberay.delete_job(each["metadata"]["name"])


def test_jobs_fill_the_fleet_and_the_others_wait_with_their_reason(
    bench: FleetOfPlanes, players: dict[str, Player]
) -> None:
    for number in range(10):
        bench.submit(f"job-{number}")
    bench.until(lambda: bench.count("AttemptRunning") == 4)
    assert bench.count("JobQueued") == 6
    assert {name: len(jobs) for name, jobs in bench.ray_jobs().items()} == {"west": 1, "east": 3}
    waiting = [name for name, state in bench.states().items() if type(state).__name__ == "JobQueued"]
    assert all("gpu" in " ".join(bench.federation.reasons(name)).lower() for name in waiting)
    # Nothing was withdrawn: no attempt has a number above 1.
    assert {state.number for state in bench.states().values()} <= {0, 1}
    for player in players.values():
        player.run_job = lambda _: "SUCCEEDED"
    bench.until(lambda: bench.count("JobSucceeded") == 10)
    assert {state.number for state in bench.states().values()} == {1}


def test_controller_without_its_journal_adopts_what_runs(bench: FleetOfPlanes) -> None:
    spec = bench.submit("kept")
    bench.until(lambda: bench.count("AttemptRunning") == 1)
    before = bench.ray_jobs()
    bench.start()
    bench.federation.submit(spec, bench.now)
    bench.until(lambda: bench.count("AttemptRunning") == 1)
    assert bench.ray_jobs() == before
    assert bench.states()["kept"].number == 1


def test_job_of_a_frozen_cluster_goes_on_in_the_other(bench: FleetOfPlanes, planes: dict[str, ControlPlane]) -> None:
    spec = bench.submit("moves", clusters=("west", "east"), unreachable=fb.fleet.Unreachable(after=60))
    bench.until(lambda: bench.count("AttemptRunning") == 1)
    state = bench.states()["moves"]
    assert isinstance(state, AttemptRunning)
    first, second = state.target.cluster, ({"west", "east"} - {state.target.cluster}).pop()
    planes[first].freeze()
    try:
        bench.until(lambda: isinstance(found := bench.states()["moves"], AttemptRunning) and found.number == 2, 180)
    finally:
        planes[first].thaw()
    assert bench.states()["moves"].target.cluster == second
    # The claim on the second attempt is the fence of the first one, whose RayJob still runs.
    claim = bench.storage.newest_claim(spec, spec.task[0])
    assert claim is not None
    assert (claim.number, claim.target.cluster) == (2, second)
    assert bench.ray_jobs() == {first: ["moves"], second: ["moves"]}


def test_ray_job_that_somebody_deleted_is_tried_again(bench: FleetOfPlanes, planes: dict[str, ControlPlane]) -> None:
    bench.submit("again")
    bench.until(lambda: bench.count("AttemptRunning") == 1)
    cluster_name = bench.states()["again"].target.cluster
    kuberay = KubeRay(planes[cluster_name].api(), "default")
    (job,) = kuberay.jobs("forebay.dev/job=again")
    kuberay.delete_job(job["metadata"]["name"])
    bench.until(lambda: isinstance(found := bench.states()["again"], AttemptRunning) and found.number == 2)
    assert "deleted by somebody else" in " ".join(each.why for each in bench.journal.reasons("again"))


@pytest.mark.parametrize("journal", ["kept", "lost"])
def test_finished_job_whose_ray_job_is_gone_does_not_run_again(
    bench: FleetOfPlanes, planes: dict[str, ControlPlane], journal: str
) -> None:
    spec = bench.submit("done")
    bench.until(lambda: bench.count("AttemptRunning") == 1)
    # While no controller looks, the run finishes, and the RayJob is removed, as by its time to live.
    AttemptFiles(str(bench.folder / "done")).end(1, AttemptEnd(how="finished"))
    kuberay = KubeRay(planes[bench.states()["done"].target.cluster].api(), "default")
    (ray_job,) = kuberay.jobs("forebay.dev/job=done")
    kuberay.delete_job(ray_job["metadata"]["name"])
    if journal == "lost":
        bench.start()
        bench.federation.submit(spec, bench.now)
    bench.until(lambda: bench.count("JobSucceeded") == 1)
    claim = bench.storage.newest_claim(spec, spec.task[0])
    assert claim is not None
    assert (claim.number, bench.ray_jobs()) == (1, {name: [] for name in planes})


def test_submitted_job_is_placed_and_its_end_is_in_storage(
    bench: FleetOfPlanes, planes: dict[str, ControlPlane], players: dict[str, Player], tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('hello')")
    task = fb.fleet.Task(command=("python", "train.py"), workers=fb.fleet.TaskWorkers(cpu="2", memory="1Gi", gpus=4))
    spec = fb.JobSpec(name="sent", storage=str(tmp_path), task=(task,))
    job = fb.submit(spec, "fleet", folder=code)
    assert job.status().state == "starting"
    clusters = KubeClusters(bench.fleet, lambda found: planes[found.name].api(), delete_s=1.0)
    controller = FleetController(bench.fleet, [str(tmp_path)], JobJournal(":memory:"), clusters=clusters)

    def rounds(until: Callable[[], bool]) -> None:
        end = time.monotonic() + 90
        while not until():
            assert time.monotonic() < end, job.status()
            bench.now += ROUND_S
            controller.step(bench.now)
            time.sleep(0.1)

    rounds(lambda: job.status().state == "running")
    (name,) = (name for name, jobs in bench.ray_jobs().items() if jobs)
    (body,) = KubeRay(planes[name].api(), "default").jobs("forebay.dev/job=sent")
    (container,) = body["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    claim = AttemptFiles(str(tmp_path / spec.run_name(spec.task[0]))).newest()
    assert claim is not None
    assert {"name": "FOREBAY_RUN_ATTEMPT", "value": f"1/{claim.token}"} in container["env"]
    assert job.submission.code in container["args"][0]
    for player in players.values():
        player.run_job = lambda _: "SUCCEEDED"
    rounds(lambda: job.status().state == "succeeded")
    assert fb.submit(spec, "fleet", folder=code).status().submission == 1
