"""Callback that records a run in Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from forebay.data.transform.fingerprint.values import digest
from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package
from forebay.training.callbacks.tracker import EndState, Entry, Note, StepMetrics, TrackedRun, Tracker

Mode = Literal["online", "offline"]
MOST_ID_LETTERS = 64


class WandB(Tracker):
    """Records a run in Weights & Biases.

    It has hyperparameters, metrics, workers and verdicts of monitors. `mode="offline"` writes to `folder` (working
    directory) for `wandb sync`. None uses the setting of W&B (`WANDB_MODE`), which is online. The run has the name of
    this run as name and id, so a run that is resumed by name continues. The trials of a sweep form a group. Only what a
    run reports is sent: no code, host or console output.

    Needs `wandb` (`pip install 'forebay[wandb]'`), and for the online mode `wandb login`. Raises `InvalidOption`
    without them.
    """

    def __init__(
        self,
        project: str = "forebay",
        *,
        entity: str | None = None,
        group: str | None = None,
        mode: Mode | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(group)
        self._wandb = _wandb()
        self._project, self._entity, self._mode, self._folder = project, entity, mode, folder
        is_online = (mode or self._wandb.setup().settings.mode) == "online"
        if is_online and not self._wandb.login(prompt=False, verify=False):
            raise InvalidOption(
                "WandB() has no key of Weights & Biases. Run: wandb login. Or set WANDB_MODE=offline, and send the run "
                "later with wandb sync.",
                mode=mode,
            )
        self._run: Any = None

    def open(self, run: TrackedRun) -> None:
        """Begin or continue the run."""
        silent = self._wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = self._wandb.init(
            project=self._project,
            entity=self._entity,
            group=run.group,
            name=run.name,
            id=run.name if len(run.name) <= MOST_ID_LETTERS else digest(run.name.encode())[:MOST_ID_LETTERS],
            dir=None if self._folder is None else str(self._folder),
            mode=self._mode,
            resume="allow",
            reinit="create_new",
            settings=silent,
        )
        self._run.config.update(dict(run.facts), allow_val_change=True)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, entries: Sequence[Entry]) -> None:
        """Log metrics over the metric `step`.

        The own step of W&B never goes back, and a resumed run may.
        """
        for entry in entries:
            match entry:
                case StepMetrics(step=step, values=values):
                    self._run.log({**values, "step": step})
                case Note(name=name, text=text, step=step):
                    self._run.summary[f"forebay.{name}.{step}"] = text

    def close(self, state: EndState, reason: str) -> None:
        """Send the end."""
        self._run.summary["forebay.state"] = f"{state}: {reason}" if reason else state
        self._run.finish(exit_code=1 if state == "failed" else 0)


def _wandb() -> Any:
    with extra_package("wandb", "WandB()"):
        import wandb  # noqa: PLC0415 - an extra, and slow to import
    return wandb
