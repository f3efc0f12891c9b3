"""A sweep whose trials train with Horovod: they share the slots and grow, and one of them is stopped early."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from ray.tune import sample_from
from ray.tune.schedulers import ASHAScheduler
from tests.ray.sweep.small_sweeps import MOST_EPOCHS, SmallSweeps, UntilGrown
from tests.ray.training.driver.under_ray import title_of

from forebay.sweep.run_sweep import run_sweep
from forebay.training.driver.elastic.client import names
from forebay.training.runs.control import Callback
from forebay.training.runs.result import load_result

BAD, FAIR, GOOD = 1e-6, 0.02, 0.05
EPOCHS = 2
WAIT_S = 60.0


def until_grown() -> Sequence[Callback]:
    return [UntilGrown()]


@pytest.mark.variation
@pytest.mark.usefixtures("ray_session")
def test_elastic_trials_share_slots_and_one_is_ended_early(tmp_path: Path) -> None:
    """Two workers of four CPUs fit. The third trial finds a better trial before it. The first trial outlives it.

    So the first trial waits for both slots, and trains on both in the end.
    """
    small = SmallSweeps(tmp_path)
    lr_of = {MOST_EPOCHS: GOOD, EPOCHS: FAIR, EPOCHS + 1: BAD}
    sweep = small.sweep(
        {"epochs": {"grid_search": list(lr_of)}, "lr": sample_from(lambda spec: lr_of[spec.config.epochs])},
        driver="horovod",
        num_trials=3,
        fixed={"cpus": 4.0, "max_workers": 2, "step_s": 0.05},
        scheduler=ASHAScheduler(max_t=2 * MOST_EPOCHS, grace_period=1, reduction_factor=2),
        callbacks=until_grown,
    )
    result = run_sweep(sweep, show=False)

    assert result.record.slots == 2
    good, _, bad = (row for row in sorted(result.table.to_dict("records"), key=lambda row: -row["config/lr"]))
    assert (bad["state"], bad["epochs"]) == ("stopped", 1)
    assert good["state"] == "stopped", good["error"]
    assert 1 <= good["epochs"] < MOST_EPOCHS
    assert result.record.trials[good["trial"]].points[-1].workers == 2
    for row in result.table.to_dict("records"):
        run = load_result(row["run"])
        assert run is not None and run.epochs_done == row["epochs"]
    stopped = load_result(good["run"])
    assert stopped is not None and stopped.stopped == "it has grown"
    deadline = time.monotonic() + WAIT_S
    while (left := [*names("tiny."), *workers()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def workers() -> list[str]:
    """Processes of workers, which the guard of tests/ray does not see: it looks at actors and placement groups."""
    titles = [title_of(process) for process in psutil.Process().children(recursive=True)]
    return [title for title in titles if title.startswith("ray::HorovodWorker")]
