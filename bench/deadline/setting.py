"""Synthetic sweeps of the deadline bench: curves, workers, costs and deadlines, each drawn from its seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
DIGITS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "deadline_digits.json"
FAMILIES = ("power", "exponential", "sigmoid", "overfitting", "crossing")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSetting:
    """Setting of one sweep.

    `seen` holds the scores that trial i reports after each epoch, `true` its true values. Higher is better. `epoch_s`
    is each trial's epoch with one worker. With n workers an epoch takes `epoch_s / speedup(n)`.
    """

    seed: int
    family: str
    length: str
    slots: int
    deadline_s: float
    startup_s: float
    resize_s: float
    stop_s: float
    serial: float
    power: float
    epoch_s: Scores
    seen: Scores
    true: Scores

    @property
    def num_trials(self) -> int:
        return len(self.seen)

    @property
    def epochs(self) -> int:
        return self.seen.shape[1]

    def speedup(self, workers: int) -> float:
        """Sublinear speedup: Amdahl's law if there is a serial part, otherwise a power."""
        return workers / (1 + self.serial * (workers - 1)) if self.serial else workers**self.power


def draw(seed: int, family: str | None = None) -> DeadlineSetting:
    """Draw the sweep of a seed. `family="digits"` takes recorded curves, otherwise families follow each other."""
    rng = np.random.default_rng(seed)
    family = family or FAMILIES[seed % len(FAMILIES)]
    slots = int(rng.integers(4, 17))
    trials = round(slots * _log_uniform(rng, 1, 8))
    seen, true = _digits(rng, trials) if family == "digits" else _synthetic(rng, family, trials)
    epoch_s, startup_s = _log_uniform(rng, 3, 60), float(rng.uniform(3, 12))
    length = "short" if rng.random() < 0.5 else "long"
    epochs_in_time = _log_uniform(rng, 4, 15) if length == "short" else _log_uniform(rng, 15, 60)
    return DeadlineSetting(
        seed=seed,
        family=family,
        length=length,
        slots=slots,
        deadline_s=startup_s + epochs_in_time * epoch_s,
        startup_s=startup_s,
        resize_s=_log_uniform(rng, 0.5, 6),
        stop_s=0.5,
        serial=float(rng.uniform(0.02, 0.2)) if rng.random() < 0.5 else 0.0,
        power=float(rng.uniform(0.55, 0.95)),
        epoch_s=epoch_s * np.exp(0.15 * rng.standard_normal(len(seen))),
        seen=seen,
        true=true,
    )


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _synthetic(rng: np.random.Generator, family: str, trials: int) -> tuple[Scores, Scores]:
    """Accuracies between 0 and 1. A tenth of the trials learn nothing. All trials of a sweep have the same noise."""
    age = np.arange(1, int(rng.choice([27, 54, 81])) + 1)
    quality = rng.beta(2, 2, (trials, 1))
    true = np.asarray(CURVES[family](rng, age, quality))
    true = np.where(rng.random((trials, 1)) < 0.1, 0.1, true)
    noise = _log_uniform(rng, 0.002, 0.02)
    return true + noise * rng.standard_normal(true.shape), true


def _power(rng: np.random.Generator, age: Scores, quality: Scores) -> Scores:
    column = quality.shape
    floor = 0.05 + 0.35 * (1 - quality) + 0.03 * rng.standard_normal(column)
    steepness, size, late = rng.uniform(0.3, 1.2, column), rng.uniform(0.3, 0.6, column), rng.uniform(0, 2, column)
    return 1 - floor - size * (age + late) ** -steepness


def _exponential(rng: np.random.Generator, age: Scores, quality: Scores) -> Scores:
    pace, size = _paces(rng, 2, 25, quality), rng.uniform(0.3, 0.6, quality.shape)
    return 0.95 - 0.35 * (1 - quality) - size * np.exp(-age / pace)


def _sigmoid(rng: np.random.Generator, age: Scores, quality: Scores) -> Scores:
    middle = _paces(rng, 1.5, 20, quality)
    width = middle * rng.uniform(0.3, 0.7, quality.shape)
    return 0.1 + 0.8 * (0.55 + 0.4 * quality) / (1 + np.exp(-(age - middle) / width))


def _overfitting(rng: np.random.Generator, age: Scores, quality: Scores) -> Scores:
    pace, peak = _paces(rng, 1.5, 12, quality), rng.uniform(10, 60, quality.shape)
    return 0.95 - 0.35 * (1 - quality) - 0.5 * np.exp(-age / pace) - 0.002 * np.maximum(age - peak, 0)


def _crossing(rng: np.random.Generator, age: Scores, quality: Scores) -> Scores:
    """Curves that cross everywhere: the slower a trial learns, the better it ends."""
    slowness = rng.uniform(0, 1, quality.shape)
    pace = 1.5 * 15**slowness
    return (0.65 + 0.2 * slowness + 0.12 * (quality - 0.5)) * (1 - np.exp(-(age + 0.5) / pace))


def _paces(rng: np.random.Generator, low: float, high: float, like: Scores) -> Scores:
    return np.exp(rng.uniform(np.log(low), np.log(high), like.shape))


CURVES: dict[str, Callable[[np.random.Generator, Scores, Scores], Scores]] = {
    "power": _power,
    "exponential": _exponential,
    "sigmoid": _sigmoid,
    "overfitting": _overfitting,
    "crossing": _crossing,
}


def _digits(rng: np.random.Generator, trials: int) -> tuple[Scores, Scores]:
    """Recorded curves, at most as many as there are."""
    seen, true = _recorded()
    chosen = rng.permutation(len(seen))[:trials]
    return seen[chosen], true[chosen]


@cache
def _recorded() -> tuple[Scores, Scores]:
    found = json.loads(DIGITS.read_text())
    return np.asarray(found["seen"]), np.asarray(found["true"])
