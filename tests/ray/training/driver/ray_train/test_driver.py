"""The Ray Train driver: the laws of all drivers on a Ray of many CPUs, and its search for a Ray."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from tests.language.suite import LanguageSuite
from tests.ray.training.driver.under_ray import UnderRay
from tests.tables.driver_suite import TableSuite

from forebay.errors import InvalidOption, RunFailed
from forebay.events import Event, Failed, Preparing, Reported, Started
from forebay.ray_cluster.actors import NAMESPACE
from forebay.ray_cluster.session import TRAIN_ENVIRONMENT, ray_session, session_text, train_environment
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.testing.drivers.fixed_suite import Heard
from forebay.testing.drivers.nodes import BARE_HEAD, SmallNodes
from forebay.testing.drivers.sharded_suite import ZERO
from forebay.testing.drivers.suite import Nodes
from forebay.training.driver.driver import Driver, run
from forebay.training.driver.elastic import start_watch
from forebay.training.driver.ray_train.driver import RayTrainDriver
from forebay.training.job.elastic import Elastic
from forebay.training.job.resources import Resources
from forebay.training.runs.control import Control
from forebay.training.worker.worker import Worker


class Other:
    """Coordinator of a run of this name in another storage."""

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(path="elsewhere")


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


@pytest.mark.usefixtures("ray_session")
class TestRayTrain(UnderRay, LanguageSuite, TableSuite):
    driver_path = "forebay.training.driver.ray_train.driver:RayTrainDriver"
    titles = ("ray::RayTrainWorker", "ray::TrainController", "ray::_RayTrainWorker", "ray::SynchronizationActor")
    # The local driver has the laws of a run, sharded ones too. Horovod and it have the elastic core's laws, where a new
    # world costs half as much. A lost node is among the faults.
    variations = frozenset(
        {
            "test_a_rank_that_runs_no_python_is_named",
            "test_all_that_holds_memory_is_killed_and_storage_is_what_remains",
            "test_a_silent_rank_is_named_where_no_cpu_is_free",
            "test_callback_that_raises_ends_the_run_and_the_others_are_told",
            "test_change_of_the_strategy_between_runs_changes_no_loss",
            "test_change_of_the_world_changes_no_loss",
            "test_changes_of_mind_come_to_the_last_one",
            "test_evaluations_and_the_end_that_they_ask_for_outlive_a_death",
            "test_exact_reduction_has_the_same_bits_in_every_world",
            "test_forebay_error_of_a_train_function_arrives_as_itself",
            "test_grows_and_shrinks_as_asked",
            "test_hang_ends_the_run_and_is_named",
            "test_killed_driver_changes_no_bit",
            "test_killed_driver_is_taken_over_from_storage",
            "test_killed_or_damaged_sharded_run_repeats_every_bit",
            "test_killed_worker_and_damaged_parts_change_no_bit",
            "test_killed_workers_are_replaced_one_or_all",
            "test_lost_node_changes_no_bit",
            "test_nodes_are_left_before_they_go_and_may_be_lost",
            "test_run_that_died_goes_on_in_other_worlds",
            "test_sharded_run_follows_the_world_and_outlives_a_worker",
            "test_stop_is_not_kept_waiting_by_workers_that_are_to_come",
            "test_stopped_run_goes_on_under_its_name",
            "test_strategies_have_equal_losses",
            "test_strategy_may_change_between_runs_of_one_name",
            "test_strategy_that_the_driver_lacks_is_refused_before_anything_is_built",
            "test_too_many_deaths_end_the_run_and_keep_its_commits",
        }
    )
    varied_cases = frozenset({"mixture", "suspend", *ZERO})

    def make_driver(self) -> Driver:
        return RayTrainDriver()

    def make_cluster(self) -> Nodes | None:
        ray.shutdown()
        return SmallNodes(others=2, cpus=1, head_cpus=1)

    def test_two_runs_of_one_name_are_refused(self, bench: DriverBench) -> None:
        other = ray.remote(Other).options(name="run-mine", namespace=NAMESPACE, num_cpus=0).remote()
        try:
            with pytest.raises(InvalidOption, match="'mine' is under way"):
                self.run(bench, "mine")
        finally:
            ray.kill(other)

    def test_says_so_when_there_is_no_room(self, bench: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start_watch, "LACK_WAIT_S", 1.0)
        heard = Heard()

        def give_up(event: object, control: object) -> None:
            if isinstance(event, Preparing) and "waiting until" in event.what:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(bench, "crowded", heard, give_up, workers=4, resources=Resources(cpus=3))
        said = [event.what for event in heard if isinstance(event, Preparing)]
        waits = (
            r"needs 12 CPUs for 4 workers of 3 CPUs, each on one node; the cluster has 8 CPUs on 1 node, room for 2; "
        )
        assert re.fullmatch(waits + r"waiting until \d\d:\d\d for nodes that join or that an autoscaler adds", said[-1])

    def test_run_without_room_ends_after_its_limit(self, bench: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(start_watch, "LACK_WAIT_S", 0.5)
        with pytest.raises(RunFailed, match=r"run 'never' needs 12 CPUs .*, and no node has joined for 1 s"):
            self.run(bench, "never", workers=4, resources=Resources(cpus=3), room_timeout_s=1.0)


@pytest.mark.variation
@pytest.mark.usefixtures("ray_session")
def test_survivor_that_notices_a_loss_late_goes_on_in_its_process(bench: DriverBench) -> None:
    """The survivor is inside a step, away from all collectives, when the others see the loss and it has to leave.

    On a busy machine it may be given up. Then another worker takes its part.
    """
    heard, survivors, worlds = Heard(), list[int](), list[int]()

    def kill_one(event: Event, control: Control) -> None:
        if isinstance(event, Started):
            worlds.append(event.world_size)
        if not isinstance(event, Reported):
            return
        if worlds[-1] == 2 and len(survivors) < worlds.count(2):
            members = bench.members("late")
            survivors.append(members[0].pid)
            os.kill(members[1].pid, signal.SIGKILL)
        elif worlds[-1] == 1 and survivors and bench.attempts("late")[-1].pid == survivors[-1]:
            control.stop("kept")

    job = bench.job(
        "late",
        elastic=Elastic(min_workers=1, max_workers=2),
        checkpoint_every=1,
        step_s=1.5,
        epochs=MOST_EPOCHS,
        max_failures=5,
    )
    result = RayTrainDriver().run(job, [heard, kill_one])
    assert result.stopped == "kept", "no survivor went on"
    assert {event.error for event in heard if isinstance(event, Failed)} == {"lost worker 1"}


@dataclass
class Meddling:
    """A train function. While it is unpickled, one rank once waits in vain for a rank that does not exist."""

    train: Callable[[Worker], None]
    mark: Path

    def __call__(self, worker: Worker) -> None:
        self.train(worker)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        meet = torch.distributed.init_process_group

        def meet_or_fail(*args: Any, **options: Any) -> None:
            with suppress(FileExistsError):
                self.mark.touch(exist_ok=False)
                options |= {"world_size": options["world_size"] + 1, "timeout": timedelta(seconds=0.5)}
            meet(*args, **options)

        torch.distributed.init_process_group = meet_or_fail


@pytest.mark.variation
@pytest.mark.usefixtures("ray_session")
def test_workers_that_could_not_meet_are_given_another_try(bench: DriverBench, tmp_path: Path) -> None:
    """Like a worker that dies while the others meet: their connections break before its death is known.

    The worker that failed is not in the next world, because it would not find the others there.
    """
    heard = Heard()
    job = bench.job("apart", workers=2, max_failures=1)
    result = RayTrainDriver().run(replace(job, train=Meddling(job.train, tmp_path / "has-failed")), [heard])
    assert result.is_finished
    (failed,) = (event for event in heard if isinstance(event, Failed))
    assert re.fullmatch(r"the workers could not meet \(\w+Error: .+\)", failed.error)
    assert (failed.failures, failed.will_retry) == (1, True)


def test_starts_a_ray_of_its_own_and_ends_it(ray_off: None, bench: DriverBench) -> None:
    before = dict(os.environ)
    heard = Heard()
    result = run(bench.job("own", workers=1, epochs=1), "ray", [heard])
    assert result.is_finished
    assert isinstance(heard[0], Preparing)
    assert heard[0].what == "starting Ray on this machine"
    assert not ray.is_initialized()
    assert dict(os.environ) == before
    assert not [path for path in Path(result.path).iterdir() if path.name == "ray"], "Ray Train's folder was left"


def test_uses_the_cluster_at_ray_address(ray_off: None, bench: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**BARE_HEAD, "num_cpus": 3})
    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        assert session_text() == f"connecting to Ray at {cluster.address}"
        with ray_session(1) as owns_ray:
            assert not owns_ray
            assert ray.cluster_resources()["CPU"] == 3
        assert not ray.is_initialized()
        assert cluster.head_node.all_processes, "the cluster ended with the run"
    finally:
        cluster.shutdown()


def test_train_environment_is_gone_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "5")
    before = dict(os.environ)
    with train_environment():
        assert os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] == "5", "what a user set was overwritten"
        assert TRAIN_ENVIRONMENT.keys() <= os.environ.keys()
    assert dict(os.environ) == before
