"""Callback that leads a run through changes.

Each is made after the previous one has taken effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from forebay.events import Event, Reported, Resized, Started
from forebay.training.runs.control import Control

PATIENCE_S = 90.0
SETTLED_REPORTS = 2
OVER = "the script is over"

When = Literal["training", "at once", "changing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """Action of a test, and its moment.

    - `training`: after `workers` workers train and two steps were reported
    - `at once`: at the next reported step, usually while the previous change is in progress
    - `changing`: between two worlds, on `Resized`

    `only_if` is a further condition. With `loses_workers`, the next cue waits for their replacements.
    """

    act: Callable[[Control], object]
    workers: int = 0
    when: When = "training"
    only_if: Callable[[], bool] = lambda: True
    loses_workers: bool = False


def resize(*workers: int) -> Callable[[Control], object]:
    """Request numbers of workers, one right after the other."""
    return lambda control: [control.resize(each) for each in workers]


class Script:
    """Callback that follows `cues` in order, then stops the run.

    Raises if one is not reached in time.
    """

    def __init__(self, cues: Sequence[Cue], patience_s: float = PATIENCE_S) -> None:
        self._cues = list(cues)
        self._patience_s = patience_s
        self._workers: int | None = None
        self._reports = 0
        self._cue_at = time.monotonic()
        self.done = 0

    @property
    def is_over(self) -> bool:
        """Whether every cue was followed."""
        return self.done == len(self._cues)

    def __call__(self, event: Event, control: Control) -> None:
        self._see(event)
        if self.is_over:
            return
        cue = self._cues[self.done]
        if self._has_come(cue, event) and cue.only_if():
            self._follow(cue, control)
        elif time.monotonic() - self._cue_at > self._patience_s:
            raise AssertionError(
                f"cue {self.done + 1} of {len(self._cues)} was not reached in {self._patience_s:.0f} s: it waits for "
                f"{cue.workers} workers {cue.when}; there are {self._workers}, and only_if is {cue.only_if()}"
            )

    def _see(self, event: Event) -> None:
        match event:
            case Started():
                self._workers, self._reports = event.world_size, 0
            case Reported():
                self._reports += 1

    def _has_come(self, cue: Cue, event: Event) -> bool:
        match cue.when:
            case "training":
                return self._workers == cue.workers and self._reports >= SETTLED_REPORTS
            case "at once":
                return isinstance(event, Reported)
            case "changing":
                return isinstance(event, Resized)

    def _follow(self, cue: Cue, control: Control) -> None:
        cue.act(control)
        self.done += 1
        self._cue_at = time.monotonic()
        # A report from before the action may arrive after it.
        self._reports = 0
        if cue.loses_workers:
            self._workers = None
        if self.is_over:
            control.stop(OVER)
