"""GPUs of a run, decided before its workers start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.events import Event, Preparing
from forebay.runtime.gpus import GpuSupply
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.elastic import Elastic
from forebay.training.job.resources import Resources
from forebay.training.runs.run import Run
from forebay.training.runs.timeline.timeline import load_timeline

HERE = GpuSupply(place="this machine", nodes=(2.0,))
CLUSTER = GpuSupply(place="the cluster", nodes=(0.0, 2.0), grows=True)


@pytest.mark.parametrize(
    ("supply", "elastic", "most", "target"),
    [
        (HERE, {"min_workers": 1, "max_workers": 4}, 2, 2),
        (HERE, {"min_workers": 1, "max_workers": 4, "start": 1}, 2, 1),
        (HERE, {"min_workers": 2, "max_workers": 2}, 2, 2),
        (CLUSTER, {"min_workers": 1, "max_workers": 4}, 4, 4),
        (CLUSTER, {"min_workers": 3, "max_workers": 4}, 4, 4),
    ],
)
def test_target_stays_within_gpus_that_cannot_become_more(
    tmp_path: Path, supply: GpuSupply, elastic: dict[str, Any], most: int, target: int
) -> None:
    heard: list[Event] = []
    job = DriverBench(tmp_path).job("gpus", elastic=Elastic(**elastic), resources=Resources())
    with Run(job, [lambda event, control: heard.append(event)]) as run:
        run.settle(supply)
        assert (run.job.max_workers, run.job.start_workers, run.control.target) == (most, target, target)
        assert run.control.resize(9) == most
        assert run.worker_spec.resources == Resources(gpus=1)
        run.finish("enough")
    said = [event.what for event in heard if isinstance(event, Preparing)]
    assert len(said) == 1
    assert said[0].endswith(", room for 2 workers") == (elastic["max_workers"] > 2), said
    timeline = load_timeline(run.folder)
    assert timeline is not None
    assert timeline.starts[-1].origin.config["job.gpus"] == 1


def test_smallest_world_needs_its_gpus(tmp_path: Path) -> None:
    job = DriverBench(tmp_path).job("a", elastic=Elastic(min_workers=3, max_workers=4), resources=Resources())
    with Run(job) as run, pytest.raises(InvalidOption, match="3 workers need a GPU each"):
        run.settle(HERE)
