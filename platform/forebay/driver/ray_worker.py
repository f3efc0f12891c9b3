"""What runs in each worker process of Ray Train: Forebay's worker, in the process group that Ray Train has made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
import ray.train
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from forebay.cache.node import attach
from forebay.cache.peer_line import NODE_DIGITS
from forebay.cache.ray_metrics import exported
from forebay.driver.launch import device_of, unpack, work
from forebay.driver.raised import Raised
from forebay.train.collective import Alone, Collective
from forebay.train.events import Event
from forebay.train.torch_collective import TorchCollective
from forebay.world import World

# A process that was killed is known within milliseconds. One that is silent for longer is most likely busy: a train
# function that holds the interpreter's lock answers nobody.
PEER_TIMEOUT_S = 5.0


class RunEnding(Exception):
    """The driver has given up on the run while this worker was starting."""


class PeerLost(Exception):
    """A collective failed because another worker's process had died; the train function is not to blame."""


@dataclass(frozen=True, slots=True)
class CoordinatorReporter:
    """A `Reporter` that sends events to the coordinator and waits for no answer. Ends this process when it is gone."""

    coordinator: ActorHandle

    def report(self, event: Event) -> None:
        self.coordinator.report.remote(event)

    def stop_requested(self) -> str | None:
        try:
            reason: str | None = ray.get(self.coordinator.stop_reason.remote())
        except RayActorError:
            os._exit(1)  # gone with the driver: the run may go on elsewhere, and what this orphan saves would hurt it
        return reason


def train_loop(config: dict[str, Any]) -> None:
    """The train function given to Ray Train; `config` holds the coordinator and a reference to the packed `Launch`."""
    coordinator: ActorHandle = config["coordinator"]
    world = _world()
    if not ray.get(coordinator.join.remote(world.rank, ray.get_runtime_context().current_actor)):
        raise RunEnding
    try:
        stopped = _train(ray.get(config["payload"]), world, CoordinatorReporter(coordinator))
    except BaseException as error:  # whatever it is, SystemExit too, is the driver's to judge
        if lost := _lost_peers(coordinator, world):
            raise PeerLost(f"rank {world.rank} could not go on without rank {', '.join(map(str, lost))}") from error
        ray.get(coordinator.raise_error.remote(Raised.of(error, world.rank)))
        raise
    if world.is_first:
        # Comes after all of rank 0's events: calls of one caller keep their order.
        ray.get(coordinator.finished.remote(stopped))


def _train(payload: bytes, world: World, reporter: CoordinatorReporter) -> str | None:
    launch = unpack(payload)
    device = device_of(launch.resources, world.local_rank)
    collective: Collective = Alone(device) if world.size == 1 else TorchCollective(world, device)
    cache = None if launch.cache is None else attach(launch.cache)
    tags = {"role": "trainer", "run": launch.name, "node": world.node[:NODE_DIGITS]}
    return work(launch, collective, cache, reporter, partial(exported, tags))


def _world() -> World:
    context = ray.train.get_context()
    return World(
        rank=context.get_world_rank(),
        size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        node=ray.get_runtime_context().get_node_id(),
    )


def _lost_peers(coordinator: ActorHandle, world: World) -> list[int]:
    """Ranks of this attempt whose process is gone: then the error at hand only followed from that."""
    workers: dict[int, ActorHandle] = ray.get(coordinator.workers.remote())
    answers = {peer.__ray_ready__.remote(): rank for rank, peer in workers.items() if rank != world.rank}
    answered, _ = ray.wait(list(answers), num_returns=len(answers), timeout=PEER_TIMEOUT_S) if answers else ([], [])
    return sorted(answers[answer] for answer in answered if not _is_alive(answer))


def _is_alive(answer: Any) -> bool:
    try:
        ray.get(answer)
    except RayActorError:
        return False
    return True
