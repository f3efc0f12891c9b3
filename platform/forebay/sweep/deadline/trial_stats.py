"""Statistics of a sweep's results.

Scores, costs, and how training scales with workers.
"""

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

# A trial on Ray starts in seconds and resizes in fewer. Used until the first measurement.
PRIOR_COSTS = Costs(startup_s=8.0, resize_s=2.0, stop_s=1.0)
PRIOR_EPOCH_S = 10.0
KEPT = 100
FAR = 1 << 30


def percentile_90(found: list[float], prior: float) -> float:
    """90th percentile of the measurements, or `prior` without any."""
    return sorted(found)[math.ceil(0.9 * len(found)) - 1] if found else prior


@dataclass(slots=True, kw_only=True)
class TrialHistory:
    """History of one trial.

    `last_at_s` is the time of its last result or start, on the sweep's clock.
    """

    state: State | Literal["over"] = "waiting"
    scores: list[float] = field(default_factory=list)
    epoch_s: float | None = None
    last_at_s: float = 0.0
    workers: int = 0
    bounds: tuple[int, int] | None = None
    epochs: int | None = None
    results_since_resize: int = FAR
    reported: dict[str, float] = field(default_factory=dict)


class TrialStats:
    """Statistics of all trials, updated with each result.

    Independent of Ray and of the clock.
    """

    def __init__(self) -> None:
        self.histories: dict[str, TrialHistory] = {}
        self.rungs: dict[int, list[float]] = {}
        self.learning_curve = LearningCurve()
        self.speedup_model = SpeedupModel()
        self._costs: dict[str, list[float]] = {"startup_s": [], "resize_s": [], "stop_s": []}
        self.has_measured_epoch = False
        """Whether the time of an epoch was measured."""

    def history(self, trial_id: str) -> TrialHistory:
        """History of a trial, created if needed."""
        return self.histories.setdefault(trial_id, TrialHistory())

    def note_score(self, trial_id: str, score: float, epoch: int | None = None) -> None:
        """Add the score of a trial's next epoch, or of `epoch`, from 1.

        Higher is better. Scores from `epoch` on are replaced: a trial whose process was lost trains these again.
        """
        scores = self.history(trial_id).scores
        while epoch is not None and len(scores) >= epoch:
            self.rungs[len(scores)].remove(scores.pop())
        score = score if math.isfinite(score) else -math.inf
        if scores:
            self.learning_curve.note(len(scores), score - scores[-1])
        scores.append(score)
        self.rungs.setdefault(len(scores), []).append(score)

    def note_result(self, trial_id: str, result: Mapping[str, Any], at_s: float) -> None:
        """Add the timing of a result, scored or not."""
        history = self.history(trial_id)
        history.last_at_s = at_s
        history.results_since_resize = min(history.results_since_resize + 1, FAR)
        workers, rows_per_s = int(result.get("workers") or 0), float(result.get("rows_per_s") or 0.0)
        self.speedup_model.note(trial_id, workers, rows_per_s)
        epoch_s = result.get("epoch_s") or result.get("time_this_iter_s")
        if epoch_s:
            history.epoch_s = float(epoch_s) * self.speedup_model.speedup(max(workers, 1))
            self.has_measured_epoch = True
        history.epochs = result.get("epochs") or history.epochs
        for name in ("startup_s", "resize_s"):
            self._note_change(history, name, result.get(name))

    def note_cost(self, name: str, seconds: float) -> None:
        """Add a measurement of a cost."""
        kept = self._costs[name]
        kept.append(seconds)
        del kept[:-KEPT]

    def note_start(self, trial_id: str, at_s: float) -> None:
        """Note that a trial starts or resumes.

        It trains after the startup time.
        """
        history = self.history(trial_id)
        history.state, history.last_at_s = "running", at_s + self.costs.startup_s

    def note_allocations(self, trial_id: str, allocations: TrialAllocation) -> None:
        """Note the workers and bounds of a trial's run."""
        history = self.history(trial_id)
        history.bounds, history.epochs = (allocations.min_workers, allocations.max_workers), allocations.epochs
        if history.workers and allocations.target != history.workers:
            history.results_since_resize = 0
        history.workers = allocations.target

    @property
    def costs(self) -> Costs:
        """90th percentiles of the measured costs."""
        found = {name: percentile_90(kept, getattr(PRIOR_COSTS, name)) for name, kept in self._costs.items()}
        return Costs(**found)

    def trial_views(
        self, trial_ids: Iterable[str], now_s: float, bounds: tuple[int, int], epochs: int | None
    ) -> list[TrialView]:
        """Return the views of all trials that are not over.

        `bounds` and `epochs` apply until their runs report their own.
        """
        usual_s, most = self._median_epoch_s, epochs or 0
        found = []
        for trial_id in trial_ids:
            history = self.histories.get(trial_id)
            if history is None or history.state == "over":
                continue
            low, high = history.bounds or bounds
            standing = TrialView(
                trial_id=trial_id,
                state=history.state,
                scores=history.scores,
                epoch_s=history.epoch_s or usual_s,
                workers=history.workers,
                min_workers=low,
                max_workers=high,
                # A trial that goes on after so many epochs has more of them.
                epochs=history.epochs or (epochs if len(history.scores) < most else None),
                results_since_resize=history.results_since_resize,
                since_result_s=max(now_s - history.last_at_s, 0.0),
            )
            found.append(standing)
        return found

    @property
    def _median_epoch_s(self) -> float:
        known = [history.epoch_s for history in self.histories.values() if history.epoch_s]
        return statistics.median(known) if known else PRIOR_EPOCH_S

    def _note_change(self, history: TrialHistory, name: str, found: object) -> None:
        """Count each measurement once.

        Trials repeat the newest one with every result.
        """
        if isinstance(found, int | float) and found > 0 and history.reported.get(name) != found:
            history.reported[name] = float(found)
            self.note_cost(name, float(found))
