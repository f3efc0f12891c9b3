"""Deadline policy: decisions on trials and workers. Pure.

From a view of a sweep at one time.

After HyperSched (Liaw et al., arXiv 2001.02338). docs/adr/0016-deadline-scheduling.md explains the differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from forebay.errors import InvalidOption, whole_number
from forebay.sweep.deadline.allocation import Policy, WorkerDemand, allocate
from forebay.sweep.deadline.learning_curve import LearningCurve, current_level
from forebay.sweep.deadline.speedup import SpeedupModel

State = Literal["waiting", "running", "paused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial that is not over.

    `scores` are the scores after each epoch, higher is better. `epoch_s` is the time of an epoch with one worker, in
    seconds. `epochs` is the number of epochs of its job, if known. The other fields describe a running trial: its
    workers, and the number of results since they changed. `since_result_s` is the time since the last result or the
    start of training.
    """

    trial_id: str
    state: State
    scores: Sequence[float] = ()
    epoch_s: float
    min_workers: int = 1
    max_workers: int
    epochs: int | None = None
    workers: int = 0
    results_since_resize: int = 1 << 30
    since_result_s: float = 0.0

    @property
    def age(self) -> int:
        """Number of trained epochs."""
        return len(self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds without training.

    Until the first step, during a resize, at the end.
    """

    startup_s: float
    resize_s: float
    stop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """State of a sweep at one moment.

    `rungs` are the scores of all trials that reached a number of epochs, also of ended ones.

    `max_live` limits the number of trials that train at once. `is_estimate`: no epoch has ended yet, so all times are
    estimates.
    """

    now_s: float
    deadline_s: float
    slots: int
    trials: Sequence[TrialView]
    rungs: Mapping[int, Sequence[float]]
    costs: Costs
    learning_curve: LearningCurve
    speedup_model: SpeedupModel
    max_live: int | None = None
    is_estimate: bool = False

    @property
    def left_s(self) -> float:
        """Return the time until trials must end.

        Their last checkpoints are then saved by the deadline.
        """
        return self.deadline_s - self.now_s - self.costs.stop_s

    def speedup(self, trial: TrialView) -> float:
        """Return a trial's speed on all workers it can have.

        Relative to one worker.
        """
        return self.speedup_model.speedup(max(min(self.slots, trial.max_workers), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Constants of the policy.

    Shares of time refer to the whole deadline.

    Attributes:
        policy: Distribution of workers beyond each trial's minimum once new trials no longer start.
        reduction: After 1, `reduction`, `reduction`^2, ... epochs, the best 1 / `reduction` of the trials pass.
        explore_min, explore_max: New trials start for at least, and at most, this share of the time. Between these,
            they start while the time of a whole trial on all workers is left.
        alone: Share of the remaining time in which the best trial is alone.
        worth: Factor by which a trial must get further with more workers, the resize included.
        results_between_growths: Number of results between two growths of one trial.

    Raises `InvalidOption` for numbers that leave no time, or no trials.
    """

    policy: Policy = "top"
    reduction: int = 3
    explore_min: float = 0.3
    explore_max: float = 0.7
    alone: float = 0.15
    worth: float = 1.1
    results_between_growths: int = 2

    def __post_init__(self) -> None:
        whole_number("reduction", self.reduction, least=2)
        whole_number("results_between_growths", self.results_between_growths, least=0)
        shares = 0 <= self.explore_min <= self.explore_max < 1 and 0 <= self.alone < 1
        if not (shares and 0 < self.worth < math.inf):
            raise InvalidOption(
                f"{self} cannot work. Give shares of time with 0 <= explore_min <= explore_max < 1 and 0 <= alone < 1, "
                "and a positive factor worth."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Trials to stop, pause, start and resize.

    `workers` has each trial that continues or starts.

    `late` are the trials in `stop` that would continue if there were time.
    """

    stop: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    pause: frozenset[str] = frozenset()
    start: tuple[str, ...] = ()
    workers: Mapping[str, int] = field(default_factory=dict)


def decide(view: SweepView, rules: Rules) -> Decisions:
    """Best decisions for this view.

    At first, trials take turns on their minimum of workers. A trial that fails its last rung ends as soon as another
    one waits. Later no new trials start, and fewer and fewer continue: those with the best forecasts, finally one.
    """
    undone = [trial for trial in view.trials if not _is_done(trial)]
    useful = [trial for trial in undone if can_end_epoch(trial, view)]
    stop = {trial.trial_id for trial in view.trials} - {trial.trial_id for trial in useful}
    late = {trial.trial_id for trial in undone} & stop
    forecasts = {trial.trial_id: forecast(trial, view) for trial in useful}
    ranked = sorted(useful, key=lambda trial: -forecasts[trial.trial_id])
    explore_s = explore_until_s(view, rules)
    limit = max_live_trials(view, rules, explore_s)
    running = [trial for trial in ranked if trial.state == "running"]
    # A trial without a result may end its first epoch.
    pause = [trial for trial in running[limit:] if trial.age]
    live = [trial for trial in running if trial not in pause]
    waiting = [trial for trial in useful if trial.state == "waiting"]
    is_exploring = view.now_s < explore_s
    if is_exploring and waiting:
        start, beaten = _replace_losers(waiting, live, limit, view, rules)
        live = [trial for trial in live if trial not in beaten]
        stop |= {trial.trial_id for trial in beaten}
    else:
        paused = [trial for trial in ranked if trial.state == "paused"]
        better = [trial for trial in paused if not live or forecasts[trial.trial_id] > forecasts[live[0].trial_id]]
        start = _resume_paused(paused if is_exploring else better, live, limit, view)
    return Decisions(
        stop=frozenset(stop),
        late=frozenset(late),
        pause=frozenset(trial.trial_id for trial in pause),
        start=tuple(trial.trial_id for trial in start),
        workers=_workers([*live, *start], forecasts, view, replace(rules, policy="uniform") if is_exploring else rules),
    )


def can_end_epoch(trial: TrialView, view: SweepView) -> bool:
    """Return whether a trial can end another epoch in time.

    With all workers. Training beyond that is lost.
    """
    if _is_done(trial):
        return False
    if view.is_estimate:  # no trial is stopped because of an estimate
        return view.left_s > 0
    speedup = view.speedup(trial)
    if trial.state != "running":
        return view.costs.startup_s + trial.epoch_s / speedup <= view.left_s
    done = trial.since_result_s * view.speedup_model.speedup(max(trial.workers, 1)) / trial.epoch_s
    return max(1 - done, 0.0) * trial.epoch_s / speedup <= view.left_s


def forecast(trial: TrialView, view: SweepView) -> float:
    """Forecast a trial's final score on all workers from now."""
    if not trial.scores:
        return -math.inf
    begins_s = 0.0 if trial.state == "running" else view.costs.startup_s
    reach = trial.age + max(view.left_s - begins_s, 0.0) * view.speedup(trial) / trial.epoch_s
    return current_level(trial.scores) + view.learning_curve.gain_between(
        trial.age, min(reach, trial.epochs or math.inf)
    )


def explore_until_s(view: SweepView, rules: Rules) -> float:
    """Return the time of the last start of a new trial.

    A later one would not get far enough to matter.
    """
    known_s = [trial.epoch_s * trial.epochs / view.speedup(trial) for trial in view.trials if trial.epochs is not None]
    if not known_s:
        return rules.explore_min * view.deadline_s
    latest_s = min(view.deadline_s - statistics.median(known_s), rules.explore_max * view.deadline_s)
    return max(latest_s, rules.explore_min * view.deadline_s)


def max_live_trials(view: SweepView, rules: Rules, explore_s: float) -> int:
    """Number of trials that may train now.

    Until `explore_s`, as many as have workers. From then on the number shrinks by the same factor in equal time, down
    to one.
    """
    most = max(view.slots // min((trial.min_workers for trial in view.trials), default=1), 1)
    most = min(most, view.max_live or most)
    ends_s = view.deadline_s - rules.alone * (view.deadline_s - explore_s)
    left = min(max((ends_s - view.now_s) / (ends_s - explore_s), 0.0), 1.0)
    return max(math.ceil(math.pow(most, left) - 1e-9), 1)


def fails_rung(trial: TrialView, rungs: Mapping[int, Sequence[float]], reduction: int) -> bool:
    """Return whether a trial is below the best at its last rung.

    By today's scores.
    """
    if not trial.age:
        return False
    rung = int(reduction ** int(math.log(trial.age, reduction) + 1e-9))
    others = rungs.get(rung, ())
    good_enough = max(round(len(others) / reduction), 1)
    return len(others) > 1 and sum(score > trial.scores[rung - 1] for score in others) >= good_enough


def is_growth_worthwhile(trial: TrialView, workers: int, view: SweepView, rules: Rules) -> bool:
    """Return whether more workers bring a trial further.

    It does not train during the resize.
    """
    if trial.results_since_resize < rules.results_between_growths:
        return False
    now, then = view.speedup_model.speedup(max(trial.workers, 1)), view.speedup_model.speedup(workers)
    return then * (view.left_s - view.costs.resize_s) > rules.worth * now * view.left_s


def _is_done(trial: TrialView) -> bool:
    return trial.epochs is not None and trial.age >= trial.epochs


def _replace_losers(
    waiting: Sequence[TrialView], live: Sequence[TrialView], limit: int, view: SweepView, rules: Rules
) -> tuple[list[TrialView], list[TrialView]]:
    """Return trials to start, and trials that end for them.

    In order of arrival, and worst forecast first.
    """
    room, allowed = view.slots - sum(trial.min_workers for trial in live), limit - len(live)
    losers = [trial for trial in reversed(live) if fails_rung(trial, view.rungs, rules.reduction)]
    start: list[TrialView] = []
    beaten: list[TrialView] = []
    for trial in waiting:
        while (room < trial.min_workers or allowed < 1) and losers:
            beaten.append(losers.pop(0))
            room, allowed = room + beaten[-1].min_workers, allowed + 1
        if room < trial.min_workers or allowed < 1:
            break
        start.append(trial)
        room, allowed = room - trial.min_workers, allowed - 1
    return start, beaten


def _resume_paused(
    paused: Sequence[TrialView], live: Sequence[TrialView], limit: int, view: SweepView
) -> list[TrialView]:
    """Return paused trials to resume, best forecast first.

    Others have ended.
    """
    room = view.slots - sum(trial.min_workers for trial in live)
    start: list[TrialView] = []
    for trial in paused[: max(limit - len(live), 0)]:
        if trial.min_workers <= room:
            start.append(trial)
            room -= trial.min_workers
    return start


def _workers(
    trials: Sequence[TrialView], forecasts: Mapping[str, float], view: SweepView, rules: Rules
) -> dict[str, int]:
    """Return workers by trial.

    A trial that does not gain enough keeps its number, and the next trial gets the rest.
    """
    most = {trial.trial_id: trial.max_workers for trial in trials}
    while True:
        demands = [
            WorkerDemand(
                trial_id=trial.trial_id,
                min_workers=trial.min_workers,
                max_workers=most[trial.trial_id],
                forecast=forecasts[trial.trial_id],
            )
            for trial in trials
        ]
        target_workers = allocate(demands, view.slots, rules.policy)
        vain = {
            trial.trial_id: trial.workers
            for trial in trials
            if target_workers[trial.trial_id] > trial.workers >= trial.min_workers
            and not is_growth_worthwhile(trial, target_workers[trial.trial_id], view, rules)
        }
        if not vain:
            return target_workers
        most |= vain
