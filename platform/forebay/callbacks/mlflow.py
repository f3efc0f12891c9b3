"""Callback that records a run in MLflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from forebay.errors import InvalidOption
from forebay.events import (
    EpochEnded,
    Event,
    Failed,
    Finished,
    Reported,
    RolledBack,
    Started,
    Warned,
)
from forebay.runs.control import Control

SEND_EVERY_S = 5.0
MOST_METRICS = 1000
"""Largest number of metrics that MLflow takes in one call."""

RUN_TAG = "forebay.run"


class MLflow:
    """Callback that records metrics of steps and epochs, workers, and verdicts of monitors as a run in MLflow.

    `experiment` is created if it does not exist. `tracking_uri` is a server or a database. None uses MLflow's setting
    (`MLFLOW_TRACKING_URI`). The run in MLflow has the same name as this run. If this run is resumed, the run in
    MLflow continues too. Steps are sent together every few seconds. A server that does not answer raises. Wrap this in
    `optional_callback` if the run can do without it.

    Needs `mlflow` or `mlflow-skinny` (`pip install 'forebay[mlflow]'`). Raises `InvalidOption` without them.
    """

    def __init__(
        self,
        experiment: str = "forebay",
        tracking_uri: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mlflow = _mlflow()
        self._client = self._mlflow.MlflowClient(tracking_uri=tracking_uri)
        self._experiment, self._clock = experiment, clock
        self._run_id: str | None = None
        self._world_size: int | None = None
        self._unsent: list[Any] = []
        self._sent_at = clock()

    def __call__(self, event: Event, control: Control) -> None:
        match event:
            case Started():
                self._start(event)
            case Reported():
                sizes = {"workers": self._world_size or control.world_size, "global_batch": event.global_batch}
                self._keep("step", event.metrics, event.step)
                self._keep("run", sizes, event.step)
            case EpochEnded():
                rates = {"rows_per_s": event.rows_per_s, "wait_share": event.wait_share}
                self._keep("epoch", {**event.metrics, **rates}, event.step)
            case Warned():
                self._tag(f"forebay.warned.{event.step}", event.reason)
            case RolledBack():
                self._tag(f"forebay.rolled_back.{event.from_step}", event.reason)
            case Finished():
                self._end("KILLED" if event.stopped else "FINISHED")
            case Failed(will_retry=False):
                self._end("FAILED")
        if self._clock() - self._sent_at >= SEND_EVERY_S:
            self._send()

    def _start(self, event: Started) -> None:
        self._world_size = event.world_size
        if self._run_id is None:
            self._run_id = self._earlier_run(event.name) or self._new_run(event.name)
            self._client.set_tag(self._run_id, "forebay.epochs", event.epochs)

    def _earlier_run(self, name: str) -> str | None:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            return None
        wanted = f"tags.`{RUN_TAG}` = '{name}'"
        runs = self._client.search_runs([experiment.experiment_id], filter_string=wanted, max_results=1)
        if not runs:
            return None
        run_id: str = runs[0].info.run_id
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _new_run(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        place = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        run_id: str = self._client.create_run(place, run_name=name, tags={RUN_TAG: name}).info.run_id
        return run_id

    def _keep(self, group: str, values: Mapping[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        metric = self._mlflow.entities.Metric
        self._unsent += [metric(f"{group}/{name}", float(value), now_ms, step) for name, value in values.items()]

    def _tag(self, name: str, text: str) -> None:
        if self._run_id is not None:
            self._client.set_tag(self._run_id, name, text)

    def _send(self) -> None:
        if self._run_id is None:
            return
        self._sent_at = self._clock()
        while self._unsent:
            self._client.log_batch(self._run_id, metrics=self._unsent[:MOST_METRICS])
            del self._unsent[:MOST_METRICS]

    def _end(self, status: str) -> None:
        if self._run_id is not None:
            self._send()
            self._client.set_terminated(self._run_id, status=status)
            self._run_id = None


def _mlflow() -> Any:
    try:
        import mlflow  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "MLflow() needs the package mlflow or mlflow-skinny, and neither is installed. Run: "
            "pip install 'forebay[mlflow]'"
        ) from error
    return mlflow
