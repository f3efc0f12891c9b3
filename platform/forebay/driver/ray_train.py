"""`TorchTrainer` as Forebay uses it: a fixed number of workers, of which only the dead are replaced.

Every private name of Ray Train that Forebay touches is in this file, checked on Ray 2.60:
`TorchTrainer._initialize_and_run_controller` (where policies are put in), `TorchTrainer._create_default_callbacks`,
`FixedScalingPolicy`, `DefaultFailurePolicy`, `FailureDecision`, `PlacementGroupCleanerCallback`.
tests/ray/driver/test_ray_train.py fails when one of them moves.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.actor import ActorHandle
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from forebay.driver.launch import COLLECTIVE_TIMEOUT_S, pack
from forebay.driver.ray_worker import PeerLost, train_loop
from forebay.driver.run import Run
from forebay.errors import RunFailed
from forebay.storage.filesystem import resolve

CHECKED_VERSION = "2.60"
RAY_FOLDER = "ray"
"""Below the run's folder: Ray Train needs a place for checkpoints, of which Forebay makes none there."""


def torch_trainer(run: Run, coordinator: ActorHandle, owns_ray: bool) -> TorchTrainer:
    """The trainer of `run`, ready for `fit()`. `owns_ray`: whether this Ray ends with the run."""
    job = run.job
    folder = resolve(run.path)
    return ForebayTrainer(
        coordinator=coordinator,
        owns_ray=owns_ray,
        train_loop_config={"coordinator": coordinator, "payload": ray.put(pack(run.launch))},
        torch_config=TorchConfig(backend="nccl" if job.resources.gpus else "gloo", timeout_s=COLLECTIVE_TIMEOUT_S),
        scaling_config=ScalingConfig(
            num_workers=job.workers,
            use_gpu=job.resources.gpus > 0,
            resources_per_worker={"CPU": job.resources.cpus, "GPU": job.resources.gpus},
        ),
        run_config=RunConfig(
            name=RAY_FOLDER,
            storage_path=folder.path,
            storage_filesystem=folder.fs,
            failure_config=FailureConfig(max_failures=job.max_failures),
            # What goes wrong is raised or told as an event; Ray's own log files keep the rest.
            logging_config=LoggingConfig(log_level="CRITICAL"),
        ),
    )


class ForebayTrainer(TorchTrainer):  # type: ignore[misc]
    """Ray Train with Forebay's answer to failures."""

    def __init__(self, *, coordinator: ActorHandle, owns_ray: bool, **options: Any) -> None:
        super().__init__(train_loop, **options)
        self._coordinator = coordinator
        self._owns_ray = owns_ray

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        if not {"failure_policy", "scaling_policy"} <= parts.keys():
            raise RunFailed(
                f"Ray {ray.__version__} builds its training controller another way than Ray {CHECKED_VERSION}, which "
                f"this driver was written for. Install ray=={CHECKED_VERSION}.*, or use driver='local'.",
                version=ray.__version__,
            )
        parts["scaling_policy"] = UnreservedWorkers(self.scaling_config)
        parts["failure_policy"] = ReplaceTheDead(self.run_config.failure_config, self._coordinator)
        return super()._initialize_and_run_controller(**parts)

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()
        if not self._owns_ray:
            return callbacks
        # It guards a cluster that outlives the run, and without a dashboard it complains every second.
        return [callback for callback in callbacks if not isinstance(callback, PlacementGroupCleanerCallback)]


class UnreservedWorkers(FixedScalingPolicy):  # type: ignore[misc]
    """A fixed number of workers, asked for by their placement group alone.

    Ray Train also reserves them with its AutoscalingCoordinator: one more process to start, which stays behind, and
    whose reservations hold up the next run of the cluster.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        """Reserve nothing."""

    def _maybe_send_resource_request(self) -> None:
        """Reserve nothing."""

    def _cancel_resource_request(self) -> None:
        """There is none."""


class ReplaceTheDead(DefaultFailurePolicy):  # type: ignore[misc]
    """Only lost processes are worth another attempt: an exception of the train function would be raised again."""

    def __init__(self, failure_config: FailureConfig, coordinator: ActorHandle) -> None:
        super().__init__(failure_config)
        self._coordinator = coordinator

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        if not ray.get(self._coordinator.may_retry.remote()):
            return FailureDecision.RAISE
        decision = super().make_decision(training_failed_error)
        if decision is FailureDecision.RETRY and isinstance(training_failed_error, WorkerGroupError):
            ray.get(self._coordinator.lost_workers.remote(lost_workers_text(training_failed_error)))
        return decision


def lost_workers_text(error: WorkerGroupError) -> str:
    """One line on who was lost; a rank that only missed the lost one is not mentioned."""
    failures = error.worker_failures
    lost = sorted(rank for rank, failure in failures.items() if not isinstance(failure, PeerLost)) or sorted(failures)
    ranks = ", ".join(map(str, lost))
    return f"lost worker{'s' if len(lost) > 1 else ''} {ranks}"
