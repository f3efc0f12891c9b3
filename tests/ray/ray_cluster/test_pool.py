"""Seats: asked for one by one, warm before they count, kept when a world ends, and given up when nobody wants them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.ray.ending import kill

from forebay.ray_cluster.placement import remove_places
from forebay.ray_cluster.pool import PlacedWorkerPool, SpawnedWorker, WorkersCannotStart

NAME = "seats"


@dataclass(frozen=True)
class Metadata:
    node_id: str


class Process:
    """Stands for Ray Train's worker: it is warm when told so, and leaves a world or does not."""

    def execute(self, task: Callable[[], bool]) -> bool:
        return task()

    def warm(self, fails: bool) -> None:
        if fails:
            raise ValueError("no such module")

    def metadata(self) -> Metadata:
        return Metadata(ray.get_runtime_context().get_node_id())


def lets_go() -> bool:
    return True


def holds_on() -> bool:
    return False


class SpawnCalls:
    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __call__(self, place: PlacementGroup) -> SpawnedWorker:
        there = PlacementGroupSchedulingStrategy(placement_group=place, placement_group_bundle_index=0)
        actor = ray.remote(Process).options(num_cpus=2, scheduling_strategy=there).remote()
        return SpawnedWorker(actor, actor.warm.remote(self.fails), actor.metadata.remote())


MakeSeats = Callable[..., PlacedWorkerPool]


@pytest.fixture
def make_seats(ray_session: None) -> Iterator[MakeSeats]:
    """Seats of 2 CPUs each, of which four fit."""
    made: list[PlacedWorkerPool] = []

    def make(*, fails: bool = False, leave: Callable[[], bool] = lets_go) -> PlacedWorkerPool:
        made.append(PlacedWorkerPool(SpawnCalls(fails), {"CPU": 2}, NAME, leave))
        return made[-1]

    yield make
    for seats in made:
        seats.close()


def tend_until(seats: PlacedWorkerPool, wanted: int, **counts: int) -> None:
    deadline = time.monotonic() + 60.0
    while {name: seats.counts(())[name] for name in counts} != counts:
        assert time.monotonic() < deadline, f"{seats.counts(())} and not {counts}"
        seats.tend(wanted, ())
        time.sleep(0.05)


def places() -> list[str]:
    found = placement_group_table().values()
    return [facts["state"] for facts in found if facts["name"].startswith(f"forebay-run-{NAME}:")]


def test_what_does_not_fit_stays_asked_for_and_is_not_near(make_seats: MakeSeats) -> None:
    seats = make_seats()
    tend_until(seats, 5, ready=4, nearing=0)
    assert seats.is_half_placed
    assert places().count("PENDING") == 1, "no demand for an autoscaler to see"
    assert seats.seat(5, 1, ()) == 4
    seats.tend(4, ())
    assert seats.counts(()) == {"size": 4, "staying": 4, "ready": 0, "nearing": 0}
    assert "PENDING" not in places()


def test_processes_outlive_their_world_unless_they_are_gone_or_hold_on(make_seats: MakeSeats) -> None:
    seats = make_seats()
    tend_until(seats, 2, ready=2)
    assert seats.seat(2, 1, ()) == 2
    kept, killed = (seat.actor for seat in seats.seated)
    kill(killed)
    seats.gather(adopt=True)
    assert (seats.survivors, seats.counts(())["ready"]) == (1, 1)
    assert seats.seat(1, 1, ()) == 1
    assert seats.seated[0].actor == kept
    tend_until(seats, 2, ready=1)
    assert seats.coming[0].actor != killed
    seats.gather(adopt=False)
    assert seats.survivors == 0
    tend_until(seats, 2, ready=2)
    remove_places(lambda run: run == NAME)
    assert set(places()) == {"REMOVED"}


def test_process_that_does_not_let_go_is_replaced(make_seats: MakeSeats) -> None:
    seats = make_seats(leave=holds_on)
    tend_until(seats, 1, ready=1)
    assert seats.seat(1, 1, ()) == 1
    seats.gather(adopt=True)
    assert seats.survivors == 0
    tend_until(seats, 1, ready=1)


def test_leaving_nodes_are_not_counted_on_and_left_where_enough_others_are(make_seats: MakeSeats) -> None:
    seats = make_seats()
    tend_until(seats, 2, ready=2)
    here = seats.coming[0].node
    assert seats.seat(2, 3, ()) is None, "fewer than the run may have"
    assert seats.seat(2, 1, (here,)) == 1, "no more than it needs stay where they cannot"
    assert seats.counts((here,))["staying"] == 0
    seats.tend(2, (here,))
    assert all(seat.node is None for seat in seats.coming), "one that waits on a node that goes was kept"


def test_processes_that_never_start_are_an_error_in_the_end(
    make_seats: MakeSeats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.ray_cluster.pool.RETRY_S", 0.0)
    seats = make_seats(fails=True)
    with pytest.raises(WorkersCannotStart, match="5 worker processes failed"):
        tend_until(seats, 2, ready=2)
