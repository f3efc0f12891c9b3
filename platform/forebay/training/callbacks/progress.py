"""Progress of a run, on a terminal or in logs."""

from __future__ import annotations

import json
import shlex
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from forebay.events import (
    INTERRUPTED,
    EpochEnded,
    Evaluated,
    Event,
    Failed,
    Finished,
    Preempted,
    Preparing,
    Reported,
    Resized,
    RolledBack,
    Started,
    Warned,
)
from forebay.report.console import SafeConsole
from forebay.report.notebook import CellOutput, is_notebook
from forebay.runtime.formatting import metric_text, metrics_text, rate_text, share_text, time_text
from forebay.training.run_report.stages import stages_text
from forebay.training.runs.control import Control

FIRST_LINE_EVERY_S = 5.0
BAR_EVERY_S = 0.1
LAST_LINE_EVERY_S = 60.0
WINDOW_S = 10.0
LONGEST_SAMPLE = 80
"""Characters of a prompt or a text of the model on the console."""


class Progress:
    """Shows the progress of a run.

    Epoch, step, loss, rows/s, share of time waiting for data, and the time left. On a terminal and in a notebook it
    updates one bar. Elsewhere (a CI log, a file) it writes a line every five seconds, and less often as the run gets
    longer. The summary of each epoch stays on the screen. `console` is the output, standard error by default. `clock`
    returns monotonic seconds. `command` began the run: it is shown again if the run is interrupted.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        command: Sequence[str] = (),
    ) -> None:
        self._command = tuple(command)
        self._console = console or SafeConsole(stderr=True, highlight=False)
        self._clock = clock
        self._began = clock()
        self._pace = Throughput()
        self._started: Started | None = None
        self._first_batch = 0
        self._bar: _Bar | _CellBar | None = None
        self._line_due: float | None = None
        self._bar_due = 0.0

    def __call__(self, event: Event, control: Control) -> None:  # noqa: ARG002 - a `Callback`
        match event:
            case Preparing():
                self._say(f"{event.what} ...")
            case Started():
                self._start(event)
            case Reported():
                self._first_batch = self._first_batch or event.global_batch
                self._pace.read(event, self._clock())
                self._show(event)
            case Evaluated() | EpochEnded():
                self._say_result(event)
            case Resized() | Preempted() | RolledBack() | Warned():
                self._say(_steering_text(event))
            case Failed(will_retry=True):
                self._end_bar()
                again = f"Starting again from the newest checkpoint (failure {event.failures})."
                self._say(f"{event.error.rstrip('. ')}. {again}")
            case Failed():
                self._end_bar()
                # The caller of the run gets the error itself, and prints it.
                end = "This attempt has ended. The run goes on elsewhere." if event.is_fenced else "The run has ended."
                self._say(f"Interrupted. {end}{self._again()}" if event.error == INTERRUPTED else end)
            case Finished():
                self._end_bar()
                reason = f"stopped: {event.stopped}" if event.stopped else "finished"
                self._say(f"{event.name} {reason} after {time_text(self._clock() - self._began)}.")

    def _again(self) -> str:
        """How to continue an interrupted run."""
        if self._started is None:
            return ""
        name = f"name={self._started.name}"
        if not self._command:
            return f" To continue at its newest checkpoint, run the same job with {name}."
        words = [*self._command, *([] if name in self._command else [name])]
        return f" To continue at its newest checkpoint:\n{shlex.join(words)}"

    def _start(self, event: Started) -> None:
        self._end_bar()
        self._started, self._pace = event, Throughput()
        self._say(f"{event.name}: {_workers(event.world_size)}, {event.epochs} epochs of {event.num_batches} steps.")
        self._line_due = None
        if self._console.is_terminal:
            self._bar = _Bar(self._console, steps=event.epochs * event.num_batches)
        elif self._console.is_jupyter and is_notebook():
            self._bar = _CellBar()

    def _show(self, event: Reported) -> None:
        if self._bar is not None:
            if self._clock() >= self._bar_due:
                self._bar.show(event.step, event.step + self._steps_left(event), self._step_text(event))
                self._bar_due = self._clock() + BAR_EVERY_S
        elif self._line_due is None:
            self._line_due = self._clock() + FIRST_LINE_EVERY_S
        elif self._clock() >= self._line_due:
            self._say(self._step_text(event))
            elapsed = self._clock() - self._began
            self._line_due = self._clock() + min(max(FIRST_LINE_EVERY_S, elapsed / 20), LAST_LINE_EVERY_S)

    def _step_text(self, event: Reported) -> str:
        epochs, left = self._started.epochs if self._started else 1, self._steps_left(event)
        loss = event.metrics.get("loss")
        return ", ".join(
            [
                f"epoch {event.epoch + 1}/{epochs}",
                f"step {event.step}/{event.step + left}",
                *([] if loss is None else [f"loss {metric_text(loss)}{_sources_text(event)}"]),
                rate_text(self._pace.rows_per_s),
                f"{share_text(self._pace.wait_share)} waiting",
                f"{time_text(self._pace.left_s(left))} left",
            ]
        )

    def _steps_left(self, event: Reported) -> int:
        """Return the steps left at the current global batch.

        `Started` counts those at the first one.
        """
        if self._started is None:
            return 0
        left = self._steps_of_epochs_left(event, self._started)
        return left if self._started.max_steps is None else max(min(left, self._started.max_steps - event.step), 0)

    def _steps_of_epochs_left(self, event: Reported, started: Started) -> int:
        steps = started.epochs * started.num_batches
        if event.global_batch == self._first_batch:
            return max(steps - event.step, 0)
        passed = event.epoch * started.num_batches + event.position / self._first_batch
        return max(round((steps - passed) * self._first_batch / event.global_batch), 0)

    def _say_result(self, event: Evaluated | EpochEnded) -> None:
        if isinstance(event, EpochEnded):
            self._say(self._epoch_text(event))
            if stages := stages_text(event):
                self._say(f"  by stage: {stages}")
            return
        best = " (the best so far)" if event.is_best else ""
        if not event.ends_epoch:  # the line of the epoch has them
            self._say(f"step {event.step}: {metrics_text(event.metrics)}{best}")
        for each in event.samples:
            wanted = f" (wanted {_line(each.wanted)})" if each.wanted and each.wanted != each.text else ""
            self._say(f"  {_line(each.prompt, is_end=True)} -> {_line(each.text)}{wanted}")

    def _epoch_text(self, event: EpochEnded) -> str:
        epochs = self._started.epochs if self._started else event.epoch + 1
        facts = [metrics_text(event.metrics), rate_text(event.rows_per_s), f"{share_text(event.wait_share)} waiting"]
        return f"epoch {event.epoch + 1}/{epochs} took {time_text(event.seconds)}: {', '.join(filter(None, facts))}"

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.end()
            self._bar = None


def _steering_text(event: Resized | Preempted | RolledBack | Warned) -> str:
    match event:
        case Resized():
            return f"after step {event.step} the run continues with {_workers(event.new)} instead of {event.old}."
        case Preempted():
            there = f"{_workers(event.workers)} on {'them' if event.others else 'it'}"
            if event.others:
                return f"node {event.node} and {len(event.others)} others are being taken away, with {there}."
            return f"node {event.node} is being taken away, with {there}."
        case RolledBack():
            again = f"without {event.skipped_rows} rows" if event.skipped_rows else "once more"
            return f"{event.reason}. Back from step {event.from_step} to step {event.to_step}, {again}."
        case Warned():
            return f"{event.reason} (step {event.step})."


def _line(text: str, *, is_end: bool = False) -> str:
    """One line of a text, in quotes, cut."""
    words = " ".join(text.split())
    if len(words) > LONGEST_SAMPLE:
        words = f"...{words[-LONGEST_SAMPLE:]}" if is_end else f"{words[:LONGEST_SAMPLE]}..."
    return json.dumps(words, ensure_ascii=False)


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


class _Bar:
    """Live line at the bottom of the terminal."""

    def __init__(self, console: Console, steps: int) -> None:
        columns = (
            BarColumn(bar_width=min(max(console.width - 86, 4), 40)),
            TextColumn("{task.fields[text]}", markup=False),
        )
        self._bars = Bars(*columns, console=console, transient=True)
        self._task: TaskID = self._bars.add_task("", total=steps, text="the first step is on its way")
        self._bars.start()

    def show(self, step: int, steps: int, text: str) -> None:
        self._bars.update(self._task, completed=step, total=steps, text=text)

    def end(self) -> None:
        self._bars.stop()


class _CellBar:
    """Bar in a notebook cell.

    It needs no widgets, which a saved notebook would not show.
    """

    def __init__(self) -> None:
        self._cell = CellOutput()
        self._cell.show("the first step is on its way")

    def show(self, step: int, steps: int, text: str) -> None:
        bar = f"<progress value={step} max={steps} style='width:16em'></progress>"
        self._cell.show(f"<div style='font:13px monospace;margin-left:.5em'>{bar} {escape(text)}</div>")

    def end(self) -> None:
        self._cell.show("")


def _sources_text(event: Reported) -> str:
    """Loss of each dataset of a mixture: ` (code 1.21, web 0.4312)`."""
    losses = [f"{name[5:]} {metric_text(value)}" for name, value in event.metrics.items() if name.startswith("loss/")]
    return f" ({', '.join(losses)})" if losses else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    at: float
    step: int
    rows: int
    wait_s: float


class Throughput:
    """Rates over about the last ten seconds.

    Times are of one monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque()

    def read(self, event: Reported, at: float) -> None:
        """Add a report that arrived at the time `at`."""
        readings = self._readings
        if readings and event.step <= readings[-1].step:
            readings.clear()  # Readings of an earlier attempt, which ended with lost workers.
        readings.append(_Reading(at=at, step=event.step, rows=event.rows, wait_s=event.wait_s))
        while len(readings) > 2 and at - readings[0].at > WINDOW_S:
            readings.popleft()

    @property
    def _seconds(self) -> float:
        return self._readings[-1].at - self._readings[0].at if self._readings else 0.0

    @property
    def rows_per_s(self) -> float | None:
        """Global rows per second.

        None before there are two reports.
        """
        if self._seconds <= 0:
            return None
        return (self._readings[-1].rows - self._readings[0].rows) / self._seconds

    @property
    def wait_share(self) -> float | None:
        """Share of the time that rank 0 waited for data, 0 to 1."""
        if self._seconds <= 0:
            return None
        share = (self._readings[-1].wait_s - self._readings[0].wait_s) / self._seconds
        return min(max(share, 0.0), 1.0)

    def left_s(self, steps: int) -> float | None:
        """Seconds that `steps` more steps take at this pace."""
        if self._seconds <= 0 or self._readings[-1].step == self._readings[0].step:
            return None
        return steps * self._seconds / (self._readings[-1].step - self._readings[0].step)
