"""Private names of Ray Train that the driver depends on. A test fails when one of them changes its meaning."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.exceptions import WorkerGroupError

from forebay.errors import UnsupportedRay
from forebay.training.driver.ray_train.membership import PeerLost
from forebay.training.driver.ray_train.trainer import (
    LEFT_OUT,
    ControllerConfig,
    CoordinatedScaling,
    CouldNotMeet,
    ForebayTrainer,
    lost_workers_text,
)

CONTROLLER = ControllerConfig(coordinator=None, payload=None, min_workers=1, run="a")


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_controller_is_built_from_named_parts() -> None:
    source = inspect.getsource(TorchTrainer.fit)
    assert "self._initialize_and_run_controller(" in source
    assert "failure_policy=" in source
    assert "scaling_policy=" in source
    assert "self._create_default_callbacks()" in source


def test_default_callbacks_hold_those_that_are_left_out(tmp_path: object) -> None:
    trainer = ForebayTrainer(
        print,
        controller=CONTROLLER,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    for unwanted in LEFT_OUT:
        assert any(isinstance(part, unwanted) for part in TorchTrainer._create_default_callbacks(trainer))
        assert not any(isinstance(part, unwanted) for part in trainer._create_default_callbacks())


def test_controller_asks_the_policy_by_keyword_and_makes_its_groups_by_class() -> None:
    asked = parameters(ScalingPolicy.make_decision_for_running_worker_group)
    assert asked == ["worker_group_state", "worker_group_status"]
    assert asked == parameters(CoordinatedScaling.make_decision_for_running_worker_group)
    assert parameters(ScalingPolicy.make_decision_for_non_running_worker_group) == []
    assert ScalingPolicy.__abstractmethods__ <= set(dir(CoordinatedScaling))
    source = inspect.getsource(TrainController._start_worker_group)
    assert "self.worker_group_cls.create(" in source
    for name in ("train_run_context=", "worker_group_context=", "callbacks="):
        assert name in source
    assert "before_controller_shutdown" in inspect.getsource(TrainController._shutdown)
    decision = ResizeDecision(num_workers=2, resources_per_worker={"CPU": 1})
    assert decision.num_workers == 2
    NoopDecision()


def test_group_starts_its_workers_and_lets_go_of_them_by_these_names() -> None:
    start = inspect.getsource(WorkerGroup._start_impl)
    assert "pg_handle = self._create_placement_group(" in start
    assert "pg_handle.wait(" in start
    assert "workers = self._create_workers(" in start
    assert "with_sync_actor(sync_actor)" in start
    assert parameters(WorkerGroup._create_workers)[:3] == ["num_workers", "placement_group", "resources_per_worker"]
    assert "self._worker_group_state.shutdown()" in inspect.getsource(WorkerGroup.shutdown)
    assert "self._clear_state()" in inspect.getsource(WorkerGroup.shutdown)
    assert PlacementGroupHandle.__abstractmethods__ == {"placement_group", "ready", "wait", "shutdown"}
    assert WorkerGroup._get_worker_runtime_env({}).keys() == {"env_vars"}


def test_worker_actor_can_be_warmed_up_and_begin_anew() -> None:
    # Ray adds a parameter to a class that became an actor in this process.
    assert set(parameters(RayTrainWorker.__init__)) <= {"_ray_trace_ctx"}
    assert {"execute", "get_metadata", "init_train_context", "run_train_fn"} <= set(dir(RayTrainWorker))
    assert inspect.signature(RayTrainWorker.init_train_context).parameters["dataset_shard_provider"].default is None
    assert "training_thread_runner=ThreadRunner()" in inspect.getsource(RayTrainWorker.init_train_context)
    assert parameters(Worker.__init__)[:3] == ["actor", "metadata", "resources"]


def test_policy_is_asked_by_keyword() -> None:
    assert list(inspect.signature(DefaultFailurePolicy.make_decision).parameters) == ["self", "training_failed_error"]
    assert list(inspect.signature(DefaultFailurePolicy.__init__).parameters) == ["self", "failure_config"]
    DefaultFailurePolicy(FailureConfig(max_failures=1))


def test_another_ray_is_refused_with_the_remedy() -> None:
    trainer = ForebayTrainer(print, controller=CONTROLLER, scaling_config=ScalingConfig(num_workers=1))
    with pytest.raises(UnsupportedRay, match=r"failure_policy and scaling_policy .* Run: pip install 'ray\["):
        trainer._initialize_and_run_controller(policies={})


def test_a_rank_that_only_missed_a_lost_one_is_not_named() -> None:
    failures = {0: PeerLost("rank 0 could not go on"), 2: RuntimeError("actor died")}
    assert lost_workers_text(WorkerGroupError("", failures)) == "lost worker 2"
    assert lost_workers_text(WorkerGroupError("", {0: PeerLost(), 1: PeerLost()})) == "lost workers 0, 1"


def test_an_error_of_the_start_arrives_as_itself_and_is_told_in_one_line() -> None:
    """Raised as a `TrainingFailedError`, which the controller does not wrap and which `max_failures` counts."""
    broken = RayTaskError("meet", "a traceback", RuntimeError("Connection closed by peer\nat pair.cc:547"))
    lost = WorkerGroupStartupFailedError("At least one of the worker actors failed to initialize.")
    lost.__cause__ = RayActorError()
    errors = [pickle.loads(pickle.dumps(CouldNotMeet.of(error))) for error in (broken, lost)]
    assert all(isinstance(error, WorkerGroupError) for error in errors)
    assert [lost_workers_text(error) for error in errors] == [
        "the workers could not meet (RuntimeError: Connection closed by peer)",
        "the workers could not meet (RayActorError: The actor experienced an error before finishing this task.)",
    ]
    assert "if isinstance(e, TrainingFailedError):" in inspect.getsource(TrainController._run_control_loop_iteration)
