"""Callback that changes the number of workers at random, for studies of elastic training."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from forebay.errors import InvalidOption, whole_number
from forebay.events import Event, Reported, Started
from forebay.training.runs.control import Control


class RandomResize:
    """Adds or removes `step` workers at random, every `every_s` seconds.

    `seed` decides the direction of each change. At a bound of the job the direction is reversed. The moment of a change
    depends on the clock, not on the position in the data. So two runs differ only in the moments of their changes.
    `clock` returns monotonic seconds. Raises `InvalidOption` for a period that is not positive.
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
