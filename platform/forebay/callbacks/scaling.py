"""Callbacks that change the number of workers: by the epoch, or at random by the clock."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping

import numpy as np

from forebay.errors import InvalidOption, whole_number
from forebay.events import EpochEnded, Event, Preparing, Reported, Started
from forebay.runs.control import Control


class _ByEpoch(ABC):
    """Asks for another number of workers at the end of an epoch, where the next one has another.

    In between it asks for nothing, so that `forebay scale` holds until the schedule's next change. Before there are
    workers it asks for what belongs to the epoch that comes; if training begins in another one, for what belongs there.
    """

    def __init__(self) -> None:
        self._knows_epoch = False
        self._asked: int | None = None

    def __call__(self, event: Event, control: Control) -> None:
        match event:
            case Preparing() if self._asked is None and control.is_elastic:
                self._ask(control.first_epoch, control)
            case EpochEnded():
                self._knows_epoch = True
                begins = event.epoch + 1
                if begins < control.job_epochs and self._at(begins, control) != self._at(event.epoch, control):
                    self._ask(begins, control)
            case Reported() if not self._knows_epoch:
                self._knows_epoch = True
                if self._at(event.epoch, control) != self._asked:
                    self._ask(event.epoch, control)

    def _ask(self, epoch: int, control: Control) -> None:
        self._asked = self._at(epoch, control)
        if self._asked is not None:
            control.resize(self._asked)

    @abstractmethod
    def _at(self, epoch: int, control: Control) -> int | None:
        """How many workers train `epoch`; None leaves them as they are. Pure."""


class ScaleSchedule(_ByEpoch):
    """Train epoch 0, 1, ... with as many workers as `schedule` says, each number until the next one.

    `ScaleSchedule({0: 2, 10: 4, 20: 8})` asks at the commit that ends epoch 9, and at the one that ends epoch 19. Fewer
    workers train from that commit on; more, under Ray and Horovod, from the first commit after they are warm.
    Under Ray and Horovod training begins with the first number; with local processes, give the job the same as
    `Elastic(start=...)`.
    """

    def __init__(self, schedule: Mapping[int, int]) -> None:
        super().__init__()
        if not schedule:
            raise InvalidOption("ScaleSchedule({}) says nothing. Give {epoch: workers}, e.g. {0: 2, 10: 4}.")
        self._epochs = sorted(whole_number("epoch", epoch) for epoch in schedule)
        self._workers = [whole_number("workers", schedule[epoch], least=1) for epoch in self._epochs]

    def _at(self, epoch: int, control: Control) -> int | None:  # noqa: ARG002 - the same for every job
        place = bisect_right(self._epochs, epoch)
        return self._workers[place - 1] if place else None


class DoubleEvery(_ByEpoch):
    """Double the workers every `epochs` epochs, from `first` (None: the job's `min_workers`) up to `max_workers`.

    Under Ray and Horovod the new ones train from the first commit after they are warm. `DoubleEvery(30)` is the
    exponential schedule of "Elastic Deep Learning with Horovod on Ray" (Uber, 2021).
    """

    def __init__(self, epochs: int, first: int | None = None) -> None:
        super().__init__()
        self._every = whole_number("epochs", epochs, least=1)
        self._first = None if first is None else whole_number("first", first, least=1)

    def _at(self, epoch: int, control: Control) -> int:
        first = control.min_workers if self._first is None else self._first
        doubled = first << min(epoch // self._every, control.max_workers.bit_length())
        return min(doubled, control.max_workers)


class RandomResize:
    """Every `every_s` seconds, `step` workers more or fewer, as a coin that `seed` stands for falls.

    At a bound of the job it turns round. Which way it goes, and when, is no function of the position in the data, so
    two runs differ in where their workers change, and in nothing else. `clock` gives monotonic seconds.
    """

    def __init__(
        self, every_s: float, step: int = 1, seed: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not every_s > 0:
            raise InvalidOption(f"every_s={every_s!r}: a period is more than 0 seconds.")
        self._every_s, self._step = every_s, whole_number("step", step, least=1)
        self._coin = np.random.default_rng(whole_number("seed", seed))
        self._clock = clock
        self._due: float | None = None

    def __call__(self, event: Event, control: Control) -> None:
        if not isinstance(event, Started | Reported):
            return
        now = self._clock()
        if self._due is None:
            # From the first workers on: how long it took to start them says nothing.
            self._due = now + self._every_s
        elif now >= self._due:
            # Periods that passed unheard, while workers came and went, are left out.
            self._due += self._every_s * (1 + (now - self._due) // self._every_s)
            self._resize(control)

    def _resize(self, control: Control) -> None:
        change = self._step if self._coin.integers(2) else -self._step
        if not control.min_workers <= control.target + change <= control.max_workers:
            change = -change
        control.resize(control.target + change)
