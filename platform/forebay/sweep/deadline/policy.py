"""What a sweep does with its trials and workers as its deadline nears: from a view, with its time, to decisions.

After HyperSched (Liaw et al., arXiv 2001.02338); docs/adr/0016-deadline-scheduling.md says what differs, and why.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from forebay.sweep.deadline.allocation import Policy, WorkerDemand, allot
from forebay.sweep.deadline.learning_curve import LearningCurve, level
from forebay.sweep.deadline.speedup import SpeedupModel

State = Literal["waiting", "running", "paused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial that is not over.

    `scores` are those after each of its epochs, higher is better; `epoch_s` is how long an epoch takes one worker;
    `epochs` how many the trial is for, where that is known. The rest is about a trial that runs: its workers, how many
    results have come since they changed, and how long ago the last one came, or the trial began to train.
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
        """Epochs it has trained."""
        return len(self.scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds without training: until a trial's first step, at a change of its workers, at its end."""

    startup_s: float
    resize_s: float
    stop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A sweep at one moment. `rungs` are the scores of all trials that came so far, ever, by number of epochs.

    `max_live` is how many trials may train at once, where fewer than have a place. `is_guess`: no epoch has ended yet,
    and what things take is a guess.
    """

    now_s: float
    deadline_s: float
    atoms: int
    trials: Sequence[TrialView]
    rungs: Mapping[int, Sequence[float]]
    costs: Costs
    gains: LearningCurve
    scaling: SpeedupModel
    max_live: int | None = None
    is_guess: bool = False

    @property
    def left_s(self) -> float:
        """Until trials must end, so that their last commits are made by the deadline."""
        return self.deadline_s - self.now_s - self.costs.stop_s

    def speedup(self, trial: TrialView) -> float:
        """How much faster than with one worker a trial is with all it can have."""
        return self.scaling.speedup(max(min(self.atoms, trial.max_workers), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The constants of the rule; shares of time are of the whole deadline.

    Attributes:
        policy: Who gets what is left above each trial's minimum once no new trials begin.
        reduction: At 1, `reduction`, `reduction`^2, ... epochs one of so many trials is good enough.
        explore_least, explore_most: New trials begin for at least, and at most, this share of the time; in between,
            as long as the time that a whole trial takes on all workers is left.
        alone: The best trial is alone for this share of the time after that.
        worth: A trial gets more workers only if it comes further by this factor, its change of workers included.
        recharge: Results between two growths of one trial.
    """

    policy: Policy = "top"
    reduction: int = 3
    explore_least: float = 0.3
    explore_most: float = 0.7
    alone: float = 0.15
    worth: float = 1.1
    recharge: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What is to be done with whom, and how many workers each trial is to have that goes on or starts.

    `late` are those of `stop` that would train on, if there were time.
    """

    stop: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    pause: frozenset[str] = frozenset()
    start: tuple[str, ...] = ()
    workers: Mapping[str, int] = field(default_factory=dict)


def decide(view: SweepView, rules: Rules) -> Decisions:
    """What is best now.

    First trials take turns on as few workers as they can train with: whoever is not good enough at its last rung ends,
    as soon as another one waits. Then no more begin, and ever fewer go on, the most promising ones, at last one.
    """
    undone = [trial for trial in view.trials if not _is_done(trial)]
    useful = [trial for trial in undone if can_end_epoch(trial, view)]
    stop = {trial.trial_id for trial in view.trials} - {trial.trial_id for trial in useful}
    late = {trial.trial_id for trial in undone} & stop
    promises = {trial.trial_id: promise(trial, view) for trial in useful}
    ranked = sorted(useful, key=lambda trial: -promises[trial.trial_id])
    explore_s = explore_until_s(view, rules)
    limit = num_live(view, rules, explore_s)
    running = [trial for trial in ranked if trial.state == "running"]
    # Who has not ended an epoch yet shows nothing: it may do so first.
    pause = [trial for trial in running[limit:] if trial.age]
    live = [trial for trial in running if trial not in pause]
    waiting = [trial for trial in useful if trial.state == "waiting"]
    is_exploring = view.now_s < explore_s
    if is_exploring and waiting:
        start, beaten = _take_turns(waiting, live, limit, view, rules)
        live = [trial for trial in live if trial not in beaten]
        stop |= {trial.trial_id for trial in beaten}
    else:
        paused = [trial for trial in ranked if trial.state == "paused"]
        better = [trial for trial in paused if not live or promises[trial.trial_id] > promises[live[0].trial_id]]
        start = _fill(paused if is_exploring else better, live, limit, view)
    return Decisions(
        stop=frozenset(stop),
        late=frozenset(late),
        pause=frozenset(trial.trial_id for trial in pause),
        start=tuple(trial.trial_id for trial in start),
        workers=_workers([*live, *start], promises, view, replace(rules, policy="uniform") if is_exploring else rules),
    )


def can_end_epoch(trial: TrialView, view: SweepView) -> bool:
    """Whether a trial has another epoch, and with all workers ends it in time: what it does beyond that is lost."""
    if _is_done(trial):
        return False
    if view.is_guess:  # nobody is given up by a guess
        return view.left_s > 0
    speedup = view.speedup(trial)
    if trial.state != "running":
        return view.costs.startup_s + trial.epoch_s / speedup <= view.left_s
    done = trial.since_result_s * view.scaling.speedup(max(trial.workers, 1)) / trial.epoch_s
    return max(1 - done, 0.0) * trial.epoch_s / speedup <= view.left_s


def promise(trial: TrialView, view: SweepView) -> float:
    """The score a trial would end with, if all workers were its own from now on."""
    if not trial.scores:
        return -math.inf
    begins_s = 0.0 if trial.state == "running" else view.costs.startup_s
    reach = trial.age + max(view.left_s - begins_s, 0.0) * view.speedup(trial) / trial.epoch_s
    return level(trial.scores) + view.gains.between(trial.age, min(reach, trial.epochs or math.inf))


def explore_until_s(view: SweepView, rules: Rules) -> float:
    """When the last new trial may begin: one that begins later would not come far enough to matter."""
    known_s = [trial.epoch_s * trial.epochs / view.speedup(trial) for trial in view.trials if trial.epochs is not None]
    if not known_s:
        return rules.explore_least * view.deadline_s
    latest_s = min(view.deadline_s - statistics.median(known_s), rules.explore_most * view.deadline_s)
    return max(latest_s, rules.explore_least * view.deadline_s)


def num_live(view: SweepView, rules: Rules, explore_s: float) -> int:
    """How many trials may train now: as many as have a place, from `explore_s` on fewer by the same factor in the
    same time, at last one.
    """
    most = max(view.atoms // min((trial.min_workers for trial in view.trials), default=1), 1)
    most = min(most, view.max_live or most)
    ends_s = view.deadline_s - rules.alone * (view.deadline_s - explore_s)
    left = min(max((ends_s - view.now_s) / (ends_s - explore_s), 0.0), 1.0)
    return max(math.ceil(math.pow(most, left) - 1e-9), 1)


def fails_rung(trial: TrialView, rungs: Mapping[int, Sequence[float]], reduction: int) -> bool:
    """Whether a trial was not among the best of those that came as far as its last rung, as of today."""
    if not trial.age:
        return False
    rung = int(reduction ** int(math.log(trial.age, reduction) + 1e-9))
    others = rungs.get(rung, ())
    good_enough = max(round(len(others) / reduction), 1)
    return len(others) > 1 and sum(score > trial.scores[rung - 1] for score in others) >= good_enough


def is_worth(trial: TrialView, workers: int, view: SweepView, rules: Rules) -> bool:
    """Whether a trial comes further with more workers, though it stands still while it gets them."""
    if trial.results_since_resize < rules.recharge:
        return False
    now, then = view.scaling.speedup(max(trial.workers, 1)), view.scaling.speedup(workers)
    return then * (view.left_s - view.costs.resize_s) > rules.worth * now * view.left_s


def _is_done(trial: TrialView) -> bool:
    return trial.epochs is not None and trial.age >= trial.epochs


def _take_turns(
    waiting: Sequence[TrialView], live: Sequence[TrialView], limit: int, view: SweepView, rules: Rules
) -> tuple[list[TrialView], list[TrialView]]:
    """Who begins, in the order they came, and who ends for them, the least promising first."""
    room, places = view.atoms - sum(trial.min_workers for trial in live), limit - len(live)
    losers = [trial for trial in reversed(live) if fails_rung(trial, view.rungs, rules.reduction)]
    start: list[TrialView] = []
    beaten: list[TrialView] = []
    for trial in waiting:
        while (room < trial.min_workers or places < 1) and losers:
            beaten.append(losers.pop(0))
            room, places = room + beaten[-1].min_workers, places + 1
        if room < trial.min_workers or places < 1:
            break
        start.append(trial)
        room, places = room - trial.min_workers, places - 1
    return start, beaten


def _fill(paused: Sequence[TrialView], live: Sequence[TrialView], limit: int, view: SweepView) -> list[TrialView]:
    """Who goes on after a pause, the most promising first, because others have ended."""
    room = view.atoms - sum(trial.min_workers for trial in live)
    start: list[TrialView] = []
    for trial in paused[: max(limit - len(live), 0)]:
        if trial.min_workers <= room:
            start.append(trial)
            room -= trial.min_workers
    return start


def _workers(
    trials: Sequence[TrialView], promises: Mapping[str, float], view: SweepView, rules: Rules
) -> dict[str, int]:
    """Workers by trial; a trial for which more are not worth it keeps what it has, and they go to the next."""
    most = {trial.trial_id: trial.max_workers for trial in trials}
    while True:
        claims = [
            WorkerDemand(
                trial_id=trial.trial_id,
                min_workers=trial.min_workers,
                max_workers=most[trial.trial_id],
                promise=promises[trial.trial_id],
            )
            for trial in trials
        ]
        shares = allot(claims, view.atoms, rules.policy)
        vain = {
            trial.trial_id: trial.workers
            for trial in trials
            if shares[trial.trial_id] > trial.workers >= trial.min_workers
            and not is_worth(trial, shares[trial.trial_id], view, rules)
        }
        if not vain:
            return shares
        most |= vain
