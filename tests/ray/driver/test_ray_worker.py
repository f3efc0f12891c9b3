"""What a worker on Ray makes of silence: of its coordinator, and of its peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from forebay.driver import ray_worker
from forebay.driver.coordinator import Coordinator
from forebay.driver.ray_worker import CoordinatorReporter
from forebay.world import World


class Peer:
    """An actor with one thread, as a train function that never gives up the interpreter's lock leaves it."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def ask(self, coordinator: ActorHandle) -> str | None:
        return CoordinatorReporter(coordinator).stop_requested()

    def ping(self) -> str:
        return "here"


@pytest.fixture
def make_actors(ray_session: None) -> Iterator[Callable[[int], list[ActorHandle]]]:
    """A coordinator and some peers."""
    made: list[ActorHandle] = []

    def make(peers: int) -> list[ActorHandle]:
        made.append(ray.remote(Coordinator).options(num_cpus=0).remote(peers))
        made.extend(ray.remote(Peer).options(num_cpus=0).remote() for _ in range(peers))
        ray.get([actor.__ray_ready__.remote() for actor in made])
        return made

    yield make
    for actor in made:
        ray.kill(actor)


def test_busy_peer_is_not_lost_but_a_killed_one_is(
    make_actors: Callable[[int], list[ActorHandle]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_worker, "PEER_TIMEOUT_S", 1.0)
    coordinator, *peers = make_actors(3)
    ray.get([coordinator.join.remote(rank, peer) for rank, peer in enumerate(peers)])
    peers[1].sleep.remote(60.0)
    assert ray_worker._lost_peers(coordinator, World(rank=0, size=3)) == []
    ray.kill(peers[2])
    assert ray_worker._lost_peers(coordinator, World(rank=0, size=3)) == [2]


def test_worker_ends_when_the_coordinator_is_gone(make_actors: Callable[[int], list[ActorHandle]]) -> None:
    coordinator, peer = make_actors(1)
    assert ray.get(peer.ask.remote(coordinator)) is None
    ray.kill(coordinator)
    with pytest.raises(RayActorError):
        ray.get(peer.ask.remote(coordinator))
    with pytest.raises(RayActorError):
        ray.get(peer.ping.remote())
