"""A loss that is no number, or far beyond the first ones, ends a run that named no monitor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import forebay as fb
from forebay.errors import Diverged
from forebay.events import Event, Failed, Warned
from forebay.training.monitors.loss_guard import LIMIT, LiveLossGuard, LossGuard, LossRange, guarded, is_training_loss
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.run_report.recorded_run import load_run
from forebay.training.state.metric import WeightedMean
from forebay.training.state.setup import TrainSetup


def range_of(losses: Sequence[float]) -> LossRange:
    found = LossRange()
    for loss in losses:
        found = found.after(loss)
    return found


@pytest.mark.parametrize(
    ("losses", "limit"),
    [
        ([], math.inf),
        ([0.69], LIMIT),
        ([0.69, 5.9e31], LIMIT),
        ([3e18, 2e18, 4e18], 2e18 * LIMIT),
        ([-50.0, -40.0], 40.0 * LIMIT),
        ([5.0] * 8 + [0.1] * 100, 5.0 * LIMIT),
    ],
)
def test_the_limit_follows_the_smallest_of_the_first_losses(losses: list[float], limit: float) -> None:
    assert range_of(losses).limit == limit


@pytest.mark.parametrize(
    ("losses", "has_diverged"),
    [
        ([0.7, *[5.9e31] * 3], False),
        ([0.7, *[5.9e31] * 4], True),
        ([0.7, *[-5.9e31] * 4], True),
        ([0.7] * 50 + [1e9, 0.7, 1e9, 0.7, 1e9, 0.7, 1e9, 0.7], False),
        ([0.7] * 50 + [1e9] * 4, False),
        ([0.7] * 50 + [1e9] * 5, True),
        ([1e9] * 100, False),
        ([10.0 ** (power / 2) for power in range(-12, 12)], False),
        ([0.7] * 8 + [0.9**-step for step in range(400)], True),
    ],
)
def test_most_of_the_recent_losses_decide(losses: list[float], has_diverged: bool) -> None:
    assert range_of(losses).has_diverged == has_diverged


@pytest.mark.parametrize("name", ["loss", "Loss", "ctr_loss", "loss/a", "train_loss", "total_loss_sum"])
def test_losses_of_training_are_known_by_their_names(name: str) -> None:
    assert is_training_loss(name)
    assert not any(is_training_loss(other) for other in (f"val_{name}", f"eval/{name}", f"test_{name}", "auc", "norm"))


def live(finite: bool = True, model: nn.Module | None = None) -> LiveLossGuard:
    model = model or nn.Linear(1, 1)
    optimizer = torch.optim.SGD([torch.zeros(1)])
    return LossGuard(finite=finite).attach(
        TrainSetup(model=model, optimizer=optimizer, device=torch.device("cpu"), world_size=1)
    )


def see(guard: LiveLossGuard, losses: Sequence[Any], first: int = 1, **others: float) -> Verdict:
    for step, loss in enumerate(losses, first):
        guard.step(step, {"loss": loss, **others})
    return guard.verdict()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "as_metric",
    [float, torch.tensor, lambda value: WeightedMean(total=value, weight=2.0)],
    ids=["float", "tensor", "mean"],
)
def test_the_first_loss_that_is_no_number_ends_the_run(bad: float, as_metric: Callable[[float], Any]) -> None:
    verdict = see(live(), [as_metric(value) for value in (1.0, 2.0, bad, bad)], auc=math.nan, val_loss=math.nan)
    assert (verdict.action, verdict.step, verdict.rows) == (Action.FAIL, 3, "own")
    assert verdict.reason == f"NanGuard: loss of step 3 not finite ({bad})"
    assert see(live(finite=False), [as_metric(1.0), as_metric(bad)]) == Verdict()


def test_a_parameter_that_is_no_number_is_never_saved() -> None:
    model = nn.Linear(2, 1)
    assert see(live(model=model), [1.0]) == Verdict()
    with torch.no_grad():
        model.weight[0, 1] = math.nan
    assert see(live(model=model), [1.0]).reason == "NanGuard: parameter 'weight' not finite"
    assert see(live(finite=False, model=model), [1.0]) == Verdict()


def test_a_single_loss_beyond_the_limit_is_a_warning_once_and_a_state_keeps_the_first_losses() -> None:
    guard = live()
    assert see(guard, [0.7] * 10) == Verdict()
    verdict = see(guard, [0.7, 1e9, 0.7], first=11)
    assert (verdict.action, verdict.step) == (Action.WARN, 12)
    assert "loss of step 12 is 1e+09, more than 1e+06 times the first losses" in verdict.reason
    assert see(guard, [1e9], first=14).action is Action.GO_ON
    assert see(guard, [0.7], first=15) == Verdict()
    other = live()
    other.load_state_dict(guard.state_dict())
    assert see(other, [1e9] * 8, first=16).action is Action.FAIL
    assert see(live(), [1e9] * 8).action is Action.GO_ON


def test_a_guard_of_the_job_takes_its_place() -> None:
    own = NanGuard(action="warn")
    assert guarded([], True) == (LossGuard(),)
    assert guarded([own], True) == (own, LossGuard(finite=False))
    assert guarded([own], False) == (own,)
    assert guarded([], False) == ()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """256 rows in 8 row groups, x of row 100 is `bad`."""
    numbers = np.arange(256)
    for name, bad in (("good", 0.5), ("nan", math.nan), ("far", 1e30)):
        (tmp_path / name).mkdir()
        x = np.where(numbers == 100, bad, numbers / 256)
        table = pa.table({"x": x.astype(np.float32), "y": (numbers % 2).astype(np.float32)})
        pq.write_table(table, tmp_path / name / "a.parquet", row_group_size=32)
    return str(tmp_path)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layer(batch["x"]).squeeze(1)


def by_fit(worker: fb.Worker, lr: float = 0.1) -> None:
    fb.fit(worker, Model(), partial(torch.optim.SGD, lr=lr), nn.MSELoss())


def own_loop(worker: fb.Worker, lr: float = 0.1) -> None:
    model, optimizer = worker.setup(Model(), partial(torch.optim.SGD, lr=lr))
    for batch in worker.loader():
        loss = nn.functional.mse_loss(model(batch), batch["label"]) * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(train_loss=loss)


def without_a_loss(worker: fb.Worker, lr: float = 0.1) -> None:
    model, optimizer = worker.setup(Model(), partial(torch.optim.SGD, lr=lr))
    for batch in worker.loader():
        nn.functional.mse_loss(model(batch), batch["label"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.commit()


def without_setup(worker: fb.Worker, lr: float = 0.1) -> None:
    for batch in worker.loader():
        worker.commit(loss=(batch["x"].mean() * lr).item())


def job_of(rows: str, train: Callable[..., None], folder: str = "nan", **options: Any) -> fb.Job:
    transform = fb.Transform(x=fb.Dense(["x"]), label=fb.Label("y"))
    data = fb.Data(plan=fb.build_plan(fb.scan(f"{rows}/{folder}")), transform=transform, global_batch=32)
    options = {"name": "t", "storage": f"{rows}/runs", "cache": None, "checkpoint_every": 2} | options
    return fb.Job(train=train, data=data, **options)


@pytest.mark.parametrize(
    "train",
    [by_fit, without_setup, *(pytest.param(each, marks=pytest.mark.variation) for each in (own_loop, without_a_loss))],
)
def test_a_run_of_any_loop_ends_with_an_error_and_is_not_finished(rows: str, train: Callable[..., None]) -> None:
    heard: list[Event] = []
    job = job_of(rows, train)
    with pytest.raises(Diverged, match="NanGuard: .* not finite") as ended:
        fb.run(job, driver="local", callbacks=[lambda event, _: heard.append(event)])
    assert ended.value.exit_status and isinstance(heard[-1], Failed)
    assert load_run(f"{rows}/runs/t").state == "failed"
    if train is not without_a_loss:
        assert "a.parquet:" in str(ended.value) and "forebay rows" in str(ended.value)
    with pytest.raises(Diverged):  # the same name continues before the bad steps, and meets them again
        fb.run(job, driver="local")


@pytest.mark.parametrize("options", [{"nan_guard": False}, {"monitors": (fb.monitors.NanGuard(action="warn"),)}])
def test_one_line_trains_on(rows: str, options: dict[str, Any]) -> None:
    assert fb.run(job_of(rows, by_fit, **options), driver="local").is_finished


def test_a_finite_loss_that_has_diverged_ends_the_run_too(rows: str) -> None:
    with pytest.raises(Diverged, match=r"loss of step \d+ is .*e\+\d+, more than 1e\+06 times the first losses"):
        fb.run(job_of(rows, partial(by_fit, lr=30.0), folder="good", checkpoint_every=100), driver="local")


def test_a_healthy_run_pays_no_checkpoint_before_its_first_step_and_hears_nothing(rows: str) -> None:
    heard: list[Event] = []
    result = fb.run(
        job_of(rows, by_fit, folder="good", epochs=2), driver="local", callbacks=[lambda event, _: heard.append(event)]
    )
    assert result.is_finished and not [event for event in heard if isinstance(event, Warned | Failed)]
