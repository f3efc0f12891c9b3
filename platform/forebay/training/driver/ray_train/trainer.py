"""`TorchTrainer` with an elastic world.

The coordinator sets the world size, and workers outlive a change of world. The controller's process imports this file,
so it imports nothing that only workers need: 0.7 CPU seconds, for which every run waited. Every private name of Ray
Train that Forebay uses is used in this file, and listed in `ray_cluster/private_names.py`.
tests/ray/training/driver/ray_train/test_trainer.py fails when one of them changes its meaning.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.train import FailureConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from forebay.runtime.extras import unsupported_ray
from forebay.training.driver.elastic.controller import Controller
from forebay.training.driver.elastic.pool import Message, SpawnedWorker, WorkerPool
from forebay.training.driver.ray_train.backend import RayTrainWorlds
from forebay.training.driver.ray_train.membership import PeerLost
from forebay.training.driver.ray_train.warm_up import warm_up
from forebay.world import ranks_text

POLL_S = 0.2
# The first removes one placement group, but our workers have one each: the driver removes them. The second shows every
# worker the GPUs of all workers of its node, but CUDA looks only once, and the workers of a node change. The third
# starts a process in every new world, 2 CPU seconds, that hands out shards of Ray Data: we have none.
LEFT_OUT = (PlacementGroupCleanerCallback, AcceleratorSetupCallback, DatasetsCallback)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Arguments of the controller.

    It runs in another process. `payload` warms the workers up.
    """

    coordinator: ActorHandle
    payload: Any
    min_workers: int
    run: str


class ForebayTrainer(TorchTrainer):  # type: ignore[misc]
    """Ray Train with Forebay's scaling and failure policies."""

    def __init__(self, train_loop: Callable[..., None], *, controller: ControllerConfig, **options: Any) -> None:
        super().__init__(train_loop, **options)
        self._config = controller

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        if not {"failure_policy", "scaling_policy"} <= parts.keys():
            raise unsupported_ray("driver='ray'", ["failure_policy and scaling_policy of the training controller"])
        parts["scaling_policy"] = CoordinatedScaling(self.scaling_config, self._config)
        parts["failure_policy"] = ReplaceTheDead(self.run_config.failure_config, self._config.coordinator)
        return super()._initialize_and_run_controller(**parts)

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, LEFT_OUT)]


class CoordinatedScaling(ScalingPolicy):  # type: ignore[misc]
    """Scaling policy that follows the coordinator.

    It takes as many workers as the coordinator wants, if they are warm. Ray Train's own elastic policy reserves its
    maximum with an AutoscalingCoordinator, which starves the next run of the cluster. Here, groups are requested one
    by one.
    """

    def __init__(self, scaling_config: ScalingConfig, config: ControllerConfig) -> None:
        super().__init__(scaling_config)
        self._config = config
        self._open_worlds: RayTrainWorlds | None = None

    def after_controller_start(self, train_run_context: Any) -> None:  # noqa: ARG002
        """Open the worker pool in the controller's process. Reserves nothing."""
        config = self._config
        processes = RayTrainProcesses(self._bundle, WorkerGroup._get_worker_runtime_env({}), config.payload)  # noqa: SLF001
        pool = WorkerPool(config.run, self._bundle, queue.SimpleQueue[Message](), processes)
        controller = Controller(config.coordinator, pool, config.min_workers)
        adopts = not self._bundle.get("GPU")
        self._open_worlds = RayTrainWorlds(controller, config.coordinator, pool, adopts_survivors=adopts)
        TrainController.worker_group_cls = type("PoolGroupOfRun", (PoolGroup,), {"pool": pool})

    async def before_controller_shutdown(self) -> None:
        """End all workers, also those on standby."""
        self._close()

    def before_controller_abort(self) -> None:
        """End all workers, also those on standby."""
        self._close()

    def make_decision_for_non_running_worker_group(self) -> Any:
        """Decide on the first world, or the next after a failure."""
        return self._decision(self._worlds.start())

    def make_decision_for_running_worker_group(
        self,
        worker_group_state: Any,  # noqa: ARG002 - asked by keyword
        worker_group_status: Any,  # noqa: ARG002
    ) -> Any:
        """Decide on the next world.

        Called once the present one has paused for it.
        """
        return self._decision(self._worlds.go_on(), is_running=True)

    def _decision(self, workers: int | None, *, is_running: bool = False) -> Any:
        if workers is not None:
            return ResizeDecision(num_workers=workers, resources_per_worker=self._bundle)
        if not is_running:
            time.sleep(POLL_S)  # the controller of Ray 2.60 repeats its call at once, ten thousand times a second
        return NoopDecision()

    @property
    def _worlds(self) -> RayTrainWorlds:
        assert self._open_worlds is not None, "Ray Train has not called after_controller_start"
        return self._open_worlds

    @property
    def _bundle(self) -> dict[str, float]:
        return {kind: amount for kind, amount in self.scaling_config.resources_per_worker.items() if amount}

    def _get_num_workers_for_resource_request(self) -> int:
        return 0

    def _close(self) -> None:
        if self._open_worlds is not None:
            self._open_worlds.close()


class RayTrainProcesses:
    """`Processes` of Ray Train's worker actors.

    Only Ray knows whether they are alive.
    """

    running: Collection[str] = ()

    def __init__(self, bundle: dict[str, float], runtime_env: dict[str, Any], payload: Any) -> None:
        resources = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0)}
        self._actor = ray.remote(runtime_env=runtime_env, **resources)(RayTrainWorker)
        self._payload = payload

    def spawn(self, name: str, group: PlacementGroup) -> SpawnedWorker:  # noqa: ARG002
        there = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
        actor = self._actor.options(scheduling_strategy=there).remote()
        return SpawnedWorker(actor=actor, ready=actor.execute.remote(warm_up, self._payload))

    def stop(self, name: str) -> None:
        """Do nothing: no process is listed in `running`."""

    def close(self) -> None:
        """Do nothing: no resource is held."""


class CouldNotMeet(WorkerGroupError):  # type: ignore[misc]
    """The workers did not begin together.

    Most often one of them has just died and the others raised.
    """

    def __init__(self, error_message: str, worker_failures: dict[int, Exception]) -> None:
        super().__init__(error_message, worker_failures)
        self.reason = error_message.partition("\n")[0]

    @classmethod
    def of(cls, error: Exception) -> CouldNotMeet:
        """Build the error from a worker's exception.

        Ray passes it on in this form.
        """
        cause = getattr(error, "cause", None) or error.__cause__ or error
        return cls(f"{type(cause).__name__}: {cause}", {})


class PoolGroup(WorkerGroup):  # type: ignore[misc]
    """Worker group of the present world of `pool`, which a subclass sets.

    Its workers stay alive when it ends.
    """

    pool: WorkerPool

    def _start_impl(self, worker_group_state_builder: Any) -> None:
        try:
            super()._start_impl(worker_group_state_builder)
        except (RayError, WorkerGroupStartupFailedError) as error:
            # Depending on which error it sees first, Ray Train itself would end the run or try again forever.
            if self.has_started():
                ray.kill(self._worker_group_state.sync_actor)
            raise CouldNotMeet.of(error) from error

    def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> PlacementGroupHandle:  # noqa: ARG002
        return NoPlacementGroup()

    def _create_workers(self, num_workers: int, placement_group: Any, resources_per_worker: Any, **_: Any) -> list[Any]:  # noqa: ARG002
        names = {self.pool.actor(name): name for name in self.pool.world}
        assert len(names) == num_workers, "the world was decided without its workers"
        metadata = ray.get([actor.get_metadata.remote() for actor in names])
        workers = [Worker(*facts, resources_per_worker) for facts in zip(names, metadata, strict=True)]
        ranked: list[Any] = WorkerGroup._assign_worker_ranks(workers)  # noqa: SLF001
        self.pool.rank_world([names[worker.actor] for worker in ranked])
        return ranked

    def shutdown(self) -> None:
        """End the group, but not its workers."""
        if not self.has_started():
            raise ValueError("the worker group has not started")
        ray.kill(self._worker_group_state.sync_actor)
        self._clear_state()


class NoPlacementGroup(PlacementGroupHandle):  # type: ignore[misc]
    """Empty handle: each worker has its own placement group."""

    placement_group = None

    def ready(self) -> Any:
        return ray.put(None)

    def wait(self, timeout_seconds: float = 30) -> bool:  # noqa: ARG002
        return True

    def shutdown(self) -> None:
        """Do nothing: the handle is empty."""


class ReplaceTheDead(DefaultFailurePolicy):  # type: ignore[misc]
    """Failure policy that retries only after lost processes.

    A train function would raise its exception again.
    """

    def __init__(self, failure_config: FailureConfig, coordinator: ActorHandle) -> None:
        super().__init__(failure_config)
        self._coordinator = coordinator

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        if isinstance(training_failed_error, WorkerGroupError):
            record = self._coordinator.record_failure
            text, is_preempted = lost_workers_text(training_failed_error), _is_preempted(training_failed_error)
            may_retry = ray.get(record.remote(text, is_preempted=is_preempted))
            return FailureDecision.RETRY if may_retry else FailureDecision.RAISE
        if ray.get(self._coordinator.cause.remote()) is not None:
            return FailureDecision.RAISE
        return super().make_decision(training_failed_error)


def _is_preempted(error: WorkerGroupError) -> bool:
    """Whether a worker's node was drained.

    Ray's `max_failures` does not count that either.
    """
    return any(isinstance(failure, RayActorError) and failure.preempted for failure in error.worker_failures.values())


def lost_workers_text(error: WorkerGroupError) -> str:
    """Describe the lost workers in one line.

    Leaves out a rank that failed only because it missed a lost one.
    """
    if isinstance(error, CouldNotMeet):
        return f"the workers could not meet ({error.reason})"
    failures = error.worker_failures
    lost = sorted(rank for rank, failure in failures.items() if not isinstance(failure, PeerLost)) or sorted(failures)
    return f"lost {ranks_text('worker', lost)}"
