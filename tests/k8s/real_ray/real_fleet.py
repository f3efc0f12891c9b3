"""A fleet of two clusters with real Ray.

A test cuts them off.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.k8s.control_plane import ControlPlane
from tests.k8s.objects import IMAGE, pod, wait_for
from tests.k8s.real_ray.cut_storage import CuttableWay
from tests.k8s.real_ray.ray_player import RayPlayer

import forebay as fb
from forebay.cli.app import main
from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.fleet.cluster import CacheVolume, Cluster, Sku
from forebay.fleet.federation.controller import FleetController
from forebay.fleet.federation.kube_clusters import KubeClusters
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.kube.kuberay import KubeRay
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.storage.filesystem import resolve
from forebay.storage.globs import children
from forebay.training.checkpoint.files.claim import Claim
from forebay.training.checkpoint.files.names import STEP_FORM, saved_step
from forebay.training.runs.attempts.files import AttemptFiles

ROOT = Path(__file__).parents[3]
STORAGE = "s3://lake/runs"
PODS = "/api/v1/namespaces/default/pods"
ENDS_S = 800.0
STEP_S = 0.3
"""Slow enough that the first attempt trains on until it is fenced, which takes half a minute."""
Records = Mapping[tuple[int, int], Mapping[str, object]]
Calm = tuple[fb.Result, Records]
OURS = "app.kubernetes.io/managed-by=forebay"
JOB = """
name = "{name}"
storage = "{storage}"
[[task]]
run = "slow_clicks.py"
args = {{data = "{data}", record = "{record}", step_s = {step_s}}}
workers = {{cpu = 2, memory = "1Gi", gpus = 4}}
[scheduling]
unreachable = {{after = "{after}"}}
[launch]
setup = ["echo the setup of {name}"]
"""


def cluster(name: str) -> Cluster:
    return Cluster(
        name=name,
        context=name,
        image=IMAGE,
        sku={"gpu": Sku(cpu="16", memory="64Gi", gpus=4, node_selector={"sku": "gpu"})},
        head_cpu="1",
        head_memory="1Gi",
        head_node_selector={"sku": "cpu"},
        cache=CacheVolume(mode="none"),
    )


class FollowingController(threading.Thread):
    """A controller in a thread, with its own journal."""

    def __init__(self, planes: Mapping[str, ControlPlane]) -> None:
        super().__init__(daemon=True)
        self._planes = planes
        self.ended = threading.Event()
        self.said: dict[str, str] = {}

    def run(self) -> None:
        fleet = Fleet(cluster=tuple(cluster(name) for name in self._planes))
        clusters = KubeClusters(fleet, lambda found: self._planes[found.name].api(deadline_s=1.0), delete_s=2.0)
        journal = JobJournal(":memory:")
        controller = FleetController(fleet, [STORAGE], journal, clusters=clusters)
        while not self.ended.wait(0.5):
            try:
                controller.step()
            except OSError as error:
                self.said["storage"] = str(error)
            for entry in journal.entries():
                whys = (*controller.reasons(entry.name), *(each.why for each in journal.reasons(entry.name)))
                self.said[entry.name] = "; ".join(whys)


@dataclass
class RealFleet:
    """Clusters with real Ray, ways to storage, and controllers."""

    planes: Mapping[str, ControlPlane]
    players: Mapping[str, RayPlayer]
    ways: Mapping[str, CuttableWay]
    folder: Path
    controllers: list[FollowingController]

    def control(self, count: int) -> None:
        """Start controllers."""
        for _ in range(count):
            self.controllers.append(started := FollowingController(self.planes))
            started.start()

    def submit(self, name: str, *, step_s: float = 0.1, after: str = "30s") -> SubmittedJob:
        """Submit the demo, as a user does."""
        record = self.folder / name
        record.mkdir()
        code = self.folder / f"code-{name}"
        code.mkdir()
        shutil.copy(ROOT / "jobs" / "train_ctr.py", code)
        shutil.copy(Path(__file__).parent / "jobs" / "slow_clicks.py", code)
        text = JOB.format(
            name=name, storage=STORAGE, data=self.folder / "clicks", record=record, step_s=step_s, after=after
        )
        (code / "job.toml").write_text(text)
        call(["submit", str(code / "job.toml"), "--backend", "fleet"])
        return SubmittedJob(STORAGE, name)

    def claim(self, name: str) -> Claim | None:
        return AttemptFiles(f"{STORAGE}/{name}").newest()

    def attempt(self, name: str) -> int:
        """Number of the newest attempt, 0 before the first."""
        claim = self.claim(name)
        return 0 if claim is None else claim.number

    def restorable(self, name: str) -> set[int]:
        """Return checkpoint steps that the second attempt may restore."""
        claim = AttemptFiles(f"{STORAGE}/{name}").claim(2)
        assert claim is not None
        return {saved_step(each).step for each in claim.restorable or ()}

    def ray_jobs(self) -> list[str]:
        """Names of the RayJobs of all clusters."""
        return [
            each["metadata"]["name"]
            for plane in self.planes.values()
            for each in KubeRay(plane.api(), "default").jobs(OURS)
        ]

    def said(self, name: str) -> str:
        """Reasons of all controllers."""
        return "; ".join(each.said.get(name, "") for each in self.controllers)

    def cut(self, where: str, *, machines: bool = False, storage: bool = False) -> None:
        """Stop the API server of a cluster.

        On request its machines stop too, or their way to the storage.
        """
        self.planes[where].freeze()
        if machines:
            self.players[where].signal(signal.SIGSTOP)
        if storage:
            self.ways[where].cut()

    def join(self, where: str, *, api: bool = True) -> None:
        """Undo `cut`. Without `api`, its API server stays silent."""
        self.players[where].signal(signal.SIGCONT)
        self.ways[where].restore()
        if api:
            self.planes[where].thaw()

    @contextmanager
    def filled(self, where: str) -> Iterator[None]:
        """Occupy all GPUs of a cluster."""
        api = self.planes[where].api()
        nodes = [each for each in api.items("/api/v1/nodes") if each["metadata"]["labels"].get("sku") == "gpu"]
        names = [f"filler-{number}" for number in range(len(nodes))]
        for name in names:
            api.create(PODS, {"metadata": {"name": name}, **pod(cpu="1", gpus=4)})
        wait_for(lambda: all(api.get(f"{PODS}/{name}")["spec"].get("nodeName") for name in names))
        try:
            yield
        finally:
            for name in names:
                api.delete(f"{PODS}/{name}", at_once=True)

    def place_of(self, name: str) -> str:
        """Cluster of the newest attempt."""
        claim = self.claim(name)
        assert claim is not None
        return claim.cluster.split("/")[0]

    def steps(self, name: str) -> set[tuple[int, int]]:
        """Attempt and step of the checkpoints in storage."""
        location = resolve(f"{STORAGE}/{name}/checkpoints")
        try:
            found = [STEP_FORM.fullmatch(info.base_name) for info in children(location.fs, location.path)]
        except FileNotFoundError:
            return set()
        return {(int(each[1] or 1), int(each[2])) for each in found if each is not None}

    def records(self, name: str) -> dict[str, dict[tuple[int, int], dict[str, object]]]:
        """Return trained batches by cluster.

        Each has its epoch and position, with digest and time.
        """
        return {
            file.stem: {(line["epoch"], line["position"]): line for line in map(json.loads, file.open())}
            for file in (self.folder / name).glob("*.jsonl")
        }

    def ray_job(self, where: str, name: str) -> Mapping[str, object]:
        """Return the dashboard's facts on a job.

        They are there also while the API server is silent.
        """
        for head in self.players[where].heads.values():
            job = head.spec.get("jobId", "")
            if job.startswith(f"fb-{name}-") and (text := head.get(f"/api/jobs/{job}")) is not None:
                return json.loads(text)
        return {}


def call(words: list[str]) -> None:
    """Call the command as a user does."""
    try:
        main(words)
    except SystemExit as ended:
        if ended.code:
            raise


def losses(result: fb.Result) -> list[tuple[float, float]]:
    """Training loss and held-out AUC of each epoch."""
    return [(epoch.metrics["loss"], epoch.metrics["auc"]) for epoch in result.epochs]


def order_hash(records: Records) -> str:
    """Digest of all batches in their order."""
    digests = [str(records[key]["digest"]) for key in sorted(records)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
