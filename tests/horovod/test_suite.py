"""The Horovod driver: the laws of all drivers, and what only it does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray
from tests.ray.driver.under_ray import UnderRay

from forebay.driver.driver import Driver, named_driver
from forebay.driver.horovod.driver import HorovodDriver
from forebay.runs.result import Result
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.nodes import SmallNodes
from forebay.testing.drivers.suite import Nodes


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


@pytest.mark.usefixtures("ray_session")
class TestHorovod(UnderRay):
    driver_path = "forebay.driver.horovod.driver:HorovodDriver"
    titles = ("ray::HorovodWorker",)

    def make_driver(self) -> Driver:
        return HorovodDriver()

    def make_cluster(self) -> Nodes:
        ray.shutdown()
        return SmallNodes(others=2)

    # Some minutes, in which the coordinator and the stores are what is tested: under Ray Train they are always run.
    @pytest.mark.soak
    def test_changes_of_mind_come_to_the_last_one(self, bench: DriverBench) -> None:
        super().test_changes_of_mind_come_to_the_last_one(bench)

    @pytest.mark.soak
    def test_stopped_run_goes_on_under_its_name(self, bench: DriverBench, calm: Result) -> None:
        super().test_stopped_run_goes_on_under_its_name(bench, calm)

    @pytest.mark.soak
    def test_all_that_holds_memory_is_killed_and_storage_is_what_remains(self, bench: DriverBench) -> None:
        super().test_all_that_holds_memory_is_killed_and_storage_is_what_remains(bench)

    @pytest.mark.soak
    def test_killed_worker_is_replaced_and_changes_nothing(self, bench: DriverBench, calm: Result) -> None:
        super().test_killed_worker_is_replaced_and_changes_nothing(bench, calm)


def test_it_is_known_by_its_name() -> None:
    assert isinstance(named_driver("horovod"), HorovodDriver)


def test_the_environment_stays_as_it_was(bench: DriverBench, ray_off: None) -> None:
    before = dict(os.environ)
    HorovodDriver().run(bench.job("alone", workers=1))
    assert {name for name in os.environ.keys() ^ before.keys() if name.startswith(("HOROVOD", "RAY"))} == set()
