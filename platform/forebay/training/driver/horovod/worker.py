"""Worker process of the Horovod driver.

It is warm before it is needed, and then in one world after another.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial

import ray
from ray.actor import ActorHandle

from forebay.data.cache.node.client import attach
from forebay.ray_cluster.actors import NODE_DIGITS
from forebay.ray_cluster.metrics_export import exported
from forebay.runtime.foreign_code import outcome_of
from forebay.runtime.fork_server import without_gc
from forebay.training.checkpoint.ray_store import open_ray_checkpoints
from forebay.training.driver.elastic.coordinator_client import CoordinatorReporter
from forebay.training.driver.elastic.pool import Ready
from forebay.training.driver.horovod.collective import is_broken
from forebay.training.driver.horovod.gradients import HOROVOD_STRATEGIES
from forebay.training.driver.horovod.liveness import LineAddress, LivenessClient
from forebay.training.driver.horovod.world import RankAssignment, horovod_world
from forebay.training.driver.warm_up import make_a_step, use_interface_of
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import Outcome, work
from forebay.training.job.resources import device_of, use_device
from forebay.training.runs.worker_spec import unpack
from forebay.training.worker.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The world broke.

    `raised` is the error by which this rank noticed.
    """

    raised: WorkerError


Answer = Outcome | Broken | WorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """Arguments of a worker.

    The run's coordinator, a reference to the packed `WorkerSpec`, and the driver's address.
    """

    name: str
    coordinator: ActorHandle
    payload: list[ray.ObjectRef]
    address: LineAddress


class HorovodWorker:
    """Actor of one worker.

    Ray assigns its GPUs by `CUDA_VISIBLE_DEVICES`.
    """

    def __init__(self, request: SpawnRequest) -> None:
        self._request = request
        self._node = ray.get_runtime_context().get_node_id()
        self._line = LivenessClient(request.address, name=request.name, node=self._node)

    def warm_up(self) -> Ready:
        """Do everything that takes time and needs no other worker."""
        with without_gc():
            error = outcome_of(self._warm_up).error  # any exception: the driver judges it
        return Ready(node=self._node, error=None if error is None else WorkerError.of(error, rank=0))

    def _warm_up(self) -> None:
        import horovod.torch  # noqa: PLC0415 - an extra

        use_interface_of(ray.util.get_node_ip_address())
        self._spec = unpack(ray.get(self._request.payload[0]))
        self._device = use_device(device_of(self._spec.resources))
        self._cache = None if self._spec.cache is None else attach(self._spec.cache, self._spec.nodes)
        assert not horovod.torch.is_initialized()
        make_a_step()

    def train(self, assignment: RankAssignment) -> Answer:
        """Train in one world.

        Until the world or the run ends, or this worker pauses for a resize.
        """
        spec, coordinator = self._spec, self._request.coordinator
        tags = {"role": "trainer", "run": spec.name, "node": self._node[:NODE_DIGITS]}

        # A function here instead of a method: Ray adds frames of its own between those of an actor.
        def train() -> Outcome:
            with horovod_world(assignment, self._device, spec.hang_timeout_s) as collective:
                self._line.entered(assignment.number)
                with closing(open_ray_checkpoints(spec.name, spec.checkpoint_config, coordinator)) as checkpoints:
                    reporter = CoordinatorReporter(coordinator)
                    worker = Worker(spec.train_spec, collective, self._cache, checkpoints, reporter, HOROVOD_STRATEGIES)
                    return work(spec, worker, reporter, partial(exported, tags))

        outcome = outcome_of(train)
        if outcome.error is None:
            return outcome.result()
        # Any exception, SystemExit too: the driver judges it.
        raised = WorkerError.of(outcome.error, assignment.world.rank)
        return Broken(raised=raised) if is_broken(outcome.error) else raised
