"""GPUs of a Ray that has two of them by name: Ray schedules them, and PyTorch finds none here."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.util.placement_group import placement_group_table

from forebay.errors import InvalidOption
from forebay.events import Event, Preparing
from forebay.llm.score.request import ScoreRequest
from forebay.ray_cluster.nodes import gpus_of_cluster, worker_capacity
from forebay.testing.drivers.bench import DriverBench
from forebay.training.driver.driver import run
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources
from forebay.training.runs.control import Control

pytestmark = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="the workers would train on the GPUs")


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[None]:
    ray.shutdown()
    ray.init(
        address="local", num_cpus=8, num_gpus=2, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR,
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


def told(job: Job, driver: str = "ray") -> tuple[list[str], str]:
    """Texts of a run before its workers train, and the error that ends it."""
    said: list[str] = []

    def listen(event: Event, control: Control) -> None:
        if isinstance(event, Preparing):
            said.append(event.what)

    try:
        run(job, driver, [listen])
    except InvalidOption as error:
        return said, str(error)
    return said, ""


def gpus_reserved(name: str) -> list[float]:
    """GPUs of each worker that a run has requested."""
    mine = [facts for facts in placement_group_table().values() if f"-{name}:" in facts["name"]]
    return [sum(bundle.get("GPU", 0.0) for bundle in facts["bundles"].values()) for facts in mine]


@pytest.mark.usefixtures("two_gpus")
class TestTwoGpus:
    def test_each_worker_takes_one_by_default(self, bench: DriverBench) -> None:
        said, error = told(bench.job("default", workers=2, resources=Resources()))
        assert "giving each of 2 workers a GPU of its own; the cluster has 2 GPUs" in said
        assert "PyTorch" in error and "finds no GPU in its process" in error
        assert gpus_reserved("default")[:2] == [1.0, 1.0]

    @pytest.mark.variation("a run; that no other module reserves GPUs is a house test")
    def test_a_job_of_cpus_takes_none_and_neither_do_the_actors_of_its_node(self, bench: DriverBench) -> None:
        devices = bench.folder / "devices"

        def train(worker: Any) -> None:
            with devices.open("a") as file:
                file.write(f"{worker.device}\n")
            for _ in worker.loader():
                worker.commit()

        said, error = told(bench.job("cpus", workers=2, epochs=1, train=train))
        assert (error, devices.read_text()) == ("", "cpu\ncpu\n")
        assert not [text for text in said if "GPU" in text]
        assert set(gpus_reserved("cpus")) == {0.0}
        # The cache of the node is still there.
        assert ray.available_resources()["GPU"] == 2.0

    @pytest.mark.variation("5 s of waiting; the text is tested on made clusters")
    def test_workers_without_a_gpu_wait_for_nodes_and_say_so(self, bench: DriverBench) -> None:
        said: list[str] = []

        def listen(event: Event, control: Control) -> None:
            if isinstance(event, Preparing):
                said.append(event.what)
                if "waiting until" in event.what:
                    control.stop("seen")

        result = run(bench.job("wide", workers=3, resources=Resources()), "ray", [listen])
        assert result.stopped == "seen"
        assert "giving each of 3 workers a GPU of its own; the cluster has 2 GPUs, room for 2 workers" in said
        assert said[-1].startswith("needs 3 CPUs and 3 GPUs for 3 workers of 1 CPUs and 1 GPUs, each on one node; ")

    def test_trials_and_engines_count_them(self, bench: DriverBench, tmp_path: Path) -> None:
        supply = gpus_of_cluster(grows=True)
        assert (supply.nodes, supply.place) == ((2.0,), "the cluster")
        assert worker_capacity(Resources(gpus=1).bundle) == 2
        assert worker_capacity(Resources(gpus=0.5).bundle) == 4
        assert worker_capacity(Resources(gpus=0).bundle) == 8
        request = ScoreRequest(model="m", data="d", to=str(tmp_path))
        assert request.gpus_of(supply) == 1.0
        assert replace(request, gpus_per_worker=0).gpus_of(supply) == 0.0
