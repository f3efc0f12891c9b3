"""Worker process of Ray Train.

It runs Forebay's worker in the process group that Ray Train has created.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import ray
import ray.train
import ray.train.torch  # imported here because the first step needs it: 1 s
import torch
from ray.actor import ActorHandle

from forebay.data.cache.node.client import attach
from forebay.errors import Hung
from forebay.ray_cluster.actors import NODE_DIGITS
from forebay.ray_cluster.metrics_export import exported
from forebay.runtime.foreign_code import outcome_of
from forebay.training.checkpoint.ray_store import open_ray_checkpoints
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.collectives.torch_collective import TorchCollective, set_nccl_defaults
from forebay.training.driver.elastic.coordinator_client import CoordinatorReporter
from forebay.training.driver.ray_train.membership import PeerLost, membership
from forebay.training.driver.warm_up import use_interface_of
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import Outcome, work
from forebay.training.job.resources import device_of, use_device
from forebay.training.runs.worker_spec import unpack
from forebay.training.worker.worker import Worker
from forebay.world import World, ranks_text

PEER_TIMEOUT_S = 5.0
"""A killed process is known within milliseconds. One that is silent for longer is most likely busy: a train function
that holds the interpreter's lock cannot answer.
"""
NODE_TIMEOUT_S = 60.0
"""A lost node is known only as fast as the cluster checks its health. Only a rank whose connection to another broke
waits this long.
"""
LAST_WORD_S = 5.0


class RunEnding(Exception):
    """The run ended while this worker was starting.

    The driver has given up on the run, or another worker was lost.
    """


def take_device(payload: bytes) -> torch.device:
    """Make this worker's GPU the current device, before it meets the others.

    Raises `InvalidOption` if there is none, or it cannot be used.
    """
    spec = unpack(payload)
    set_nccl_defaults(spec.hang_timeout_s)
    use_interface_of(ray.util.get_node_ip_address())
    return use_device(device_of(spec.resources))


def open_job(payload: bytes) -> None:
    """Import the job's modules, and attach to the cache.

    The cache is the node's.
    """
    spec = unpack(payload)
    if spec.cache is not None:
        attach(spec.cache, spec.nodes)


def train_loop(config: dict[str, Any]) -> None:
    """Train function given to Ray Train.

    `config` holds the coordinator and a reference to the packed `WorkerSpec`.
    """
    membership.begin()
    coordinator: ActorHandle = config["coordinator"]
    world = _world()
    number: int | None = ray.get(coordinator.join.remote(world.rank, ray.get_runtime_context().current_actor))
    if number is None:
        raise RunEnding
    call = outcome_of(lambda: _train(ray.get(config["payload"]), world, coordinator))
    if (error := call.error) is not None:  # any exception, SystemExit too: the driver judges it
        if world.size > 1 and (lost := ray.get(coordinator.lost.remote(_wait_s(error)))):
            raise PeerLost(f"rank {world.rank} could not go on without {ranks_text('rank', lost)}") from error
        ray.get(coordinator.raise_error.remote(_told(error, world, coordinator), number))
        raise error
    outcome = call.result()
    if outcome.resize_to is not None:
        ray.get(coordinator.pause.remote(world.rank))
        membership.wait_for_end()
    elif world.is_first:
        ray.get(coordinator.complete.remote(outcome.stopped))


def _train(payload: bytes, world: World, coordinator: ActorHandle) -> Outcome:
    spec = unpack(payload)
    device = use_device(device_of(spec.resources))
    collective: Collective = SingleProcessCollective(device)
    if world.size > 1:
        collective = TorchCollective(world, device, timeout_s=spec.hang_timeout_s)
    cache = None if spec.cache is None else attach(spec.cache, spec.nodes)
    tags = {"role": "trainer", "run": spec.name, "node": world.node[:NODE_DIGITS]}
    with closing(open_ray_checkpoints(spec.name, spec.checkpoint_config, coordinator)) as checkpoints:
        reporter = CoordinatorReporter(coordinator)
        worker = Worker(spec.train_spec, collective, cache, checkpoints, reporter)
        return work(spec, worker, reporter, partial(exported, tags))


def _world() -> World:
    context = ray.train.get_context()
    return World(
        rank=context.get_world_rank(),
        size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        node=ray.get_runtime_context().get_node_id(),
    )


def _told(error: BaseException, world: World, coordinator: ActorHandle) -> WorkerError:
    """Report of an error raised here.

    An error that follows from another rank's waits, so that the cause is reported first.
    """
    if isinstance(error, Hung) or not _is_its_own(error):
        missing = ray.get(coordinator.missing.remote(world.rank, LAST_WORD_S))
        if isinstance(error, Hung) and missing:
            error = _naming(error, missing)
    return WorkerError.of(error, world.rank)


def _naming(error: Hung, missing: list[int]) -> Hung:
    named = Hung(f"{ranks_text('rank', missing)} did not arrive. {error}", **error.facts, missing=missing)
    return named.with_traceback(error.__traceback__)


def _wait_s(error: BaseException) -> float:
    """Seconds within which the death of the other rank that `error` may follow from is known."""
    if _is_its_own(error):
        return PEER_TIMEOUT_S
    # This rank has waited for the other one already.
    waited_s = float(error.facts["timeout_s"]) if isinstance(error, Hung) else 0.0  # type: ignore[arg-type]
    return max(PEER_TIMEOUT_S, NODE_TIMEOUT_S - waited_s)


def _is_its_own(error: BaseException) -> bool:
    """Whether `error` came from this rank's own code.

    Not from a broken connection to another rank.
    """
    text = str(error)
    is_collective = isinstance(error, torch.distributed.DistError) or "gloo" in text or "NCCL" in text
    return not (is_collective or isinstance(error, Hung))
