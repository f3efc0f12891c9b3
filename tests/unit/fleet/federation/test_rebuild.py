"""The journal is a cache: deleted, and made again.

That happens before and after every effect of a controller.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fleet_simulation.day import ControllerEnded
from tests.fleet_simulation.made import made_fleet, simulated
from tests.fleet_simulation.storage import SimulatedStorage

import forebay as fb
from forebay.errors import InvalidOption
from forebay.fleet.client.submission import JobFiles, Submission, SubmissionEnd
from forebay.fleet.federation.federation import Federation
from forebay.fleet.federation.ports import ClusterView
from forebay.fleet.federation.rebuild import StoredJob, rebuild, rebuild_file
from forebay.fleet.federation.run_storage import RunStorage
from forebay.fleet.lifecycle.decide import SeenRayJob
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.lifecycle.states import Target
from forebay.fleet.placement.capacity import Capacity
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, How

HOUR = 3600.0


class EffectStorage(SimulatedStorage):
    """Storage at whose effects a controller may end.

    The effects are claims and ends.
    """

    effect: Callable[[str], None] = staticmethod(lambda _: None)

    def claim(self, spec: JobSpec, task: Task, number: int, target: Target) -> bool:
        self.effect("before claim")
        made = super().claim(spec, task, number, target)
        self.effect("claimed")
        return made

    def end(self, spec: JobSpec, task: Task, number: int, how: How, why: str) -> None:
        self.effect("before end")
        super().end(spec, task, number, how, why)
        self.effect("ended")


def job(name: str, workers: int = 1) -> fb.JobSpec:
    shape = fb.fleet.TaskWorkers(min=workers, cpu="32", memory="256Gi", gpus=8)
    return fb.JobSpec(name=name, storage="memory://r", task=(fb.fleet.Task(run="a.py", workers=shape),))


def fleet_with_a_loss(ends_at: int) -> tuple[list[str], dict[str, tuple[int, bool]]]:
    """Run three jobs on two clusters.

    One loses its head. The controller and its journal end at effect `ends_at`. Returns the effects, and of each run the
    number of attempts and whether it has a result.
    """
    fleet, storage = made_fleet(2), EffectStorage()
    clusters, effects, now = simulated(fleet, 4), [], 0.0
    jobs = [StoredJob(spec=job(name, workers)) for name, workers in (("one", 2), ("two", 2), ("three", 1))]

    def effect(what: str) -> None:
        effects.append(what)
        if len(effects) == ends_at:
            raise ControllerEnded

    def controller() -> Federation:
        journal = JobJournal(":memory:")
        assert rebuild(journal, jobs, clusters, storage, now).unknown == ()
        return Federation(fleet, clusters, storage, journal)

    storage.effect = clusters.effect = effect
    found = controller()
    while not all(storage.run(each.spec, each.spec.task[0]).finished_by for each in jobs):
        now += 60.0
        assert now < 2 * HOUR, "a job was lost"
        clusters.now = now
        for cluster in clusters.clusters.values():
            cluster.advance(storage, lambda _: 1800.0, now, 60.0)
            for ray_job in cluster.jobs.values():
                if now == 600.0 and ray_job.run == "one" and ray_job.phase == "running":
                    cluster.end(ray_job, "failed", "its head was lost", now)
        try:
            found.step(now)
        except ControllerEnded:
            found = controller()
    runs = {name: (len(run.claims), run.finished_by is not None) for name, run in storage.runs.items()}
    return effects, runs


def test_a_journal_that_is_lost_at_any_effect_loses_no_job_and_runs_none_twice() -> None:
    effects, undisturbed = fleet_with_a_loss(0)
    assert undisturbed == {"one": (2, True), "two": (1, True), "three": (1, True)}
    done = ("claim", "create", "end", "delete")
    assert set(effects) == {f"before {each}" for each in done} | {"claimed", "created", "ended", "deleted"}
    assert len(effects) >= 20
    for number in range(1, len(effects) + 1):
        assert fleet_with_a_loss(number)[1] == undisturbed, f"ended at effect {number}: {effects[number - 1]}"


def test_a_cluster_that_left_the_fleet_file_is_silent() -> None:
    fleet, storage = made_fleet(2), SimulatedStorage()
    spec, first = job("one"), fleet.cluster[0].name
    storage.claim(spec, spec.task[0], 1, Target(cluster=first, sku="h100", market="on-demand", workers=1))
    left = dataclasses.replace(fleet, cluster=fleet.cluster[1:])
    journal = JobJournal(":memory:")
    federation = Federation(left, simulated(left, 4), storage, journal)
    federation.submit(spec, 0.0)
    for now in range(0, 1200, 30):
        federation.step(float(now))
    claim = storage.newest_claim(spec, spec.task[0])
    assert claim is not None
    assert (claim.number, claim.target.cluster) == (2, fleet.cluster[1].name)


class ShownClusters:
    """Clusters that show RayJobs and do nothing."""

    def __init__(self, **shown: dict[str, str] | None) -> None:
        self._shown = shown

    def look_all(self, now: float) -> dict[str, ClusterView]:
        return {name: self._look(name, now) for name in self._shown}

    def _look(self, cluster: str, now: float) -> ClusterView:
        shown = self._shown[cluster]
        if shown is None:
            return ClusterView(capacity=Capacity(cluster=cluster, observed_at=now, fault="it is cut"), ray_jobs=None)
        seen: dict[str, Any] = {name: SeenRayJob(phase=phase) for name, phase in shown.items()}  # type: ignore[arg-type]
        return ClusterView(capacity=Capacity(cluster=cluster, observed_at=now), ray_jobs=seen)

    def create(self, cluster: str, attempt: PlacedAttempt) -> None:
        raise AssertionError("a rebuild changes nothing")

    delete = create  # type: ignore[assignment]


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """Storage with a job of each kind.

    The local one is none of a fleet.
    """
    root, claims = str(tmp_path / "runs"), RunStorage()
    for name in ("waits", "runs", "cut", "fails", "done", "own"):
        spec = dataclasses.replace(job(name), storage=root)
        files = JobFiles(storage=root, name=name)
        backend = "local" if name == "own" else "fleet"
        assert files.create(Submission(spec=spec, number=1, backend=backend, token="t"))
        for number in range(1, {"runs": 3, "cut": 2, "fails": 3, "done": 2}.get(name, 1)):
            target = Target(cluster="c01" if name == "cut" else "c00", sku="h100", market="spot", workers=1)
            assert claims.claim(spec, spec.task[0], number, target)
            if name == "fails" or (name == "runs" and number == 1):
                AttemptFiles(f"{root}/{name}").end(number, AttemptEnd(how="failed", why="exit 1"))
        if name == "done":
            files.end(1, SubmissionEnd(how="succeeded"))
    return root


def test_states_are_those_of_storage_and_the_clusters(storage: str, tmp_path: Path) -> None:
    fleet = made_fleet(2)
    spec = dataclasses.replace(job("runs"), storage=storage)
    name = PlacedAttempt(spec=spec, task=spec.task[0], number=2, sku="").name
    clusters = ShownClusters(c00={name: "running", "fb-other-000000-1": "running"}, c01=None)
    entries, report = rebuild_file(tmp_path / "jobs.db", [storage], fleet, clusters)
    states = {each.name: each.state for each in entries}
    assert {name: (type(state).__name__, state.number) for name, state in states.items()} == {
        "waits": ("JobQueued", 0),
        "runs": ("AttemptRunning", 2),
        "cut": ("AttemptLost", 1),
        "fails": ("AttemptWithdrawing", 2),
        "done": ("JobSucceeded", 1),
    }
    # Failures that attempts recorded count as retries.
    assert (states["runs"].failures, states["fails"].failures) == (1, 2)  # type: ignore[union-attr]
    assert (dict(report.silent), [each.name for each in report.unknown]) == (
        {"c01": "it is cut"},
        ["fb-other-000000-1"],
    )
    assert [each.name for each in tmp_path.glob("jobs.db*")] == ["jobs.db"]
    assert list(JobJournal(tmp_path / "jobs.db").entries()) == entries
    with pytest.raises(InvalidOption, match="move the file away"):
        rebuild_file(tmp_path / "jobs.db", [storage], fleet, clusters)


def test_the_command_lists_what_it_rebuilt(
    forebay: Callable[..., Any], storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.fleet.federation.rebuild.KubeClusters", lambda _: ShownClusters(c00={}))
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        '[[cluster]]\nname = "c00"\ncontext = "c"\nimage = "a@sha256:00"\n[cluster.skus.h100]\ncpu = 64\nmemory = "1Ti"'
    )
    words = ("fleet", "rebuild", "--storage", storage, "--fleet", fleet)
    assert "--journal" in forebay(*words).err
    said = forebay(*words, "--journal", tmp_path / "a.db")
    assert said.code == 0, said.err
    assert max(map(len, said.out.splitlines()[:-1])) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in said.out.splitlines() if line.strip()}
    assert rows["runs"] == ["AttemptStarting", "c00", "2"]
    assert rows["done"] == ["JobSucceeded", "-", "1"]
    facts = json.loads(forebay(*words, "--journal", tmp_path / "b.db", "--json").out)
    assert (len(facts["runs"]), facts["silent"], facts["unknown"]) == (5, {}, [])
