"""Reaction of a worker on Ray to silence of its coordinator and of its peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from tests.ray.ending import kill
from tests.waiting import until

from forebay.errors import Hung
from forebay.events import Finished, Request, Started
from forebay.ray_cluster.actors import is_living
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.driver.elastic.coordinator_client import CoordinatorReporter
from forebay.training.driver.ray_train.worker import _is_its_own, _wait_s
from forebay.training.runs.status import RunStatus

LATE_S = 3.0


class Peer:
    """An actor with one thread, like a worker whose train function never releases the GIL."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def ask(self, coordinator: ActorHandle) -> Request:
        return CoordinatorReporter(coordinator).request()

    def ask_again(self, coordinator: ActorHandle) -> Request:
        self.reporter = getattr(self, "reporter", None) or CoordinatorReporter(coordinator)
        return self.reporter.request()

    def sync(self, coordinator: ActorHandle) -> Request:
        reporter = CoordinatorReporter(coordinator)
        for name in "abc":
            reporter.report(Finished(name=name, path="/runs"))
        return reporter.synced_request()

    def ping(self) -> str:
        return "here"


def starting(workers: int) -> RunStatus:
    return RunStatus(
        name="a",
        driver="ray",
        target=workers,
        min_workers=1,
        max_workers=8,
        epochs=1,
        started_at=0.0,
        node="n",
        path="/runs/a",
    )


@pytest.fixture
def make_actors(ray_session: None) -> Iterator[Callable[[int], list[ActorHandle]]]:
    """A coordinator and some peers."""
    made: list[ActorHandle] = []

    def make(peers: int) -> list[ActorHandle]:
        made.append(ray.remote(Coordinator).options(num_cpus=0).remote(starting(peers), 0, is_living))
        made.extend(ray.remote(Peer).options(num_cpus=0).remote() for _ in range(peers))
        ray.get([actor.__ray_ready__.remote() for actor in made])
        return made

    yield make
    for actor in made:
        ray.kill(actor)


def test_busy_peer_is_not_lost_but_a_killed_one_is(make_actors: Callable[[int], list[ActorHandle]]) -> None:
    coordinator, *peers = make_actors(3)
    ray.get([coordinator.join.remote(rank, peer) for rank, peer in enumerate(peers)])
    peers[1].sleep.remote(60.0)
    assert ray.get(coordinator.lost.remote(1.0)) == []
    kill(peers[2])
    # Although the other peer has not answered yet.
    assert ray.get(coordinator.lost.remote(60.0)) == [2]


@pytest.mark.parametrize(
    ("error", "is_its_own"),
    [
        (ValueError("a column is missing"), True),
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), False),
        (torch.distributed.DistNetworkError("failed to recv"), False),
        (Hung("rank 0 waited 5 s"), False),
    ],
)
def test_broken_connection_is_told_from_an_error_of_ones_own(error: Exception, is_its_own: bool) -> None:
    assert _is_its_own(error) == is_its_own


@pytest.mark.parametrize(
    ("error", "most_s"),
    [
        (ValueError("a column is missing"), 5.0),
        (RuntimeError("gloo: Connection closed by peer"), 60.0),
        (Hung("no answer", timeout_s=10.0), 50.0),
        (Hung("no answer", timeout_s=120.0), 5.0),
    ],
)
def test_who_has_waited_for_a_peer_waits_less_for_the_news_of_its_death(error: Exception, most_s: float) -> None:
    assert _wait_s(error) == most_s


def test_request_is_synced_when_all_reported_events_were_heard(
    make_actors: Callable[[int], list[ActorHandle]],
) -> None:
    coordinator, peer = make_actors(1)
    syncing = peer.sync.remote(coordinator)
    heard = 0
    while heard < 3:
        heard += len(ray.get(coordinator.take.remote(1.0))[0])
    assert not ray.wait([syncing], timeout=0.2)[0]
    ray.get(coordinator.request_stop.remote("enough"))
    ray.get(coordinator.noted.remote(heard))
    assert ray.get(syncing) == Request(stop="enough")


def test_request_is_heard_when_it_changes(make_actors: Callable[[int], list[ActorHandle]]) -> None:
    coordinator, peer = make_actors(1)

    def heard() -> Request:
        return ray.get(peer.ask_again.remote(coordinator))

    assert heard() == heard() == Request()
    time.sleep(LATE_S)
    age_s = ray.get(coordinator.status.remote()).last_commit_age_s
    assert heard() == Request()
    until(lambda: heard() == Request() and ray.get(coordinator.status.remote()).last_commit_age_s < age_s)
    ray.get(coordinator.set_batch.remote(64))
    until(lambda: heard() == Request(global_batch=64))
    ray.get(coordinator.report.remote(Started(name="a", world_size=1, epochs=1, num_batches=8)))
    ray.get(coordinator.resize.remote(3))
    until(lambda: heard() == Request(global_batch=64, target=3))
    ray.get(coordinator.resize.remote(None))
    until(lambda: heard() == Request(global_batch=64))
    ray.kill(coordinator)
    with pytest.raises(RayActorError):
        until(lambda: heard().stop)


def test_worker_ends_when_the_coordinator_is_gone(make_actors: Callable[[int], list[ActorHandle]]) -> None:
    coordinator, peer = make_actors(1)
    assert ray.get(peer.ask.remote(coordinator)) == Request()
    kill(coordinator)
    with pytest.raises(RayActorError):
        ray.get(peer.ask.remote(coordinator))
    with pytest.raises(RayActorError):
        ray.get(peer.ping.remote())
