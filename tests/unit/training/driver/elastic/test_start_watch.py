"""Why no world trains, and when a run that the cluster can never hold ends."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.errors import RunFailed
from forebay.events import Event, Failed, Preparing, Started
from forebay.training.driver.elastic import start_watch
from forebay.training.driver.elastic.start_watch import StartWatch
from forebay.training.job.resources import Resources

STARTED = Started(name="a", world_size=2, epochs=1, num_batches=1)
LOST = Failed(error="lost", failures=1, will_retry=True)


class WatchedCluster:
    """Nodes with some resources, and workers that have their place, at a time of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]]) -> None:
        self.nodes, self.placed, self.now, self.said = nodes, 0, 1000.0, list[str]()
        self.free = {"CPU": 0.0}
        ray = SimpleNamespace(
            nodes=lambda: [{"Alive": True, "Resources": node} for node in self.nodes],
            available_resources=lambda: self.free,
        )
        monkeypatch.setattr(start_watch, "ray", ray)
        monkeypatch.setattr("forebay.ray_cluster.nodes.ray", ray)
        monkeypatch.setattr(start_watch, "num_placed", lambda _run: self.placed)
        monkeypatch.setattr(start_watch, "time", SimpleNamespace(monotonic=lambda: self.now))

    def run(self, *, workers: int = 2, cpus: float = 2.0, gpus: float = 0.0, room_timeout_s: float = 300.0) -> Any:
        job = SimpleNamespace(
            min_workers=workers, resources=Resources(cpus=cpus, gpus=gpus), room_timeout_s=room_timeout_s
        )
        return SimpleNamespace(name="a", job=job, tell=self._tell)

    def _tell(self, event: Event) -> None:
        assert isinstance(event, Preparing)
        self.said.append(event.what)

    def pass_time(self, watch: StartWatch, seconds: float) -> None:
        """Ask the watch every half second."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            watch.check()


@pytest.mark.parametrize(
    ("nodes", "options", "said"),
    [
        (
            [{"CPU": 2}],
            {},
            "needs 4 CPUs for 2 workers of 2 CPUs, each on one node; the cluster has 2 CPUs on 1 node",
        ),
        ([{"CPU": 1}] * 4, {}, "the cluster has 4 CPUs on 4 nodes, room for 0; waiting until"),
        ([], {"workers": 1}, "needs 2 CPUs for 1 worker; the cluster has 0 CPUs on 0 nodes, room for 0; "),
        ([{"CPU": 8}], {"gpus": 1}, "needs 4 CPUs and 2 GPUs for 2 workers .* has 8 CPUs and 0 GPUs on 1 node"),
        ([{"CPU": 8, "GPU": 1}], {"gpus": 1}, "and 1 GPUs on 1 node, room for 1; waiting until"),
    ],
)
def test_cluster_that_is_too_small_is_told_soon_and_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], options: dict[str, Any], said: str
) -> None:
    cluster = WatchedCluster(monkeypatch, nodes)
    watch = StartWatch(cluster.run(**options))
    cluster.pass_time(watch, 30.0)
    assert re.search(said, cluster.said[0]), cluster.said
    with pytest.raises(RunFailed, match=r"run 'a' needs .*, and no node has joined for 300 s\. Ask for less") as caught:
        cluster.pass_time(watch, 300.0)
    assert 1299.0 <= cluster.now <= 1301.0
    assert len(cluster.said) <= 6
    assert caught.value.summary.startswith("needs ")


def test_node_that_joins_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = WatchedCluster(monkeypatch, [{"CPU": 2}])
    watch = StartWatch(cluster.run())
    cluster.pass_time(watch, 290.0)
    cluster.nodes = [{"CPU": 2}] * 2
    cluster.pass_time(watch, 600.0)
    assert "still waiting for 2 workers of 2 CPUs and 0 GPUs; 0 CPUs" in cluster.said[-1]
    cluster.placed = 1
    cluster.pass_time(watch, 60.0)
    assert "; 1 have their place, 0 CPUs and 0 GPUs are free in the cluster" in cluster.said[-1]
    cluster.placed = 2
    cluster.pass_time(watch, 60.0)
    assert cluster.said[-1] == "2 workers are starting: importing torch and the job's modules"
    watch.see(STARTED)
    count = len(cluster.said)
    cluster.pass_time(watch, 600.0)
    assert len(cluster.said) == count


@pytest.mark.parametrize(
    ("free", "placed", "end"),
    [
        ({}, 0, "0 CPUs and 0 GPUs are free in the cluster, the rest is in use"),
        ({"CPU": 3.0, "GPU": 2.0}, 0, "3 CPUs and 2 GPUs are free in the cluster, the rest is in use"),
        ({"CPU": 3.0, "GPU": 2.0}, 1, "3 CPUs and 2 GPUs are free in the cluster, and Ray has not placed them yet"),
        ({"CPU": 8.0, "GPU": 1.0}, 0, "8 CPUs and 1 GPUs are free in the cluster, the rest is in use"),
        ({"CPU": 8.0, "GPU": 2.0}, 0, "8 CPUs and 2 GPUs are free in the cluster, and Ray has not placed them yet"),
    ],
)
def test_a_cluster_with_room_is_not_called_in_use(
    monkeypatch: pytest.MonkeyPatch, free: dict[str, float], placed: int, end: str
) -> None:
    cluster = WatchedCluster(monkeypatch, [{"CPU": 8, "GPU": 2}])
    cluster.free, cluster.placed = free, placed
    cluster.pass_time(StartWatch(cluster.run(gpus=1)), 31.0)
    assert cluster.said[-1].endswith(end), cluster.said


def test_run_that_has_trained_waits_for_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = WatchedCluster(monkeypatch, [{"CPU": 4}])
    watch = StartWatch(cluster.run())
    watch.see(STARTED)
    cluster.nodes = []
    watch.see(LOST)
    cluster.pass_time(watch, 2000.0)
    assert cluster.said[-1].endswith("waiting for nodes that come back")


def test_workers_that_start_are_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = WatchedCluster(monkeypatch, [{"CPU": 4}])
    cluster.placed = 2
    watch = StartWatch(cluster.run())
    cluster.pass_time(watch, 7.0)
    assert cluster.said == ["2 workers are starting: importing torch and the job's modules"]
    cluster.pass_time(watch, 50.0)
    assert len(cluster.said) == 1
