"""What a sweep has learnt from its trials' results: their scores, what things cost, and how training scales."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forebay.sweep.deadline.learning_curve import LearningCurve
from forebay.sweep.deadline.policy import Costs, State, TrialView
from forebay.sweep.deadline.speedup import SpeedupModel
from forebay.sweep.deadline.trial_workers import TrialAllocation

# As long as nothing was measured: a trial on Ray starts in seconds, and changes its workers in fewer.
PRIOR_COSTS = Costs(startup_s=8.0, resize_s=2.0, stop_s=1.0)
PRIOR_EPOCH_S = 10.0
KEPT = 100
FAR = 1 << 30


def percentile_90(found: list[float], prior: float) -> float:
    """The 90th percentile of what was measured; `prior` where nothing was."""
    return sorted(found)[math.ceil(0.9 * len(found)) - 1] if found else prior


@dataclass(slots=True, kw_only=True)
class TrialHistory:
    """One trial so far. `last_at_s` is when it last told something or began, on the sweep's clock."""

    state: State | Literal["over"] = "waiting"
    scores: list[float] = field(default_factory=list)
    epoch_s: float | None = None
    last_at_s: float = 0.0
    workers: int = 0
    bounds: tuple[int, int] | None = None
    epochs: int | None = None
    results_since_resize: int = FAR
    told: dict[str, float] = field(default_factory=dict)


class TrialStats:
    """Takes results as they come and answers with values; knows no Ray and no clock."""

    def __init__(self) -> None:
        self.courses: dict[str, TrialHistory] = {}
        self.rungs: dict[int, list[float]] = {}
        self.gains = LearningCurve()
        self.scaling = SpeedupModel()
        self._costs: dict[str, list[float]] = {"startup_s": [], "resize_s": [], "stop_s": []}
        self.has_seen_epoch = False
        """Whether what an epoch takes was measured, and is no guess any more."""

    def course(self, trial_id: str) -> TrialHistory:
        """The course of a trial, begun if need be."""
        return self.courses.setdefault(trial_id, TrialHistory())

    def note_score(self, trial_id: str, score: float) -> None:
        """A trial has ended its next epoch; higher is better."""
        scores = self.course(trial_id).scores
        score = score if math.isfinite(score) else -math.inf
        if scores:
            self.gains.note(len(scores), score - scores[-1])
        scores.append(score)
        self.rungs.setdefault(len(scores), []).append(score)

    def note_result(self, trial_id: str, result: Mapping[str, Any], at_s: float) -> None:
        """What a trial told of its time, with or without a score."""
        course = self.course(trial_id)
        course.last_at_s = at_s
        course.results_since_resize = min(course.results_since_resize + 1, FAR)
        workers, rows_per_s = int(result.get("workers") or 0), float(result.get("rows_per_s") or 0.0)
        self.scaling.note(trial_id, workers, rows_per_s)
        epoch_s = result.get("epoch_s") or result.get("time_this_iter_s")
        if epoch_s:
            course.epoch_s = float(epoch_s) * self.scaling.speedup(max(workers, 1))
            self.has_seen_epoch = True
        for name in ("startup_s", "resize_s"):
            self._note_change(course, name, result.get(name))

    def note_cost(self, name: str, seconds: float) -> None:
        """Something of `Costs` took so long."""
        kept = self._costs[name]
        kept.append(seconds)
        del kept[:-KEPT]

    def note_start(self, trial_id: str, at_s: float) -> None:
        """A trial begins, or goes on: it trains once it has started."""
        course = self.course(trial_id)
        course.state, course.last_at_s = "running", at_s + self.costs.startup_s

    def note_held(self, trial_id: str, held: TrialAllocation) -> None:
        """What a trial's run has, and may have."""
        course = self.course(trial_id)
        course.bounds, course.epochs = (held.min_workers, held.max_workers), held.epochs
        if course.workers and held.target != course.workers:
            course.results_since_resize = 0
        course.workers = held.target

    @property
    def costs(self) -> Costs:
        """The 90th percentile of what was measured."""
        found = {name: percentile_90(kept, getattr(PRIOR_COSTS, name)) for name, kept in self._costs.items()}
        return Costs(**found)

    def standings(
        self, trial_ids: Iterable[str], now_s: float, bounds: tuple[int, int], epochs: int | None
    ) -> list[TrialView]:
        """Trials as the rule sees them, less those that are over; `bounds` and `epochs` hold until their runs tell."""
        usual_s = self._usual_epoch_s
        found = []
        for trial_id in trial_ids:
            course = self.courses.get(trial_id)
            if course is None or course.state == "over":
                continue
            low, high = course.bounds or bounds
            standing = TrialView(
                trial_id=trial_id,
                state=course.state,
                scores=course.scores,
                epoch_s=course.epoch_s or usual_s,
                workers=course.workers,
                min_workers=low,
                max_workers=high,
                epochs=course.epochs or epochs,
                results_since_resize=course.results_since_resize,
                since_result_s=max(now_s - course.last_at_s, 0.0),
            )
            found.append(standing)
        return found

    @property
    def _usual_epoch_s(self) -> float:
        known = [course.epoch_s for course in self.courses.values() if course.epoch_s]
        return statistics.median(known) if known else PRIOR_EPOCH_S

    def _note_change(self, course: TrialHistory, name: str, found: object) -> None:
        """Trials tell the newest measurement with every result; each counts once."""
        if isinstance(found, int | float) and found > 0 and course.told.get(name) != found:
            course.told[name] = float(found)
            self.note_cost(name, float(found))
