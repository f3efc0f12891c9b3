"""Evaluations of a run, the best, and an early end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from forebay.errors import BadJob, InvalidOption, whole_number
from forebay.events import Evaluated, Sample


@dataclass(frozen=True, slots=True)
class KeepBest:
    """Rule that keeps the checkpoint of the best evaluation.

    The first evaluation is the best one until another is better. Those without the metric, of a run that goes on with
    another rule, do not count.

    Attributes:
        metric: Metric of the evaluations.
        mode: "min" or "max".
        patience: Evaluations in a row that are not better before the run ends. None: the run goes on.
        least_change: A value must be better by more than this.
    """

    metric: str = "validation_loss"
    mode: Literal["min", "max"] = field(default="min", kw_only=True)
    patience: int | None = field(default=None, kw_only=True)
    least_change: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidOption(f"metric={self.metric!r} names no metric. Give a text, e.g. 'validation_loss'.")
        if self.mode not in get_args(Literal["min", "max"]):
            raise InvalidOption(f"mode={self.mode!r} is unknown. Choose 'min' or 'max'.", mode=self.mode)
        if self.patience is not None:
            whole_number("patience", self.patience, least=1)
        if not 0 <= self.least_change < math.inf:
            raise InvalidOption(f"least_change={self.least_change!r} is no size. Give 0 or more.")

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether `value` is better than `best`. NaN never is.

        >>> KeepBest().is_better(0.5, 0.6), KeepBest(mode="max").is_better(0.5, 0.6)
        (True, False)
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        gain = best - value if self.mode == "min" else value - best
        return gain > self.least_change

    def judged(self, evaluation: Evaluated, before: Sequence[Evaluated]) -> Evaluated:
        """Return `evaluation` with `is_best` set.

        Raises `BadJob` if it lacks the metric.
        """
        if self.metric not in evaluation.metrics:
            known = ", ".join(map(repr, evaluation.metrics)) or "none"
            raise BadJob(
                f"keep_best watches the metric {self.metric!r}, and the evaluation after step {evaluation.step} has "
                f"{known}. Give KeepBest(metric=...) one of them, or return {self.metric!r} from the evaluation.",
                metric=self.metric,
            )
        found = best_of(self._counted(before))
        best = None if found is None else found.metrics[self.metric]
        return replace(evaluation, is_best=self.is_better(evaluation.metrics[self.metric], best))

    def end(self, evaluations: Sequence[Evaluated]) -> str | None:
        """Reason for which the run ends after `evaluations`, or None."""
        if self.patience is None:
            return None
        counted = self._counted(evaluations)
        best = best_of(counted)
        since = [each for each in counted if best is None or each.step > best.step]
        if len(since) < self.patience:
            return None
        at = "" if best is None else f" since step {best.step} ({best.metrics[self.metric]:.6g})"
        times = "the last evaluation" if len(since) == 1 else f"{len(since)} evaluations"
        return f"{self.metric} was not better in {times}{at}"

    def _counted(self, evaluations: Sequence[Evaluated]) -> list[Evaluated]:
        return [each for each in evaluations if self.metric in each.metrics]


def best_of(evaluations: Sequence[Evaluated]) -> Evaluated | None:
    """Best of the evaluations, by `is_best`."""
    return next((each for each in reversed(evaluations) if each.is_best), None)


def with_evaluation(evaluations: Sequence[Evaluated], new: Evaluated) -> tuple[Evaluated, ...]:
    """Return the evaluations with `new`.

    It replaces all from its step on.
    """
    return (*(each for each in evaluations if each.step < new.step), new)


def saved(evaluations: Sequence[Evaluated]) -> list[dict[str, Any]]:
    """Return plain containers for a checkpoint.

    Only the last one keeps its samples.
    """
    bare = [replace(each, samples=()) for each in evaluations[:-1]]
    return [asdict(each) for each in (*bare, *evaluations[-1:])]


def loaded(facts: Sequence[Mapping[str, Any]]) -> tuple[Evaluated, ...]:
    """Inverse of `saved`, and of its JSON."""
    return tuple(
        Evaluated(**{**each, "samples": tuple(Sample(**sample) for sample in each.get("samples", ()))})
        for each in facts
    )
