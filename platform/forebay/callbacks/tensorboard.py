"""Callback that writes a run's events for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
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


class TensorBoard:
    """Callback that writes metrics of steps and epochs, workers, and verdicts of monitors for TensorBoard.

    `folder` is the folder for event files, local or any path that the writer accepts. None stands for
    `tensorboard/<name of the run>` in the working directory. A run that is resumed by name continues the same curves.
    Repeated steps replace the earlier ones, also after a roll-back by a monitor or a loss of workers.

    Needs `tensorboardX` or `tensorboard` (`pip install 'forebay[tensorboard]'`). Raises `InvalidOption` without them.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._writer_class = _writer_class()
        self._folder = folder
        self._name = "run"
        self._world_size: int | None = None
        self._writer: Any = None

    def __call__(self, event: Event, control: Control) -> None:
        match event:
            case Started():
                self._name, self._world_size = event.name, event.world_size
            case Reported():
                self._write_step(event, control)
            case EpochEnded():
                rates = {"rows_per_s": event.rows_per_s, "wait_share": event.wait_share}
                self._write("epoch", {**event.metrics, **rates}, event.step)
            case Warned():
                self._open(event.step).add_text("monitors", event.reason, event.step)
            case RolledBack():
                text = f"{event.reason}; back to step {event.to_step}, {event.skipped_rows:,} rows skipped"
                # TensorBoard discards abandoned steps only when a writer opens. Opened here, it discards all of them
                # and keeps this text. The next reported step may be a later one.
                self._close()
                self._open(event.to_step + 1).add_text("monitors", text, event.from_step)
            case Finished() | Failed():
                # Also before a retry: the next reported step is a repeated one, and opens a writer.
                self._close()

    def _write_step(self, event: Reported, control: Control) -> None:
        self._write("step", event.metrics, event.step)
        sizes = {"workers": self._world_size or control.world_size, "global_batch": event.global_batch}
        self._write("run", sizes, event.step)

    def _write(self, group: str, values: Mapping[str, float], step: int) -> None:
        writer = self._open(step)
        for name, value in values.items():
            writer.add_scalar(f"{group}/{name}", value, step)

    def _open(self, step: int) -> Any:
        if self._writer is None:
            folder = self._folder if self._folder is not None else Path("tensorboard") / self._name
            # The writer's own names end in seconds: a run resumed within the same second would overwrite its file.
            self._writer = self._writer_class(str(folder), purge_step=step, filename_suffix=f".{time.time_ns()}")
        return self._writer

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _writer_class() -> Any:
    """Class `SummaryWriter` of tensorboardX, which is small and comes with Ray Train, or of torch."""
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise InvalidOption(
                "TensorBoard() needs the package tensorboardX or tensorboard, and neither is installed. Run: "
                "pip install 'forebay[tensorboard]'"
            ) from error
    return SummaryWriter
