"""Worlds of a pool without Ray: the ranks of each node, at a cost that grows as the workers."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.training.driver.elastic.test_policy import CountedName

from forebay.training.driver.elastic import pool as pool_module
from forebay.training.driver.elastic.policy import PoolWorker
from forebay.training.driver.elastic.pool import Lost, Message, WorkerPool


class IdleProcesses:
    """`Processes` without processes."""

    def __init__(self) -> None:
        self.running: dict[str, None] = {}

    def spawn(self, name: str, group: Any) -> Any:
        raise NotImplementedError

    def stop(self, name: str) -> None: ...

    def close(self) -> None: ...


def pool_of(names: list[str], inbox: queue.SimpleQueue[Message], on_node: int = 8) -> WorkerPool:
    pool = WorkerPool("a", {"CPU": 1.0}, inbox, IdleProcesses())
    pool.workers = {
        name: PoolWorker(name=name, since=0.0, state="warm", node=CountedName(f"n{rank // on_node}"))
        for rank, name in enumerate(names)
    }
    pool._actors = dict.fromkeys(names)  # type: ignore[assignment]
    return pool


def test_local_ranks_count_the_workers_of_a_node() -> None:
    names = [f"w{rank}" for rank in range(5)]
    worlds = pool_of(names, queue.SimpleQueue(), on_node=2).form_world(names)
    assert [(world.rank, world.local_rank, world.node) for world in worlds] == [
        (0, 0, "n0"),
        (1, 1, "n0"),
        (2, 0, "n1"),
        (3, 1, "n1"),
        (4, 0, "n2"),
    ]


def test_a_world_that_begins_and_loses_half_costs_as_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "ray", SimpleNamespace(kill=lambda _: None))

    def compared(count: int) -> int:
        inbox = queue.SimpleQueue[Message]()
        names: list[str] = [CountedName(number) for number in range(count)]
        pool = pool_of(names, inbox)
        CountedName.compared = 0
        pool.form_world(names)
        for name in names[: count // 2]:
            inbox.put(Lost(name=name))
        assert len(pool.hear(0)) == count // 2
        assert not pool.is_half_placed
        pool.give_way(0.0)
        return CountedName.compared

    assert compared(512) <= 10 * compared(64), "8 times the workers cost more than n log n"


def test_many_requested_workers_are_looked_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()

    def look(group: object = None) -> dict[str, Any]:
        asked.append(group)
        return {f"g{number}": {"state": "CREATED" if number % 2 else "PENDING"} for number in range(100)}

    monkeypatch.setattr(pool_module, "placement_group_table", look)
    names = [f"w{number}" for number in range(100)]
    pool = pool_of(names, queue.SimpleQueue())
    pool.workers = {name: PoolWorker(name=name, since=0.0) for name in names}
    pool._groups = {  # type: ignore[assignment]
        name: SimpleNamespace(id=SimpleNamespace(hex=lambda number=number: f"g{number}"))
        for number, name in enumerate(names)
    }
    for _ in range(5):
        pool.hear(0)
    assert asked == [None], "the cluster was asked for each worker, or at each look"
    assert [worker.state for worker in pool.workers.values()] == ["requested", "placed"] * 50
