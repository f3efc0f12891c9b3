"""The coordinator of a run as a named Ray actor, beside its driver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.driver.elastic.coordinator import Coordinator
from forebay.errors import UnderWay
from forebay.ray_cluster.actors import NAMESPACE, RUN_PREFIX
from forebay.runs.run import Run
from forebay.runs.status import RunStatus


@contextmanager
def coordinator_of(run: Run, driver: str) -> Iterator[ActorHandle]:
    """Start the coordinator of `run`, and kill it at the end of the block. Raises `UnderWay` if the run is under
    way.
    """
    node = ray.get_runtime_context().get_node_id()
    placed = ray.remote(Coordinator).options(
        name=f"{RUN_PREFIX}{run.name}",
        namespace=NAMESPACE,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    try:
        coordinator = placed.remote(_status(run, driver, node), run.job.max_failures)
    except ValueError as error:
        raise UnderWay(
            f"a run named {run.name!r} is under way on this cluster. Wait for its end, or give this one another name.",
            name=run.name,
        ) from error
    try:
        yield coordinator
    finally:
        ray.kill(coordinator)


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
