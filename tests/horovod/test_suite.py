"""The Horovod driver: the laws of all drivers, and its own behaviour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray
from tests.ray.training.driver.under_ray import UnderRay
from tests.tables.driver_suite import TableSuite

from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.nodes import SmallNodes
from forebay.testing.drivers.suite import Nodes
from forebay.training.driver.driver import Driver, named_driver
from forebay.training.driver.horovod.driver import HorovodDriver


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


@pytest.mark.usefixtures("ray_session")
class TestHorovod(UnderRay, TableSuite):
    driver_path = "forebay.training.driver.horovod.driver:HorovodDriver"
    titles = ("ray::HorovodWorker",)
    # The local driver has the laws of a run.
    variations = frozenset(
        {
            "test_a_rank_that_runs_no_python_is_named",
            "test_a_silent_rank_is_named_where_no_cpu_is_free",
            "test_callback_that_raises_ends_the_run_and_the_others_are_told",
            "test_changes_of_mind_come_to_the_last_one",
            "test_exception_stops_at_once_with_its_traceback",
            "test_forebay_error_of_a_train_function_arrives_as_itself",
            "test_hang_ends_the_run_and_is_named",
            "test_interrupt_leaves_nothing",
            "test_killed_driver_is_taken_over_from_storage",
            "test_killed_worker_is_replaced_and_changes_nothing",
            "test_run_that_died_goes_on_in_other_worlds",
            "test_stopped_run_goes_on_under_its_name",
            "test_too_many_deaths_end_the_run_and_keep_its_commits",
        }
    )
    varied_cases = frozenset({"mixture", "suspend"})

    def make_driver(self) -> Driver:
        return HorovodDriver()

    def make_cluster(self) -> Nodes:
        ray.shutdown()
        return SmallNodes(others=2)


def test_it_is_known_by_its_name() -> None:
    assert isinstance(named_driver("horovod"), HorovodDriver)


@pytest.mark.variation
def test_the_environment_stays_as_it_was(bench: DriverBench, ray_off: None) -> None:
    before = dict(os.environ)
    HorovodDriver().run(bench.job("alone", workers=1))
    assert {name for name in os.environ.keys() ^ before.keys() if name.startswith(("HOROVOD", "RAY"))} == set()
