"""The Horovod driver: the laws of all drivers, and what only it does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import ray

from forebay.driver.driver import Driver, named_driver
from forebay.driver.horovod_driver import HorovodDriver
from forebay.errors import NullLabel
from forebay.testing.driver_bench import DriverBench
from forebay.testing.driver_nodes import SmallNodes, kill_stores
from forebay.testing.driver_suite import DriverSuite, Nodes
from forebay.train.worker import Worker

WORKERS = ("ray::HorovodWorker",)


def _title(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


@pytest.mark.usefixtures("ray_session")
class TestHorovod(DriverSuite):
    driver_path = "forebay.driver.horovod_driver:HorovodDriver"

    def make_driver(self) -> Driver:
        return HorovodDriver()

    def environment(self) -> Mapping[str, str]:
        return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}

    def make_cluster(self) -> Nodes:
        ray.shutdown()
        return SmallNodes(others=2)

    def lose_memory(self, run: str) -> int:
        return kill_stores(run)

    def leftovers(self) -> list[str]:
        # The guard of tests/ray/conftest.py looks at actors and placement groups; these are processes.
        return [title for process in psutil.process_iter() if (title := _title(process)).startswith(WORKERS)]

    def test_forebay_error_of_a_worker_arrives_as_itself(self, bench: DriverBench) -> None:
        def train(worker: Worker) -> None:
            raise NullLabel("column 'target' has nulls", column="target")

        with pytest.raises(NullLabel) as failure:
            self.run(bench, "null", train=train, workers=1)
        assert failure.value.column == "target"


def test_it_is_known_by_its_name() -> None:
    assert isinstance(named_driver("horovod"), HorovodDriver)


def test_the_environment_stays_as_it_was(bench: DriverBench, ray_off: None) -> None:
    before = dict(os.environ)
    HorovodDriver().run(bench.job("alone", workers=1))
    assert {name for name in os.environ.keys() ^ before.keys() if name.startswith(("HOROVOD", "RAY"))} == set()
