"""Callback that records a run in MLflow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from forebay.runtime.extras import extra_package
from forebay.storage.credentials import without_credentials
from forebay.training.callbacks.tracker import EndState, Entry, Note, StepMetrics, TrackedRun, Tracker

MOST_METRICS = 1000
"""Largest number of metrics that MLflow takes in one call."""
MOST_PARAMS = 100
MOST_LETTERS = 500

RUN_TAG, GROUP_TAG, REASON_TAG = "forebay.run", "forebay.group", "forebay.reason"
_OTHER = re.compile(r"[^/\w.\- ]")
_STATES: dict[EndState, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Records a run in MLflow.

    It has hyperparameters, metrics, workers and verdicts of monitors. `experiment` is created if it does not exist.
    `tracking_uri` is a server or a database. None uses MLflow's setting (`MLFLOW_TRACKING_URI`). The run in MLflow has
    the same name as this run. If this run is resumed, the run in MLflow continues too. `group` is a tag. The trials of
    a sweep have the name of the sweep there.

    Needs `mlflow` or `mlflow-skinny` (`pip install 'forebay[mlflow]'`). Raises `MissingPackage` without them.
    """

    def __init__(
        self, experiment: str = "forebay", tracking_uri: str | None = None, *, group: str | None = None
    ) -> None:
        super().__init__(group)
        self._mlflow = _mlflow()
        self._client = self._mlflow.MlflowClient(tracking_uri=tracking_uri)
        if tracking_uri is not None:
            without_credentials(tracking_uri)  # so that no message shows them
        self._experiment = experiment
        self._run_id = ""

    def open(self, run: TrackedRun) -> None:
        """Create or continue the run.

        MLflow never changes a parameter: a resumed run keeps its first values.
        """
        self._run_id = self._earlier_run(run.name) or self._new_run(run)
        known = self._client.get_run(self._run_id).data.params
        params = [
            self._mlflow.entities.Param(name, str(value)[:MOST_LETTERS])
            for name, value in run.facts.items()
            if name not in known
        ]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MOST_PARAMS])

    def write(self, entries: Sequence[Entry]) -> None:
        """Send metrics in calls of 1,000, and notes as tags."""
        metrics: list[Any] = []
        for entry in entries:
            match entry:
                case StepMetrics(step=step, values=values, at=at):
                    metric = self._mlflow.entities.Metric
                    metrics += [metric(allowed(name), value, int(at * 1000), step) for name, value in values.items()]
                case Note(name=name, text=text, step=step):
                    self._client.set_tag(self._run_id, f"forebay.{name}.{step}", text)
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + MOST_METRICS])

    def close(self, state: EndState, reason: str) -> None:
        """Set the status."""
        if reason:
            self._client.set_tag(self._run_id, REASON_TAG, reason)
        self._client.set_terminated(self._run_id, status=_STATES[state])

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

    def _new_run(self, run: TrackedRun) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        tags = {RUN_TAG: run.name} | ({} if run.group is None else {GROUP_TAG: run.group})
        run_id: str = self._client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        return run_id


def allowed(name: str) -> str:
    """Return the name of a metric in MLflow, which takes no other characters.

    >>> allowed("step/recall@10"), allowed("epoch/loss/web")
    ('step/recall_10', 'epoch/loss/web')
    """
    return _OTHER.sub("_", name)


def _mlflow() -> Any:
    with extra_package("mlflow-skinny", "MLflow()"):
        import mlflow  # noqa: PLC0415 - an extra, and slow to import
    return mlflow
