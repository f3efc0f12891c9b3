"""Horovod driver: worlds change at a commit, and processes stay."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import ray
from ray.actor import ActorHandle

from forebay.data.cache.node.client import nodes_with_caches
from forebay.errors import InvalidOption
from forebay.events import Preparing
from forebay.ray_cluster.nodes import gpus_of_cluster
from forebay.ray_cluster.session import ray_session, session_text
from forebay.runtime.extras import require_package
from forebay.training.driver.elastic.controller import Controller
from forebay.training.driver.elastic.elastic_driver import Trainer, train_elastic
from forebay.training.driver.elastic.pool import Message, WorkerPool
from forebay.training.driver.horovod.backend import HorovodBackend, HorovodProcesses
from forebay.training.job.job import Job
from forebay.training.runs.control import Callback
from forebay.training.runs.result import Result
from forebay.training.runs.run import Run
from forebay.training.runs.worker_spec import pack
from forebay.training.strategies.strategy import require_strategy


class HorovodDriver:
    """`Driver` on Elastic Horovod, with Ray's actors as its workers.

    Workers that stay keep their process when the world changes: they shut one Horovod world down and initialise the
    next. Raises `MissingPackage` if Horovod is not installed.
    """

    def __init__(self) -> None:
        require_package("horovod", "horovod", "driver='horovod' (driver='ray' does not)")

    def run(self, job: Job, callbacks: Sequence[Callback] = ()) -> Result:
        """Train `job`.

        Raises `RunFailed` when its train function raises, or workers die too often. Raises `InvalidOption` for a
        strategy other than "ddp".
        """
        require_strategy(job.strategy, ["ddp"])
        with Run(job, callbacks) as run:
            if run.is_finished:
                return run.result
            run.tell(Preparing(what=session_text()))
            with ray_session(job.max_cpus) as is_ours:
                run.settle(gpus_of_cluster(grows=not is_ours))
                _check_is_within_cluster()
                return train_elastic(run, "horovod", _open_backend)


def _check_is_within_cluster() -> None:
    if ray.util.client.ray.is_connected():
        raise InvalidOption(
            "driver='horovod' was started through ray://, from outside of the cluster. Workers meet at the driver's "
            "own address: run it on a node of the cluster (RAY_ADDRESS=host:port or 'auto'), or as a submitted Ray job."
        )


@contextmanager
def _open_backend(run: Run, coordinator: ActorHandle) -> Iterator[Trainer]:
    job, inbox = run.job, queue.SimpleQueue[Message]()
    bundle = job.resources.bundle
    spec = replace(run.worker_spec, nodes=nodes_with_caches(job.cache))
    processes = HorovodProcesses(coordinator, pack(spec), bundle, inbox)
    pool = WorkerPool(run.name, bundle, inbox, processes)
    backend = HorovodBackend(run.name, pool, processes.address, job.hang_timeout_s)
    try:
        yield partial(Controller(coordinator, pool, job.min_workers).run, backend)
    finally:
        pool.close()
        backend.close()
