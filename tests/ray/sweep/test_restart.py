"""An interrupted sweep resumes by name: finished trials are kept, others continue from their own checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import state as ray_state
from ray.tune.schedulers import FIFOScheduler
from tests.ray.sweep.small_sweeps import STEPS_PER_EPOCH, SmallSweeps, make_job

from forebay.errors import InvalidOption
from forebay.sweep.record.record import load_record
from forebay.sweep.record.status_actor import SweepStatusActor
from forebay.sweep.run_sweep import run_sweep
from forebay.sweep.tune.stopper import StopFlag
from forebay.training.driver.elastic.client import names
from forebay.training.job.job import Job

pytestmark = pytest.mark.usefixtures("ray_session")

EPOCHS = 8
STEPS = EPOCHS * STEPS_PER_EPOCH
WAIT_S = 120.0
OURS = (
    "ResourceTrainable",
    "RayTrainWorker",
    "TrainController",
    StopFlag.__name__,
    SweepStatusActor.__name__,
    "Coordinator",
)
KILLED = """
import sys
from pathlib import Path
from tests.ray.sweep.small_sweeps import SmallSweeps
from forebay.sweep.run_sweep import run_sweep
fixed = {"step_s": 0.5, "epochs": 8}
sweep = SmallSweeps(Path(sys.argv[1])).sweep({"key": ["x"]}, num_trials=1, driver="ray", fixed=fixed)
run_sweep(sweep, show=False)
"""


@pytest.fixture
def small(tmp_path: Path) -> SmallSweeps:
    return SmallSweeps(tmp_path)


# test_storage.py interrupts a sweep in a bucket.
@pytest.mark.variation
def test_interrupted_sweep_goes_on_without_a_step_twice(small: SmallSweeps) -> None:
    fixed = {"step_s": 1.0, "epochs": EPOCHS}
    sweep = small.sweep({"key": {"grid_search": ["a", "b"]}}, num_trials=2, max_concurrent=1, fixed=fixed)
    small.hasten("a")
    handler = signal.getsignal(signal.SIGINT)
    at_b = threading.Thread(target=lambda: until(lambda: len(small.steps("b")) >= 3, then=signal.SIGINT))
    at_b.start()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, show=False)
    at_b.join()
    assert signal.getsignal(signal.SIGINT) is handler
    assert small.steps("a") == list(range(STEPS)), "the first trial was to be finished by then"
    assert 3 <= len(small.steps("b")) < STEPS
    small.hasten("b")
    record = load_record(str(small.folder / "sweeps" / "tiny"))
    assert record is not None and record.stopped == "interrupted"
    assert sorted(trial.state for trial in record.trials.values()) == ["finished", "pending"]

    # The deadline of a resumed sweep is over at once: it ends the sweep, but no trial permanently.
    cut = run_sweep(replace(sweep, scheduler=FIFOScheduler(), deadline_s=0.01), show=False)
    assert cut.stopped is not None and cut.stopped.startswith("the deadline")
    assert sorted(cut.table["state"]) == ["finished", "stopped"]

    result = run_sweep(sweep, show=False)
    assert list(result.table["state"]) == ["finished"] * 2
    assert small.steps("a") == list(range(STEPS)), "a finished trial was trained again"
    assert small.steps("b") == list(range(STEPS)), "an unfinished trial did not go on from its last step"
    assert set(result.table["epochs"]) == {EPOCHS}
    again = run_sweep(sweep, show=False)
    assert again.best_value == result.best_value and small.steps("b") == list(range(STEPS))
    with pytest.raises(InvalidOption, match=r"was started with num_trials=2; this one has 3\."):
        run_sweep(replace(sweep, num_trials=3), show=False)


@pytest.mark.variation  # unit/sweep/tune/test_resume.py has the rule
def test_what_failed_is_tried_again_with_the_job_as_it_is_then(small: SmallSweeps) -> None:
    mended = small.folder / "mended"

    @wraps(make_job(small.folder))
    def job(**parameters: Any) -> Job:
        if parameters["key"] == "b" and not mended.exists():
            raise ValueError("no b yet")
        return make_job(small.folder)(**parameters)

    sweep = replace(small.sweep({"key": {"grid_search": ["a", "b"]}}, num_trials=2, fixed={"epochs": 1}), job=job)
    result = run_sweep(sweep, show=False)
    assert sorted(result.table["state"]) == ["failed", "finished"]
    mended.touch()
    assert list(run_sweep(sweep, show=False).table["state"]) == ["finished"] * 2
    assert small.steps("a") == list(range(STEPS_PER_EPOCH))


def test_killed_driver_leaves_nothing_and_its_sweep_goes_on(small: SmallSweeps, request: pytest.FixtureRequest) -> None:
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    script = [sys.executable, "-c", KILLED, str(small.folder)]
    driver = subprocess.Popen(script, env=environment, cwd=request.config.rootpath, stdout=subprocess.DEVNULL)
    try:
        until(lambda: len(small.steps("x")) >= 5 or driver.poll() is not None)
    finally:
        driver.kill()
        driver.wait()
    assert 5 <= len(small.steps("x")) < STEPS
    until(lambda: not names("tiny.") and not trial_actors())

    # In the trial's own process: 20 CPU seconds less. A variation of `test_storage.py` goes on under Ray Train.
    result = run_sweep(small.sweep({"key": ["x"]}, num_trials=1, fixed={"epochs": EPOCHS}), show=False)
    assert list(result.table["state"]) == ["finished"]
    assert small.steps("x")[-1] == STEPS - 1 and small.steps_redone("x") <= 4


def trial_actors() -> list[str]:
    return [
        actor["ActorClassName"]
        for actor in ray_state.actors().values()
        if actor["State"] != "DEAD" and actor["ActorClassName"].startswith(OURS)
    ]


def until(is_so: Callable[[], object], *, then: signal.Signals | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
    if then is not None:
        os.kill(os.getpid(), then)
