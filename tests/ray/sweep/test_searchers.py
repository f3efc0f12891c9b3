"""Searchers of Ray Tune with the schedulers they learn from, in whole sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray import tune
from tests.ray.sweep.small_sweeps import SmallSweeps

from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.run_sweep import run_sweep

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def small(tmp_path: Path) -> SmallSweeps:
    return SmallSweeps(tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from ConfigSpace, which HpBandSter calls by its old names
def test_bohb_draws_and_its_rounds_leave_the_best(small: SmallSweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")  # set by its import
    pytest.importorskip("hpbandster")
    space = {"lr": tune.loguniform(1e-3, 1e-1), "checkpoint_every": [2, 4], "key": ["a", "b"]}
    result = run_sweep(small.sweep(space, num_trials=3, searcher="bohb", fixed={"epochs": 3}), show=False)
    table = result.table.set_index("epochs")
    assert sorted(table.index) == [1, 1, 3]
    assert table["state"][3] == "finished" and set(table["state"][1]) == {"stopped"}
    after_one = [(trial.points[0].value or 0.0, trial.epochs) for trial in result.record.trials.values()]
    assert min(after_one)[1] == 3
    assert {type(value) for value in result.best_config.values()} == {float, int, str}


@pytest.mark.variation
def test_optuna_draws_for_a_deadline(small: SmallSweeps) -> None:
    """Two workers fit, and the sweep asks Optuna for a third trial while two train."""
    pytest.importorskip("optuna")
    result = run_sweep(
        small.sweep(
            {"lr": tune.loguniform(1e-4, 1e-1)},
            driver="ray",
            num_trials=3,
            searcher="optuna",
            scheduler=DeadlineScheduler(240.0),
            fixed={"cpus": "4", "epochs": "1"},
        ),
        show=False,
    )
    assert len(set(result.table["config/lr"])) == 3
    assert list(result.table["state"]) == ["finished"] * 3
    assert result.record.slots == 2 and result.stopped is None
