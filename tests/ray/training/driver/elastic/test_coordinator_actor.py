"""The coordinator's actor holds more waiting calls than Ray's limit for an actor, and finds the dead by asking once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from forebay.training.driver.elastic.coordinator_actor import coordinator_of
from forebay.training.state.known_reports import KnownReports

RANKS = 1_100
"""Calls of an actor that wait at the same time: Ray's own limit is 1,000."""


class Mortal:
    """Stands for a worker."""


def run_of(workers: int) -> Any:
    job = SimpleNamespace(start_workers=workers, min_workers=1, max_workers=workers, max_failures=0, epochs=1)
    result = SimpleNamespace(epochs_done=0)
    return SimpleNamespace(name="crowd", job=job, path="runs/crowd", attempt=None, result=result, known=KnownReports())


@pytest.mark.usefixtures("ray_session")
def test_more_than_a_thousand_ranks_wait_for_each_other() -> None:
    with coordinator_of(run_of(RANKS), "ray") as coordinator:
        joining = [coordinator.join.remote(rank, rank) for rank in range(RANKS - 1)]
        assert ray.get(coordinator.target.remote(), timeout=60.0) == RANKS, "waiting ranks keep others out"
        joining.append(coordinator.join.remote(RANKS - 1, RANKS - 1))
        assert ray.get(joining, timeout=60.0) == [1] * RANKS


@pytest.mark.usefixtures("ray_session")
def test_all_ranks_learn_who_died() -> None:
    peers = [ray.remote(Mortal).options(num_cpus=0).remote() for _ in range(2)]
    with coordinator_of(run_of(2), "ray") as coordinator:
        ray.get([coordinator.join.remote(rank, peer) for rank, peer in enumerate(peers)])
        assert ray.get(coordinator.lost.remote(10.0)) == []
        ray.kill(peers[1])
        assert ray.get([coordinator.lost.remote(60.0) for _ in range(20)]) == [[1]] * 20
    ray.kill(peers[0])
