"""Callback that sets the number of workers by epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from forebay.errors import InvalidOption, whole_number
from forebay.events import EpochEnded, Event, Preparing, Reported
from forebay.training.runs.control import Control


class ScaleSchedule:
    """Sets the number of workers by epoch.

    `schedule` maps an epoch, from 0, to workers. A number is valid until the next one.
    `ScaleSchedule({0: 2, 10: 4, 20: 8})` sets the target at the checkpoints that end epochs 9 and 19. A smaller world
    trains from that checkpoint on. Under Ray and Horovod, a larger one trains from the first checkpoint after its
    workers are warm.

    Between changes it makes no request, so a target set by `forebay scale` is valid until the next change. Before there
    are workers it requests the number for the next epoch, and corrects this if training begins in another epoch. So
    training begins with the first number under Ray and Horovod. With local processes, give the job the same number as
    `Elastic(start=...)`.

    Raises `InvalidOption` for an empty schedule, and for numbers that are not whole.
    """

    def __init__(self, schedule: Mapping[int, int]) -> None:
        if not schedule:
            raise InvalidOption("ScaleSchedule({}) is empty. Give {epoch: workers}, e.g. {0: 2, 10: 4}.")
        self._epochs = sorted(whole_number("epoch", epoch) for epoch in schedule)
        self._workers = [whole_number("workers", schedule[epoch], least=1) for epoch in self._epochs]
        self._knows_epoch = False
        self._asked: int | None = None

    def __call__(self, event: Event, control: Control) -> None:
        match event:
            case Preparing() if self._asked is None and control.is_elastic:
                self._ask(control.first_epoch, control)
            case EpochEnded():
                self._knows_epoch = True
                begins = event.epoch + 1
                if begins < control.job_epochs and self._at(begins) != self._at(event.epoch):
                    self._ask(begins, control)
            case Reported() if not self._knows_epoch:
                self._knows_epoch = True
                if self._at(event.epoch) != self._asked:
                    self._ask(event.epoch, control)

    def _ask(self, epoch: int, control: Control) -> None:
        self._asked = self._at(epoch)
        if self._asked is not None:
            control.resize(self._asked)

    def _at(self, epoch: int) -> int | None:
        """Return the number of workers for `epoch`.

        None leaves the target unchanged.
        """
        index = bisect_right(self._epochs, epoch)
        return self._workers[index - 1] if index else None
