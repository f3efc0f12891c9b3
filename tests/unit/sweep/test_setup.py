"""The largest job of a space whose first sample is a small one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import tune

from forebay.sweep.setup import largest_job, prepare
from forebay.sweep.sweep import Sweep
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    bench = DriverBench(tmp_path)

    def make(workers: int = 1, size: str = "small", lr: float = 0.1, most: int = 0) -> Job:
        if workers == 13:
            raise ValueError("bad luck")
        elastic = Elastic(min_workers=1, max_workers=most) if most else None
        cpus = {"small": 1.0, "big": 9.0}[size]
        return bench.job("x", workers=workers, elastic=elastic, resources=Resources(cpus=cpus), seed=int(lr))

    return make


def test_values_that_cannot_be_compared(job: Callable[..., Job]) -> None:
    def weighted(weights: Any = None) -> Job:
        assert len(weights) == 2
        return job()

    space = {"weights": [torch.ones(2), torch.zeros(2)]}
    assert largest_job(prepare(Sweep(weighted, space, "loss", "min"))).min_workers == 1


@pytest.mark.parametrize(
    ("space", "workers", "cpus"),
    [
        ({"workers": [1, 4, 2]}, 4, 1.0),
        ({"workers": (1, 4), "lr": (0.0, 99.0)}, 4, 1.0),
        ({"workers": tune.randint(1, 3)}, 2, 1.0),
        ({"workers": tune.choice([2, 4])}, 4, 1.0),
        ({"workers": {"grid_search": [1, 3]}, "size": ["small", "big"]}, 1, 9.0),
        ({"workers": [2, 13]}, 2, 1.0),
        ({"most": [2, 64]}, 1, 1.0),
    ],
)
def test_the_greatest_trial(job: Callable[..., Job], space: dict[str, Any], workers: int, cpus: float) -> None:
    sweep = Sweep(job, space, "loss", "min")
    greatest = largest_job(prepare(sweep))
    assert (greatest.min_workers, greatest.resources.cpus) == (workers, cpus)
