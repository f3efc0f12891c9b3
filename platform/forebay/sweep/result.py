"""Result of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay.report.picture import Picture
from forebay.runtime.extras import extra_package
from forebay.storage.filesystem import below
from forebay.sweep.layout import RUNS
from forebay.sweep.record.record import Mode, Record, load_record
from forebay.sweep.report.page import FILE_NAME, body
from forebay.sweep.report.parallel import configs_picture
from forebay.sweep.report.plots import metric_picture, workers_picture
from forebay.sweep.report.trial_columns import TrialRow, data_columns

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Result of a sweep so far.

    `path` is its folder, `html` its page. `stopped` is the reason of an early end. The best trial has the best value of
    `metric` at the end of any of its epochs. `best_run` is the folder of the run with that value. Before the first
    value, `best_config` is empty and the other `best_` attributes are None.
    """

    name: str
    path: str
    metric: str
    mode: Mode
    best_config: Mapping[str, Any]
    best_value: float | None
    best_trial: str | None
    best_run: str | None
    html: str
    stopped: str | None
    record: Record = field(repr=False)

    @classmethod
    def of(cls, record: Record, path: str) -> SweepResult:
        """Return the result of a record.

        `path` is the sweep's folder.
        """
        best = record.best
        return cls(
            name=record.name,
            path=path,
            metric=record.metric,
            mode=record.mode,
            best_config=dict(best.config_at_best) if best else {},
            best_value=record.best_value,
            best_trial=best.id if best else None,
            best_run=_run_path(path, best.run_at_best) if best else None,
            html=below(path, FILE_NAME),
            stopped=record.stopped,
            record=record,
        )

    @classmethod
    def load(cls, path: str) -> SweepResult | None:
        """Load the result of the sweep in `path`.

        Finished or not. None if no sweep was started there.

        Raises `InvalidOption` for a `path` that is a file, and for a record that this version cannot read.
        """
        record = load_record(path)
        return None if record is None else cls.of(record, path)

    @property
    def table(self) -> pd.DataFrame:
        """Return a table with one row per trial, best first.

        Swept parameters are in the columns `config/...`.

        Config and run belong to the trial's best value: population-based training changes them during the sweep.
        """
        with extra_package("pandas", "SweepResult.table"):
            import pandas as pd  # noqa: PLC0415 - an extra
        columns = data_columns(self.metric, self.record.parameters, lambda run: _run_path(self.path, run))
        rows = [TrialRow.of_record(self.record, trial) for trial in self.record.ranked]
        return pd.DataFrame([{each.title: each.value(row) for each in columns} for row in rows])

    def plot_metric(self) -> Picture:
        """Plot the metric over time, one line per trial."""
        return metric_picture(self.record)

    def plot_workers(self) -> Picture:
        """Plot workers over time, stacked by trial."""
        return workers_picture(self.record)

    def plot_configs(self) -> Picture:
        """Plot configs as parallel coordinates, colored by the metric."""
        return configs_picture(self.record)

    def _repr_html_(self) -> str:
        return body(self.record)


def _run_path(path: str, run: str) -> str:
    return below(below(path, RUNS), run)
