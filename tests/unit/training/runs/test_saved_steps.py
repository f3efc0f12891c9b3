"""The curve of a run that is killed in mid-epoch: its steps up to the checkpoint are in storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.errors import Fenced
from forebay.events import Reported
from forebay.training.job.job import Job
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.result import load_result, save_result
from forebay.training.runs.run import Run


@pytest.fixture
def job(parquet_folder: Callable[..., Path], tmp_path: Path) -> Job:
    return Job(
        train=print,
        data=Data(
            plan=build_plan(scan(parquet_folder({"a.parquet": [120]})), seed=0),
            transform=Transform(x=Dense(["x0"])),
            global_batch=4,
        ),
        cache=CacheSpec(path=str(tmp_path / "cache"), quota_bytes=1 << 30, min_free_bytes=0),
        storage=str(tmp_path / "runs"),
        name="mine",
        checkpoint_every=5,
    )


def reported(step: int) -> Reported:
    return Reported(step=step, epoch=0, position=4 * step, metrics={"loss": 1.0}, rows=4 * step)


def test_steps_are_saved_with_each_checkpoint(job: Job) -> None:
    def steps_of(run: Run) -> list[int]:
        found = load_result(run.path)
        return [] if found is None else [step.step for step in found.steps]

    with Run(job) as run:
        for step in range(1, 8):
            run.tell(reported(step))
            # What a later attempt would find after kill -9 now.
            assert steps_of(run) == ([] if step < 5 else [1, 2, 3, 4, 5])
    with Run(job) as again:
        again.tell(reported(6))
        assert [step.step for step in again.result.steps] == [1, 2, 3, 4, 5, 6]


def test_an_attempt_that_was_suspended_leaves_the_steps_of_a_later_one(job: Job) -> None:
    run = Run(job)
    later = replace(run.result, steps=tuple(map(reported, range(1, 51))))

    def resume() -> None:  # before the thread of the fence asks
        assert create_attempt(run.path, 2) is not None
        save_result(later)
        run.tell(reported(5))

    with pytest.raises(Fenced), run:
        resume()
    found = load_result(run.path)
    assert found is not None
    assert found.steps == later.steps
