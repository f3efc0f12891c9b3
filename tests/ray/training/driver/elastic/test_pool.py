"""Pool workers: requested one by one, ready once warm, kept when a world ends, and dismissed when not needed."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.ray.ending import kill

from forebay.ray_cluster.nodes import remove_placements
from forebay.training.driver.elastic.pool import Lost, Message, Ready, SpawnedWorker, WorkerPool

NAME = "pool"


class PoolProcess:
    """Stands for a backend's worker. It is warm at once, or fails."""

    def warm_up(self, fails: bool) -> Ready:
        if fails:
            raise ValueError("no such module")
        return Ready(node=ray.get_runtime_context().get_node_id())


class PoolProcesses:
    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.running: list[str] = []

    def spawn(self, name: str, place: PlacementGroup) -> SpawnedWorker:
        there = PlacementGroupSchedulingStrategy(placement_group=place, placement_group_bundle_index=0)
        actor = ray.remote(PoolProcess).options(num_cpus=2, scheduling_strategy=there).remote()
        return SpawnedWorker(actor=actor, ready=actor.warm_up.remote(self.fails))

    def stop(self, name: str) -> None:
        self.running.remove(name)

    def close(self) -> None: ...


MakePool = Callable[..., WorkerPool]


@pytest.fixture
def make_pool(ray_session: None) -> Iterator[MakePool]:
    """A pool whose workers take 2 CPUs each. Four workers fit."""
    made: list[WorkerPool] = []

    def make(*, fails: bool = False) -> WorkerPool:
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        made.append(WorkerPool(NAME, {"CPU": 2, "GPU": 0}, inbox, PoolProcesses(fails)))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def hear_until(pool: WorkerPool, **states: int) -> list[Message]:
    """Collect messages until the given number of workers is in each state."""
    heard: list[Message] = []
    deadline = time.monotonic() + 60.0
    while (found := Counter(worker.state for worker in pool.workers.values())) != states:
        assert time.monotonic() < deadline, f"{found} and not {states}"
        heard += pool.hear(0.05)
    return heard


def places() -> list[str]:
    found = placement_group_table().values()
    return [facts["state"] for facts in found if facts["name"].startswith(f"forebay-run-{NAME}:")]


def test_worker_without_room_stays_requested_until_it_is_dismissed(make_pool: MakePool) -> None:
    pool = make_pool()
    pool.spawn(5)
    hear_until(pool, warm=4, requested=1)
    assert pool.is_half_placed
    assert places().count("PENDING") == 1, "no demand for an autoscaler to see"
    pool.dismiss(name for name, worker in pool.workers.items() if not worker.is_warm)
    assert not pool.is_half_placed
    assert Counter(places())["PENDING"] == 0


def test_world_is_ranked_node_by_node_and_its_workers_stay_when_it_ends(make_pool: MakePool) -> None:
    pool = make_pool()
    pool.spawn(3)
    hear_until(pool, warm=3)
    first, second, third = pool.workers
    worlds = pool.form_world([third, first])
    assert [(world.rank, world.size, world.local_rank) for world in worlds] == [(0, 2, 0), (1, 2, 1)]
    assert list(pool.workers) == [third, first, second], "those that trained come first"
    assert [worker.is_veteran for worker in pool.workers.values()] == [True, True, False]
    assert pool.end_world() == (third, first)
    assert len(pool.workers) == 3 and pool.world == ()


def test_replaced_worker_is_another_process_in_the_same_place(make_pool: MakePool) -> None:
    pool = make_pool()
    pool.spawn(2)
    hear_until(pool, warm=2)
    kept, killed = pool.workers
    made = len(places())
    pool.form_world([kept, killed])
    kill(pool.actor(killed))
    pool.end_world()
    pool.replace([killed])
    assert not pool.workers[next(name for name in pool.workers if name != kept)].is_veteran
    hear_until(pool, warm=2)
    assert killed not in pool.workers and len(places()) == made
    pool.close()
    remove_placements(lambda run: run == NAME)
    assert set(places()) == {"REMOVED"}


def test_gives_way_to_other_runs_for_a_while(make_pool: MakePool) -> None:
    pool = make_pool()
    pool.spawn(2)
    hear_until(pool, warm=2)
    trains = next(iter(pool.workers))
    pool.form_world([trains])
    pool.give_way(60.0)
    pool.spawn(1)
    assert list(pool.workers) == [trains]


def test_failed_start_is_reported_and_the_next_one_waits(make_pool: MakePool) -> None:
    pool = make_pool(fails=True)
    pool.spawn(2)
    heard = hear_until(pool)
    assert [type(message) for message in heard] == [Lost, Lost]
    assert "no such module" in heard[0].why  # type: ignore[attr-defined]
    pool.spawn(1)
    assert pool.workers == {}, "requested again at once"


def test_place_of_a_process_that_is_known_to_be_there_is_kept_until_it_is_stopped(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray reports an actor dead before it ends the process. It sometimes leaves the process alive."""
    monkeypatch.setattr("forebay.training.driver.elastic.pool.KILLED_S", 0.0)
    pool = make_pool()
    pool.spawn(1)
    hear_until(pool, warm=1)
    (name,) = pool.workers
    pool._processes.running.append(name)  # type: ignore[attr-defined]
    pool.dismiss([name])
    assert places().count("CREATED") == 1
    pool.hear(0.1)
    assert pool._processes.running == [], "it was not told to end itself"
    pool._inbox.put(Lost(name=name))
    pool.hear(0.1)
    assert places().count("CREATED") == 0
