"""First call of each worker process.

It imports little itself, so that the rest is imported without the collector.
"""

from __future__ import annotations

import logging

import ray

from forebay.runtime.foreign_code import error_of
from forebay.training.driver.elastic.pool import Ready
from forebay.training.driver.warm_up import make_a_step, without_gc

log = logging.getLogger(__name__)


def warm_up(payload: bytes) -> Ready:
    """Prepare this process for its first step.

    Does what takes time and needs no other worker. Called while the others train.
    """
    with without_gc():
        from forebay.training.driver.ray_train.worker import open_job  # noqa: PLC0415 - imported without the collector

        make_a_step()
        # Errors are only logged: the train loop will raise the same error, and report it.
        if error := error_of(lambda: open_job(payload)):
            log.warning("A worker could not be warmed up.", exc_info=error)
    return Ready(node=ray.get_runtime_context().get_node_id())
