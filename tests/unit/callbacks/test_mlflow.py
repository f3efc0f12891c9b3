"""MLflow keeps what a run reports. Without MLflow, the error says what to install."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from forebay.callbacks.mlflow import MLflow
from forebay.errors import InvalidOption
from forebay.events import EpochEnded, Failed, Finished, Reported, RolledBack, Started, Warned
from forebay.runs.control import Control

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed (pip install 'forebay[mlflow]')"
)
STARTED = Started(name="mine", world_size=2, epochs=1, num_batches=3)


def reported(step: int, loss: float) -> Reported:
    return Reported(step=step, epoch=0, position=step, metrics={"loss": loss}, rows=step, global_batch=64)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow prefers a server or a database
    return (tmp_path / "mlruns").as_uri()


@needs_mlflow
def test_a_run_and_the_one_that_goes_on_with_it(uri: str) -> None:
    from mlflow import MlflowClient

    control = Control(workers=2)
    first = MLflow("clicks", uri)
    for event in (STARTED, reported(1, 0.5), Warned(reason="a row is too long", step=1)):
        first(event, control)
    first(Failed(error="killed", failures=1, will_retry=False), control)
    client = MlflowClient(uri)
    (place,) = [each for each in client.search_experiments() if each.name == "clicks"]
    (run,) = client.search_runs([place.experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FAILED")

    again = MLflow("clicks", uri)
    for event in (STARTED, reported(2, 0.25), RolledBack(reason="NaN", from_step=3, to_step=2)):
        again(event, control)
    again(
        EpochEnded(epoch=0, step=3, metrics={"auc": 0.75}, rows=9, seconds=3, wait_s=0, eval_s=0, checkpoint_s=0),
        control,
    )
    again(Finished(name="mine", path="runs/mine"), control)
    (run,) = client.search_runs([place.experiment_id])
    assert run.info.status == "FINISHED"
    losses = client.get_metric_history(run.info.run_id, "step/loss")
    assert [(each.step, each.value) for each in losses] == [(1, 0.5), (2, 0.25)]
    metrics = {"step/loss": 0.25, "run/workers": 2, "run/global_batch": 64, "epoch/auc": 0.75}
    assert run.data.metrics == metrics | {"epoch/rows_per_s": 3, "epoch/wait_share": 0}
    assert run.data.tags["forebay.warned.1"] == "a row is too long"
    assert run.data.tags["forebay.rolled_back.3"] == "NaN"


@needs_mlflow
def test_steps_are_sent_every_few_seconds(uri: str) -> None:
    from mlflow import MlflowClient

    now = 0.0
    callback, control = MLflow("clicks", uri, clock=lambda: now), Control()
    callback(STARTED, control)
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("clicks").experiment_id])
    kept = []
    for step in range(1, 4):
        now = 3.0 * step
        callback(reported(step, 0.5), control)
        kept.append(len(client.get_metric_history(run.info.run_id, "step/loss")))
    assert kept == [0, 2, 2]
    callback(Finished(name="mine", path="runs/mine", stopped="enough"), control)
    assert len(client.get_metric_history(run.info.run_id, "step/loss")) == 3
    assert client.get_run(run.info.run_id).info.status == "KILLED"


def test_without_mlflow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InvalidOption, match=r"neither is installed.*pip install 'forebay\[mlflow\]'"):
        MLflow()
