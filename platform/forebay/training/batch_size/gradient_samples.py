"""Gradients of two batch sizes.

From one step of many ranks, or from two steps of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from forebay.errors import BadJob
from forebay.training.batch_size.local_gradient import LocalGradient, squared_norm


@dataclass(frozen=True, slots=True)
class GradientSample:
    """Squared gradient norms over parts of a batch and all.

    The batch has B `rows`.

    `small` is the sum of (b / B) |g_part|^2 over `parts` parts of b rows. Its expectation is |G|^2 + parts * tr(cov) /
    B for any distribution of the rows over parts. `large` is |g|^2 of the whole batch: in expectation |G|^2 + tr(cov) /
    B.
    """

    small: float
    parts: float
    large: float
    rows: float

    @property
    def is_sound(self) -> bool:
        """False if gradients overflowed or one part had all rows."""
        return self.parts > 1 and math.isfinite(self.small) and math.isfinite(self.large)

    @property
    def trace(self) -> float:
        """Unbiased estimate of tr(cov) of a single row's gradient."""
        return self.rows * (self.small - self.large) / (self.parts - 1)

    @property
    def signal(self) -> float:
        """Unbiased estimate of |G|^2, the squared gradient without noise.

        It may be negative.
        """
        return self.large - self.trace / self.rows


class Sampler(Protocol):
    """Takes samples on one rank.

    Only `pop_samples` waits for the device.
    """

    def start(self) -> None:
        """Start a sample with the next step, if none runs."""

    def finish_step(self, *, rows: int, size: int) -> None:
        """End a step of `rows` of `size` rows.

        Raises `BadJob` for several `backward()`.
        """

    def pop_samples(self) -> list[GradientSample]:
        """Return this rank's samples since the last call.

        Sum `small` and `parts` over ranks.
        """
        ...

    def discard(self) -> None:
        """Discard all steps since `pop_samples`."""


class RankParts:
    """Compare the ranks' parts of a batch with the whole.

    Two norms per step, no copy.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], world_size: int) -> None:
        self._gradient, self._world_size = LocalGradient(parameters), world_size
        self._now: Tensor | None = None
        self._seen: list[tuple[Tensor, int, int]] = []

    def start(self) -> None:
        self._now = None
        self._gradient.arm(self._observe)

    def finish_step(self, *, rows: int, size: int) -> None:
        _check_passes(self._gradient)
        self._gradient.disarm()
        if self._now is not None:
            self._seen.append((self._now, rows, size))
            self._now = None

    def pop_samples(self) -> list[GradientSample]:
        seen, self._seen = self._seen, []
        return [self._part(squares.tolist(), rows, size) for squares, rows, size in seen]

    def discard(self) -> None:
        self._gradient.disarm()
        self._now, self._seen = None, []

    def _observe(self, local: Tensor) -> None:
        self._now = torch.stack([local, squared_norm(self._gradient.reduced().values())])

    def _part(self, squares: list[float], rows: int, size: int) -> GradientSample:
        local, whole = squares
        if rows == 0:
            return GradientSample(0.0, 0, whole, size)
        # The loss was weighted with rows * ranks / size.
        return GradientSample(local * size / (rows * self._world_size**2), 1, whole, size)


class StepPairs:
    """Compare two successive steps with their mean.

    For a world of one.

    Keeps one copy of the gradient.

    The second gradient belongs to parameters one step later, so the change of the gradient by a step counts as noise.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._gradient = LocalGradient(parameters)
        self._first: dict[int, Tensor] = {}
        self._first_size = 0
        self._now: Tensor | None = None
        self._seen: list[tuple[Tensor, int, int]] = []

    def start(self) -> None:
        if not self._gradient.is_armed:
            self._gradient.arm(self._observe)

    def finish_step(self, *, rows: int, size: int) -> None:  # noqa: ARG002 - a `Sampler`; all rows are this rank's
        _check_passes(self._gradient)
        self._gradient.disarm()
        if self._now is not None:
            self._seen.append((self._now, self._first_size, size))
            self._now = None
        elif self._first:
            self._first_size = size
            self._gradient.arm(self._observe)

    def pop_samples(self) -> list[GradientSample]:
        seen, self._seen = self._seen, []
        return [self._pair(squares.tolist(), first, second) for squares, first, second in seen]

    def discard(self) -> None:
        self._gradient.disarm()
        self._first, self._now, self._seen = {}, None, []

    def _observe(self, _: Tensor) -> None:
        gradients = self._gradient.reduced()
        if not self._first:
            self._first = {place: gradient.detach().clone() for place, gradient in gradients.items()}
            return
        first, self._first = self._first, {}
        # The difference, not the product: for similar gradients it keeps its digits.
        change = [gradient - first[place] if place in first else gradient for place, gradient in gradients.items()]
        change += [gradient for place, gradient in first.items() if place not in gradients]
        self._now = torch.stack([squared_norm(each) for each in (first.values(), change, gradients.values())])

    @staticmethod
    def _pair(squares: list[float], first_size: int, second_size: int) -> GradientSample:
        first, change, second = squares
        rows = first_size + second_size
        small = (first_size * first + second_size * second) / rows
        return GradientSample(small, 2, small - first_size * second_size / rows**2 * change, rows)


def _check_passes(gradient: LocalGradient) -> None:
    if gradient.is_armed and gradient.passes > 1:
        raise BadJob(
            f"NoiseScale saw {gradient.passes} backward() in one step: it cannot separate their gradients when "
            "they accumulate, or with reentrant checkpointing. Call backward() once per step, or use BatchSchedule."
        )
