"""Callbacks that change the number of workers: by the epoch, or at random by the clock."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping

import numpy as np

from forebay.errors import InvalidOption, whole_number
from forebay.events import EpochEnded, Event, Preparing, Reported, Started
from forebay.training.runs.control import Control


class _ByEpoch(ABC):
    """Sets the target at the end of an epoch if the next epoch has another number of workers.

    In between it makes no request, so a target set by `forebay scale` is valid until the next change. Before there
    are workers it requests the number for the next epoch. It corrects this if training begins in another
    epoch.
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
        """Number of workers for `epoch`. None leaves the target unchanged. Pure."""


class ScaleSchedule(_ByEpoch):
    """Trains each epoch with the number of workers that `schedule` gives: epoch, from 0, to workers.

    A number is valid until the next one. `ScaleSchedule({0: 2, 10: 4, 20: 8})` sets the target at the checkpoints that
    end epochs 9 and 19. A smaller world trains from that checkpoint on. Under Ray and Horovod, a larger one trains from
    the first checkpoint after its workers are warm. Under Ray and Horovod training begins with the first number. With
    local processes, give the job the same number as `Elastic(start=...)`. Raises `InvalidOption` for an empty schedule,
    and for numbers that are not whole.
    """

    def __init__(self, schedule: Mapping[int, int]) -> None:
        super().__init__()
        if not schedule:
            raise InvalidOption("ScaleSchedule({}) is empty. Give {epoch: workers}, e.g. {0: 2, 10: 4}.")
        self._epochs = sorted(whole_number("epoch", epoch) for epoch in schedule)
        self._workers = [whole_number("workers", schedule[epoch], least=1) for epoch in self._epochs]

    def _at(self, epoch: int, control: Control) -> int | None:  # noqa: ARG002 - the same for every job
        place = bisect_right(self._epochs, epoch)
        return self._workers[place - 1] if place else None


class DoubleEvery(_ByEpoch):
    """Doubles the workers every `epochs` epochs, from `first` up to the job's `max_workers`.

    `first` None is the job's `min_workers`. Under Ray and Horovod, new workers train from the first checkpoint after
    they are warm. `DoubleEvery(30)` is the exponential schedule of "Elastic Deep Learning with Horovod on Ray" (Uber,
    2021). Raises `InvalidOption` for a number below 1.
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
    """Every `every_s` seconds, adds or removes `step` workers at random (seeded).

    At a bound of the job the direction is reversed. The moment of a change depends on the clock, not on the position in
    the data. So two runs differ only in the moments of their changes. `clock` returns monotonic seconds.
    Raises `InvalidOption` for a period that is not positive.
    """

    def __init__(
        self, every_s: float, step: int = 1, seed: int = 0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not every_s > 0:
            raise InvalidOption(f"every_s={every_s!r}: a period must be more than 0 seconds.")
        self._every_s, self._step = every_s, whole_number("step", step, least=1)
        self._coin = np.random.default_rng(whole_number("seed", seed))
        self._clock = clock
        self._due: float | None = None

    def __call__(self, event: Event, control: Control) -> None:
        if not isinstance(event, Started | Reported):
            return
        now = self._clock()
        if self._due is None:
            # Count from the first workers on: the time of their start does not matter.
            self._due = now + self._every_s
        elif now >= self._due:
            # Skip periods that passed while workers changed.
            self._due += self._every_s * (1 + (now - self._due) // self._every_s)
            self._resize(control)

    def _resize(self, control: Control) -> None:
        change = self._step if self._coin.integers(2) else -self._step
        if not control.min_workers <= control.target + change <= control.max_workers:
            change = -change
        control.resize(control.target + change)
