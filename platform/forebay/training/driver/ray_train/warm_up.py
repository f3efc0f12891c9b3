"""First call of each worker process.

It imports little itself, so that the rest is imported without the collector.
"""

from __future__ import annotations

import logging

import ray

from forebay.runtime.foreign_code import error_of
from forebay.runtime.fork_server import without_gc
from forebay.training.driver.elastic.pool import Ready
from forebay.training.driver.warm_up import make_a_step
from forebay.training.driver.worker_error import WorkerError

log = logging.getLogger(__name__)


def warm_up(payload: bytes) -> Ready:
    """Prepare this process for its first step.

    Does what takes time and needs no other worker. Called while the others train.
    """
    node = ray.get_runtime_context().get_node_id()
    with without_gc():
        # Imported without the collector.
        from forebay.training.driver.ray_train.worker import open_job, take_device  # noqa: PLC0415

        # Before Ray Train makes the process group: without a GPU that fails, and would be tried again.
        if error := error_of(lambda: take_device(payload)):
            return Ready(node=node, error=WorkerError.of(error, rank=0))
        make_a_step()
        # Errors are only logged: the train loop will raise the same error, and report it.
        if error := error_of(lambda: open_job(payload)):
            log.warning("A worker could not be warmed up.", exc_info=error)
    return Ready(node=node)
