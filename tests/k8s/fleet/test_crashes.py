"""kill -9 of the controller at each of its effects.

It comes before and after each, and the journal is lost each time.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.fleet.conftest import fleet_file, kubeconfigs, make_namespace
from tests.k8s.fleet.controllers import ControllerFiles, Crash, start
from tests.k8s.fleet.created import CreatedJobs
from tests.k8s.player import Player

import forebay as fb
from forebay.fleet.client.submission import JobFiles
from forebay.fleet.kube.api import Object
from forebay.fleet.kube.kuberay import KubeRay
from forebay.training.runs.attempts.stored_request import send_request

pytestmark = pytest.mark.k8s

LANES = 4
LONGEST_S = 60.0
"""Time for the jobs of one scenario, by one controller."""
ENDS = {"again": "succeeded", "chain": "succeeded", "stop": "stopped"}
ATTEMPTS = {"again": 2, "chain.a": 1, "chain.b": 1, "stop": 1}
"""Attempts of each run: "again" fails once."""
KINDS = {"claim", "create", "delete", "journal", "record", "started", "stopped", "succeeded"}


@dataclass
class Scenario:
    """Three jobs in a storage and namespace of their own."""

    fleet: dict[str, ControlPlane]
    folder: Path
    namespace: str
    ran: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        (self.folder / "code").mkdir(parents=True)
        (self.folder / "code" / "a.py").write_text("print('hello')")
        self.storage = str(self.folder / "runs")
        shape = fb.fleet.TaskWorkers(cpu="1", memory="1Gi", sku="small")
        tasks = {
            "again": (fb.fleet.Task(command=("true",), workers=shape, retries=1),),
            "chain": (
                fb.fleet.Task(name="a", command=("true",), workers=shape),
                fb.fleet.Task(name="b", command=("true",), workers=shape, after=("a",)),
            ),
            "stop": (fb.fleet.Task(command=("sleep", "1h"), workers=shape),),
        }
        for name, task in tasks.items():
            spec = fb.JobSpec(name=name, storage=self.storage, task=task)
            fb.submit(spec, "fleet", folder=self.folder / "code")
        self.files = ControllerFiles(
            fleet=fleet_file(self.folder, list(self.fleet), self.namespace),
            storage=self.storage,
            journal=str(self.folder / "journal.sqlite"),
            trace=str(self.folder / "trace"),
            output=str(self.folder / "output"),
            kubeconfig=kubeconfigs(self.fleet),
        )

    def run(self, crashes: frozenset[Crash]) -> set[Crash]:
        """Run controllers to their crashes, and one to the end.

        Each of them begins without a journal. Returns the crashes that there were.
        """
        reached: set[Crash] = set()
        while True:
            controller = start(self.files, crashes - reached)
            self._wait(lambda controller=controller: self.ends() == ENDS or not controller.is_alive())
            if controller.is_alive():
                # A round more: nothing is started after the end.
                time.sleep(1.0)
            if controller.is_alive():
                controller.kill()
                controller.join()
                return reached
            last = re.fullmatch(r"killed (before|after) (.*)", Path(self.files.trace).read_text().splitlines()[-1])
            assert last is not None, f"the controller ended by itself: {self.output}"
            reached.add(Crash(last[2], "before" if last[1] == "before" else "after"))
            for journal in self.folder.glob("journal.sqlite*"):
                journal.unlink()

    def ends(self) -> dict[str, str]:
        ends = {name: JobFiles(storage=self.storage, name=name).ended(1) for name in ENDS}
        return {name: end.how for name, end in ends.items() if end is not None}

    @property
    def attempts(self) -> dict[str, int]:
        """Claims of each run."""
        claims = [
            each.parent.parent.name
            for each in Path(self.storage).glob("*/attempts/*.json")
            if re.fullmatch(r"\d{6}\.json", each.name)
        ]
        return dict(Counter(claims))

    @property
    def output(self) -> str:
        return Path(self.files.output).read_text() + Path(self.files.trace).read_text()

    def run_job(self, job: Object) -> str:
        """Return the status of a running RayJob.

        Called again and again.
        """
        labels = job["metadata"]["labels"]
        name, number = labels["forebay.dev/job"], labels["forebay.dev/attempt"]
        self.ran[job["metadata"]["uid"]] += 1
        if name == "stop":
            if self.ran[job["metadata"]["uid"]] == 1:
                send_request(self.storage, name, stop="enough")
            return "RUNNING"
        return "FAILED" if (name, number) == ("again", "1") else "SUCCEEDED"

    def remove(self) -> None:
        for plane in self.fleet.values():
            kuberay = KubeRay(plane.api(), self.namespace)
            for each in list(kuberay.jobs()):
                kuberay.delete_job(each["metadata"]["name"])

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done`, or for `LONGEST_S`.

        Counting shows what is missing then.
        """
        end = time.monotonic() + LONGEST_S
        while not done() and time.monotonic() < end:
            time.sleep(0.05)


@pytest.fixture
def lanes(fleet: dict[str, ControlPlane], players: dict[str, Player]) -> Iterator[dict[str, Scenario]]:
    """Scenario that runs in each namespace."""
    found: dict[str, Scenario] = {}
    for number in range(LANES):
        make_namespace(fleet, f"lane-{number}")

    def run_job(job: Object) -> str:
        scenario = found.get(job["metadata"]["namespace"])
        return "RUNNING" if scenario is None else scenario.run_job(job)

    for player in players.values():
        player.run_job = run_job
    yield found
    for player in players.values():
        player.run_job = lambda _: "SUCCEEDED"


@pytest.mark.timeout(900)
def test_no_job_is_lost_and_none_runs_twice_wherever_the_controller_is_killed(
    fleet: dict[str, ControlPlane], lanes: dict[str, Scenario], created: dict[str, CreatedJobs], tmp_path: Path
) -> None:
    began, free, lock = time.monotonic(), [f"lane-{number}" for number in range(LANES)], threading.Lock()
    faults: list[str] = []
    numbers = itertools.count()

    def run(crashes: frozenset[Crash]) -> tuple[set[Crash], list[str]]:
        with lock:
            namespace = free.pop()
        before = created_in(created, namespace)
        lanes[namespace] = scenario = Scenario(fleet, tmp_path / str(next(numbers)), namespace)
        try:
            reached = scenario.run(crashes)
            names = created_in(created, namespace) - before
            found = (scenario.ends(), scenario.attempts, sorted(names.values()), len(scenario.ran))
            if found != (ENDS, ATTEMPTS, [1] * 5, 5):
                faults.append(f"{found}\n{names}\n{scenario.output}")
        finally:
            scenario.remove()
            with lock:
                free.append(namespace)
        return reached, Path(scenario.files.trace).read_text().splitlines()

    _, effects = run(frozenset())
    left = {Crash(effect, side) for effect in effects for side in ("before", "after")}
    points = len(left)
    with ThreadPoolExecutor(LANES) as pool:
        # Several kills of one fleet in turn. What a kill left out, as a state was skipped after it, comes by itself.
        for kills in (6, 3, 1):
            groups = -(-len(left) // kills)
            spread = [frozenset(sorted(left)[first::groups]) for first in range(groups)]
            for reached, _ in pool.map(run, spread):
                left -= reached
    seconds = time.monotonic() - began
    print(f"{len(effects)} effects, killed at {points - len(left)} of {points} points, {seconds:.0f} s; left: {left}")
    assert not faults, "\n\n".join(faults[:3])
    killed = {effect for effect in effects if not {Crash(effect, "before"), Crash(effect, "after")} & left}
    assert len(killed) >= 30
    assert {" ".join(effect.split()[:1]) for effect in killed} >= KINDS


def created_in(created: dict[str, CreatedJobs], namespace: str) -> Counter[str]:
    """Count RayJobs ever created in a namespace, by name."""
    found: Counter[str] = Counter()
    for each in created.values():
        found.update(each.in_namespace(namespace))
    return found
