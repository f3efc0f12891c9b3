"""Callback that records a run in Comet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package
from forebay.training.callbacks.tracker import EndState, Entry, Note, StepMetrics, TrackedRun, Tracker


class Comet(Tracker):
    """Records a run as an experiment of Comet.

    It has hyperparameters, metrics, workers and verdicts of monitors. `online=False` writes archives to `folder`
    (default `.cometml-runs`) for `comet upload`. The key of the experiment is made of workspace, project and the name
    of this run, so a run that is resumed by name continues. The trials of a sweep have its name as a tag. Only what a
    run reports is sent: no code, host or console output.

    Needs `comet_ml` (`pip install 'forebay[comet]'`), and online a key (`comet login` or `COMET_API_KEY`). Raises
    `InvalidOption` without them.
    """

    def __init__(
        self,
        project: str = "forebay",
        *,
        workspace: str | None = None,
        group: str | None = None,
        online: bool = True,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(group)
        self._comet = _comet()
        self._project, self._workspace = project, workspace
        self._is_online, self._folder = online, folder
        if online and not self._comet.config.get_config("comet.api_key"):
            raise InvalidOption(
                "Comet() has no key. Run: comet login, or set COMET_API_KEY. Or give online=False, and send the run "
                "later with comet upload."
            )
        self._experiment: Any = None

    def open(self, run: TrackedRun) -> None:
        """Begin or continue the experiment."""
        self._experiment = self._comet.start(
            online=self._is_online,
            mode="get_or_create",
            experiment_key=self._comet.get_experiment_key(f"{self._workspace}/{self._project}/{run.name}"),
            project_name=self._project,
            workspace=self._workspace,
            experiment_config=self._comet.ExperimentConfig(
                name=run.name,
                tags=[] if run.group is None else [run.group],
                offline_directory=None if self._folder is None else str(self._folder),
                **dict.fromkeys(_AUTOMATIC, False),
                display_summary_level=0,
            ),
        )
        self._experiment.log_parameters(dict(run.facts))

    def write(self, entries: Sequence[Entry]) -> None:
        """Log metrics, and notes as facts of the experiment."""
        for entry in entries:
            match entry:
                case StepMetrics(step=step, values=values):
                    self._experiment.log_metrics(dict(values), step=step)
                case Note(name=name, text=text, step=step):
                    self._experiment.log_other(f"forebay.{name}.{step}", text)

    def close(self, state: EndState, reason: str) -> None:
        """Send the end."""
        self._experiment.log_other("forebay.state", f"{state}: {reason}" if reason else state)
        self._experiment.end()


_AUTOMATIC = (
    *("log_code", "log_graph", "log_env_details", "log_git_metadata", "log_git_patch", "parse_args"),
    *("auto_param_logging", "auto_metric_logging", "auto_output_logging", "auto_log_co2"),
)
"""Options of Comet that send what was not asked for."""


def _comet() -> Any:
    with extra_package("comet_ml", "Comet()"):
        import comet_ml  # noqa: PLC0415 - an extra, and slow to import
    return comet_ml
