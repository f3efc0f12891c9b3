"""Jobs of a fleet on real Ray, with clusters cut off.

The first is cut off in mid-training, and the job goes on in the other one. The API servers, the scheduler, Ray with its
tokens, the submitter, the storage and the training are real. The operator and the kubelet are played.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import wait_for
from tests.k8s.real_ray.cut_storage import CuttableWay, environment, s3_server
from tests.k8s.real_ray.ray_player import RayPlayer
from tests.k8s.real_ray.real_fleet import ENDS_S, OURS, STEP_S, STORAGE, Calm, RealFleet, call, losses, order_hash

from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.fleet.kube.kuberay import KubeRay
from forebay.storage.filesystem import resolve
from forebay.testing.data.click_log import write_click_log

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def fleet_of_ray(planes: dict[str, ControlPlane], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    folder = tmp_path_factory.mktemp("real-ray")
    write_click_log(folder / "clicks", rows=30_000, files=2, row_groups_per_file=10)
    with ExitStack() as stack:
        port = stack.enter_context(s3_server(folder / "s3.log"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in environment(port).items():
            patch.setenv(name, value)
        resolve("s3://lake?allow_bucket_creation=true").fs.create_dir("lake")
        ways, players = {}, {}
        for name, plane in planes.items():
            ways[name] = CuttableWay(port)
            stack.callback(ways[name].close)
            given = environment(ways[name].port) | {"FOREBAY_PLACE": name, "OMP_NUM_THREADS": "1"}
            players[name] = RayPlayer(plane, folder / "pods" / name, given)
            stack.callback(players[name].close)
            players[name].start()
        yield RealFleet(planes, players, ways, folder, [])


@pytest.fixture
def fleet(fleet_of_ray: RealFleet) -> Iterator[RealFleet]:
    yield fleet_of_ray
    for each in fleet_of_ray.controllers:
        each.ended.set()
        each.join(30)
    fleet_of_ray.controllers.clear()
    for name, plane in fleet_of_ray.planes.items():
        plane.thaw()
        fleet_of_ray.ways[name].restore()
        fleet_of_ray.players[name].signal(signal.SIGCONT)
        kuberay = KubeRay(plane.api(), "default")
        for each in list(kuberay.jobs(OURS)):
            kuberay.delete_job(each["metadata"]["name"])


@pytest.fixture(scope="module")
def calm(fleet_of_ray: RealFleet) -> Calm:
    """Result of an undisturbed job, and its batches."""
    fleet_of_ray.control(1)
    job = fleet_of_ray.submit("calm", step_s=0.0)
    result = job.wait(ENDS_S)
    (records,) = fleet_of_ray.records("calm").values()
    assert result is not None
    return result, records


def test_job_runs_on_ray_and_its_log_outlives_the_cluster(
    fleet: RealFleet, calm: Calm, capfd: pytest.CaptureFixture[str]
) -> None:
    result, _ = calm
    assert [epoch.rows for epoch in result.epochs] == [27_000, 27_000]
    assert SubmittedJob(STORAGE, "calm").status().state == "succeeded"
    (ray_job,) = fleet.ray_jobs()
    KubeRay(fleet.planes[fleet.place_of("calm")].api(), "default").delete_job(ray_job)
    capfd.readouterr()
    call(["logs", "calm", "--storage", STORAGE])
    shown = capfd.readouterr().out
    assert shown.startswith("== main, attempt 1 ==")
    assert "epoch 2" in shown
    # As if no controller had run at the end of the job, and until its RayJob was removed.
    location = resolve(f"{STORAGE}/calm/submissions/000001.ended.json")
    location.fs.delete_file(location.path)
    fleet.control(1)
    job = SubmittedJob(STORAGE, "calm")
    wait_for(lambda: job.status().is_over, ENDS_S)
    assert (job.status().state, fleet.attempt("calm"), fleet.ray_jobs()) == ("succeeded", 1, [])
    assert job.result() == result


@pytest.mark.parametrize("case", ["api server", "two controllers", "storage", "full"])
def test_job_of_a_cut_off_cluster_goes_on_in_the_other(fleet: RealFleet, calm: Calm, case: str) -> None:
    name = f"cut-{case.replace(' ', '-')}"
    fleet.control(2 if case == "two controllers" else 1)
    job = fleet.submit(name, step_s=STEP_S)
    wait_for(lambda: len(fleet.steps(name)) >= 2, ENDS_S)
    first = fleet.place_of(name)
    (second,) = fleet.planes.keys() - {first}
    with ExitStack() as undo, ExitStack() as occupied:
        if case == "full":
            occupied.enter_context(fleet.filled(second))
        undo.callback(fleet.join, first)
        cut_at = time.time()
        fleet.cut(first, machines=case == "full", storage=case == "storage")
        if case == "full":
            wait_for(lambda: "room for 0 workers" in fleet.said(name), ENDS_S)
            assert fleet.attempt(name) == 1
            occupied.close()
        wait_for(lambda: fleet.attempt(name) == 2, ENDS_S)
        fenced_at = time.time()
        assert fleet.place_of(name) == second
        wait_for(lambda: fleet.records(name).get(second), ENDS_S)
        stored = {step for attempt, step in fleet.steps(name) if attempt == 1}
        seen_at = fenced_at
        if case in ("storage", "full"):
            seen_at = time.time()
            fleet.join(first, api=False)
        ended = wait_for(lambda: (found := fleet.ray_job(first, name)).get("status") == "FAILED" and found, ENDS_S)
        ended_s = int(str(ended["end_time"])) / 1000 - seen_at
        message = str(ended["message"])
        # On a busy machine the storage is away for so long that the attempt gives it up, before it can hear of another.
        gave_up = case == "storage" and "failed with exit code 74" in message and "could not be written" in message
        assert gave_up or ("failed with exit code 75" in message and "a later attempt has taken over" in message)
    result = job.wait(ENDS_S)
    undisturbed, planned = calm
    records = fleet.records(name)
    resumed_at = min(records[second])
    step = sorted(planned).index(resumed_at)
    late = {step for attempt, step in fleet.steps(name) if attempt == 1} - stored
    twice = len(records[first].keys() & records[second].keys())
    print(
        f"\n{case}: {first} is cut off, after {fenced_at - cut_at:.1f} s attempt 2 is claimed for {second}, "
        f"which begins at step {step} of {len(planned)}; checkpoints of the first: {sorted(stored)}; "
        f"late ones: {sorted(late)}; steps trained twice: {twice}; the first ends {ended_s:.1f} s after it could know; "
        f"order {order_hash(planned)[:16]}"
    )
    # The second attempt begins with a checkpoint of the first that was there before the claim.
    assert step in fleet.restorable(name)
    assert not late
    assert records[first].keys() | records[second].keys() == planned.keys()
    for found in records.values():
        assert {key: found[key]["digest"] for key in found} == {key: planned[key]["digest"] for key in found}
    assert order_hash(records[first] | records[second]) == order_hash(planned)
    assert result is not None
    assert losses(result) == losses(undisturbed)
    assert job.status().attempt == 2
    kept = dict(sorted(fleet.steps(name)))
    assert kept[2] == len(planned), "the newest checkpoint is that of the second attempt"
    assert "== main, attempt 2 ==" in list(job.logs())


def test_storage_that_pods_cannot_use_fails_the_job_at_once(fleet: RealFleet) -> None:
    fleet.control(1)
    job = fleet.submit("unusable")
    wait_for(lambda: fleet.claim("unusable"), ENDS_S)
    where = fleet.place_of("unusable")
    player = fleet.players[where]
    # The nodes have started, with the code from the storage. The driver has not.
    wait_for(lambda: any(name.startswith("fb-unusable") and player.is_submitter(name) for name in player.pods), ENDS_S)
    fleet.ways[where].cut()
    wait_for(lambda: job.status().is_over, ENDS_S)
    status = job.status()
    print(f"\nunusable: {status.state}, {status.why}")
    assert status.state == "failed"
    assert "exit code 78" in status.why
    assert "UnusableStorage: the storage s3://lake/runs cannot be used from here" in status.why
    assert fleet.attempt("unusable") == 1, "it was tried again"
