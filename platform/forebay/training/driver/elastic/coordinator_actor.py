"""A run's coordinator as a named Ray actor.

It runs beside the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.errors import UnderWay
from forebay.ray_cluster.actors import ANSWER_S, NAMESPACE, RUN_PREFIX, find, is_living
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.runs.run import Run
from forebay.training.runs.status import RunStatus

END_S = 10.0
CALLS_AT_ONCE = 1000
"""Ray's own limit for calls of an actor that wait. Each rank and each node may have some more of them."""
CALLS_OF_RANK = 4


@contextmanager
def coordinator_of(run: Run, driver: str) -> Iterator[ActorHandle]:
    """Run the coordinator of `run` during the block.

    Ends the coordinator of an earlier attempt at this run, which has been taken over. Raises `UnderWay` if a run of
    this name in another storage is under way on this cluster.
    """
    node = ray.get_runtime_context().get_node_id()
    on_this_node = ray.remote(Coordinator).options(
        name=f"{RUN_PREFIX}{run.name}",
        namespace=NAMESPACE,
        num_cpus=0,
        # With Ray's limit, more than 1,000 ranks would wait for each other in `join` forever.
        max_concurrency=CALLS_AT_ONCE + CALLS_OF_RANK * run.job.max_workers,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    start = _status(run, driver, node), run.job.max_failures, is_living, run.known
    try:
        coordinator = on_this_node.remote(*start)
    except ValueError as error:
        if not _end_earlier(run):
            raise UnderWay(
                f"a run named {run.name!r} is under way on this cluster. Wait for its end, or give this one another "
                "name.",
                name=run.name,
            ) from error
        coordinator = on_this_node.remote(*start)
    try:
        yield coordinator
    finally:
        ray.kill(coordinator)


def _end_earlier(run: Run) -> bool:
    """End the coordinator of an earlier attempt at `run`.

    Returns whether its name is free.
    """
    earlier = find(RUN_PREFIX, run.name)
    if earlier is None:
        return True
    try:
        status: RunStatus = ray.get(earlier.status.remote(), timeout=ANSWER_S)
        if run.attempt is None or status.path != run.path:
            return False
        ray.kill(earlier)
    except RayError:
        return False
    deadline = time.monotonic() + END_S
    while find(RUN_PREFIX, run.name) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return find(RUN_PREFIX, run.name) is None


def _status(run: Run, driver: str, node: str) -> RunStatus:
    return RunStatus(
        name=run.name,
        driver=driver,
        target=run.job.start_workers,
        min_workers=run.job.min_workers,
        max_workers=run.job.max_workers,
        epoch=run.result.epochs_done,
        epochs=run.job.epochs,
        started_at=time.time(),
        node=node,
        path=run.path,
    )
