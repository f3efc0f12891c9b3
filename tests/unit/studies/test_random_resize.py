"""Changes of the number of workers are requested when the clock says so."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.events import EpochEnded, Reported, Started
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control

STUDIES = Path(__file__).parents[3] / "studies"
STARTED = Started(name="run", world_size=1, epochs=10, num_batches=5)


@pytest.fixture
def resize(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.syspath_prepend(STUDIES)
    random_resize: Callable[..., Any] = importlib.import_module("random_resize").RandomResize
    return random_resize


def control(least: int = 1, most: int = 8, start: int | None = None, epochs: int = 10) -> Control:
    return Control(elastic=Elastic(min_workers=least, max_workers=most, start=start), epochs=epochs)


def reported(epoch: int) -> Reported:
    return Reported(step=1, epoch=epoch, position=3, metrics={"loss": 1.0}, rows=3)


def ended(epoch: int) -> EpochEnded:
    return EpochEnded(epoch=epoch, step=5, metrics={}, rows=9, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)


def test_random_sizes_by_the_clock(resize: Callable[..., Any]) -> None:
    now = 100.0
    callback, asked = resize(60.0, step=3, seed=1, clock=lambda: now), control(start=4)
    heard = []
    callback(STARTED, asked)
    for second in range(1, 6000, 7):
        now = 100.0 + second
        callback(reported(0), asked)
        heard.append(asked.target)
    changes = [after - before for before, after in pairwise(heard) if after != before]
    assert set(changes) == {3, -3}, "at a bound it turns round"
    assert len(changes) == 6000 // 60 - 1
    assert {1, 4, 7} == set(heard)


def test_the_seed_says_which_way(resize: Callable[..., Any]) -> None:
    def way(seed: int) -> list[int]:
        now = 0.0
        callback, asked = resize(1.0, seed=seed, clock=lambda: now), control(start=4)
        found = []
        for second in range(20):
            now = float(second)
            callback(reported(0), asked)
            found.append(asked.target)
        return found

    assert way(1) == way(1) != way(2)


def test_periods_that_nobody_reported_are_left_out(resize: Callable[..., Any]) -> None:
    now = 0.0
    callback, asked = resize(10.0, clock=lambda: now), control(start=4)
    callback(STARTED, asked)
    now = 95.0
    callback(ended(0), asked)
    assert asked.target == 4, "decided while training, not at the end of an epoch"
    callback(reported(1), asked)
    first = asked.target
    now = 99.0
    callback(reported(1), asked)
    assert abs(first - 4) == 1 and asked.target == first
    now = 100.0
    callback(reported(1), asked)
    assert asked.target != first


def test_a_period_must_be_positive(resize: Callable[..., Any]) -> None:
    with pytest.raises(InvalidOption, match="every_s=0"):
        resize(0)
