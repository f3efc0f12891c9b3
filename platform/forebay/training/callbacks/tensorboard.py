"""Callback that writes a run's events for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forebay.runtime.extras import extra_package
from forebay.training.callbacks.tracker import EndState, Entry, Note, Rewind, StepMetrics, TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes a run for TensorBoard.

    It has hyperparameters, metrics, workers and verdicts of monitors. `folder` is the folder for event files, local or
    any path that the writer accepts. None stands for `tensorboard/<name of the run>` in the working directory. Trials
    of a sweep have folders of their own in it. A run that is resumed by name continues the same curves. Repeated steps
    replace the earlier ones, also after a roll-back by a monitor or a loss of workers.

    Needs `tensorboardX` or `tensorboard` (`pip install 'forebay[tensorboard]'`). Raises `MissingPackage` without them.
    """

    def __init__(self, folder: str | Path | None = None, *, group: str | None = None) -> None:
        super().__init__(group)
        self._writer_class = _writer_class()
        self._folder = folder
        self._run_folder = ""
        self._facts: TrackedRun | None = None
        self._writer: Any = None
        self._last_step = 0

    def open(self, run: TrackedRun) -> None:
        """Remember the folder and the facts.

        A writer needs the first step, after which it discards earlier ones.
        """
        folder = Path("tensorboard") if self._folder is None else self._folder
        is_own = self._folder is not None and run.group is None
        self._run_folder = str(folder) if is_own else f"{folder}/{run.name}"
        self._facts = run

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries."""
        for entry in entries:
            match entry:
                case StepMetrics(step=step, values=values):
                    writer = self._opened(step)
                    for name, value in values.items():
                        writer.add_scalar(name, value, step)
                case Note(name=name, text=text, step=step):
                    self._opened(step).add_text(f"monitors/{name}", text, step)
                case Rewind(step=step):
                    # TensorBoard discards abandoned steps only when a writer opens. Opened here, it discards all of
                    # them and keeps the text that follows. The next reported step may be a later one.
                    self._close_writer()
                    if step is not None:
                        self._opened(step + 1)
        if self._writer is not None:
            self._writer.flush()

    def close(self, state: EndState, reason: str) -> None:
        """Write the end."""
        text = f"{state}: {reason}" if reason else state
        # A run that has reported no step of its own discards none: one that was resumed has those from before.
        self._opened(self._last_step + 1, discards=self._last_step > 0).add_text("run/state", text, self._last_step)
        self._close_writer()

    def _opened(self, step: int, *, discards: bool = True) -> Any:
        if self._writer is None:
            # The writer's own names end in seconds: a run resumed within the same second would overwrite its file.
            self._writer = self._writer_class(
                self._run_folder, purge_step=step if discards else None, filename_suffix=f".{time.time_ns()}"
            )
            if self._facts is not None:
                rows = "".join(f"| {name} | {value} |\n" for name, value in self._facts.facts.items())
                self._writer.add_text("run/parameters", f"| parameter | value |\n|---|---|\n{rows}", step)
                self._facts = None
        self._last_step = step
        return self._writer

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _writer_class() -> Any:
    """Return the class `SummaryWriter`.

    Of tensorboardX, which is small and comes with Ray Train, or of torch.
    """
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        with extra_package("tensorboard", "TensorBoard() without tensorboardX"):
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
    return SummaryWriter
