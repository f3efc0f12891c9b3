"""What goes wrong in trials ends the trial, not the sweep; one whose process is lost goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ray.sweep.small_sweeps import STEPS_PER_EPOCH, SmallSweeps

from forebay.errors import SweepFailed

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def small(tmp_path: Path) -> SmallSweeps:
    return SmallSweeps(tmp_path)


def test_trials_fail_one_by_one(small: SmallSweeps) -> None:
    meets = {"grid_search": ["", "raise", "nan", "hang", "kill"]}
    result = small.sweep({"meets": meets}, max_failures=1, hang_timeout_s=8.0).run(show=False)
    found = {row["config/meets"]: row for row in result.table.to_dict("records")}
    assert {name: row["state"] for name, row in found.items()} == {
        "": "finished",
        "raise": "failed",
        "nan": "stopped",
        "hang": "failed",
        "kill": "finished",
    }
    assert "ValueError: boom in the train function" in found["raise"]["error"]
    assert "hang_timeout_s=8" in found["hang"]["error"]
    assert "no finite number" in found["nan"]["error"]
    assert found["nan"]["best_epoch"] == 1
    # Tried once: what a train function raises, it would raise again.
    assert small.steps("raise")[-1] == STEPS_PER_EPOCH + 3 and small.steps_redone("raise") == 0
    # From its own commit, which is at most two steps old.
    assert 1 <= small.steps_redone("kill") <= 2 and max(small.steps("kill")) == 2 * STEPS_PER_EPOCH - 1
    assert result.best_config["meets"] in ("", "kill")


def test_sweep_of_which_all_trials_fail(small: SmallSweeps) -> None:
    with pytest.raises(SweepFailed, match=r"(?s)every trial of sweep 'tiny' failed \(1\).*boom in the train") as failed:
        small.sweep({"meets": ["raise"]}, num_trials=1).run(show=False)
    assert len(failed.value.errors) == 1


def test_metric_that_nobody_tells(small: SmallSweeps) -> None:
    sweep = small.sweep({"lr": (0.01, 0.1)}, num_trials=1)
    object.__setattr__(sweep, "metric", "auc")
    with pytest.raises(SweepFailed, match="metric='auc' was not told.*the metrics there are: loss"):
        sweep.run(show=False)
