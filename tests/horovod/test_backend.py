from __future__ import annotations

import queue
import time
from collections.abc import Callable

import psutil
import pytest
import ray
from ray.actor import ActorHandle
from tests.ray.training.driver.under_ray import title_of

from forebay.training.driver.elastic.pool import Message, WorkerPool
from forebay.training.driver.horovod.backend import HorovodProcesses

WAIT_S = 120.0


@ray.remote(num_cpus=0)
class Nobody:
    """Stands for a run's coordinator, which a worker does not need before it trains."""


@pytest.mark.usefixtures("ray_session")
def test_workers_that_ray_does_not_end_end_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reports an actor dead before it ends the process. It sometimes leaves the process alive."""
    bundle, inbox = {"CPU": 1.0, "GPU": 0.0}, queue.SimpleQueue[Message]()
    pool = WorkerPool("deaf", bundle, inbox, HorovodProcesses(Nobody.remote(), b"", bundle, inbox))
    try:
        pool.spawn(2)
        until(lambda: all(worker.is_warm for worker in pool.workers.values()), pool)
        assert len(processes()) == 2
    finally:
        spared: list[ActorHandle] = []
        with monkeypatch.context() as ray_is_deaf:
            ray_is_deaf.setattr(ray, "kill", spared.append)
            pool.close()
    assert len(spared) == 2
    deadline = time.monotonic() + WAIT_S
    while processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes() == []


def until(is_so: Callable[[], bool], pool: WorkerPool) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        pool.hear(0.1)
    assert is_so()


def processes() -> list[str]:
    titles = [title_of(process) for process in psutil.Process().children(recursive=True)]
    return [title for title in titles if title.startswith("ray::HorovodWorker")]
