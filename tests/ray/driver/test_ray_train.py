"""The private names of Ray Train that the driver stands on: this fails on the day one of them moves."""

from __future__ import annotations

import inspect

import pytest
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy, NoopDecision
from ray.train.v2.api.exceptions import WorkerGroupError

from forebay.driver.ray_train import CHECKED_VERSION, ForebayTrainer, UnreservedWorkers, lost_workers_text
from forebay.driver.ray_worker import PeerLost
from forebay.errors import RunFailed


def test_version_is_the_one_that_was_checked() -> None:
    assert ray.__version__.startswith(f"{CHECKED_VERSION}."), "check the names below, then move CHECKED_VERSION"


def test_controller_is_built_from_named_parts() -> None:
    source = inspect.getsource(TorchTrainer.fit)
    assert "self._initialize_and_run_controller(" in source
    assert "failure_policy=" in source
    assert "scaling_policy=" in source
    assert "self._create_default_callbacks()" in source


def test_default_callbacks_hold_the_cleaner_that_is_left_out(tmp_path: object) -> None:
    options = {"scaling_config": ScalingConfig(num_workers=1), "run_config": RunConfig(storage_path=str(tmp_path))}
    for owns_ray, cleaners in ((True, 0), (False, 1)):
        trainer = ForebayTrainer(coordinator=None, owns_ray=owns_ray, **options)
        found = [
            part for part in trainer._create_default_callbacks() if isinstance(part, PlacementGroupCleanerCallback)
        ]
        assert len(found) == cleaners


def test_policy_is_asked_by_keyword() -> None:
    assert list(inspect.signature(DefaultFailurePolicy.make_decision).parameters) == ["self", "training_failed_error"]
    assert list(inspect.signature(DefaultFailurePolicy.__init__).parameters) == ["self", "failure_config"]
    DefaultFailurePolicy(FailureConfig(max_failures=1))


def test_nothing_is_reserved_beside_the_placement_group() -> None:
    assert {"after_controller_start", "_maybe_send_resource_request", "_cancel_resource_request"} <= set(
        dir(FixedScalingPolicy)
    )
    policy = UnreservedWorkers(ScalingConfig(num_workers=2))
    policy.after_controller_start(None)
    assert policy.make_decision_for_non_running_worker_group().num_workers == 2
    assert isinstance(policy.make_decision_for_running_worker_group(None, None), NoopDecision)
    policy.before_controller_abort()
    assert policy._coordinator_client is None


def test_another_ray_is_refused_with_the_remedy() -> None:
    trainer = ForebayTrainer(coordinator=None, owns_ray=True, scaling_config=ScalingConfig(num_workers=1))
    with pytest.raises(RunFailed, match=r"Install ray==2\.60\.\*, or use driver='local'"):
        trainer._initialize_and_run_controller(policies={})


def test_a_rank_that_only_missed_a_lost_one_is_not_named() -> None:
    failures = {0: PeerLost("rank 0 could not go on"), 2: RuntimeError("actor died")}
    assert lost_workers_text(WorkerGroupError("", failures)) == "lost worker 2"
    assert lost_workers_text(WorkerGroupError("", {0: PeerLost(), 1: PeerLost()})) == "lost workers 0, 1"
