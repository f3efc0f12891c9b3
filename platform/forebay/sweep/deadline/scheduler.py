"""`DeadlineScheduler`: the rule of `deadline.py` as a trial scheduler of Ray Tune.

After HyperSched (Liaw et al., arXiv 2001.02338), written from the paper; docs/adr/0016-deadline-scheduling.md says what
differs. Of Tune's inside it uses `Trial.set_status` and the controller's `_set_trial_status`, checked on Ray 2.60;
tests/ray/sweep/test_deadline.py fails when they move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from forebay.errors import InvalidOption
from forebay.formatting import time_text
from forebay.sweep.deadline.allocation import Policy
from forebay.sweep.deadline.policy import Decisions, Rules, SweepView, decide
from forebay.sweep.deadline.trial_stats import TrialStats
from forebay.sweep.deadline.trial_workers import TrialAllocation

EVERY_S = 0.25
REASON = "its workers are of more use to other trials"
NO_TIME = "the sweep's deadline leaves no time for another epoch"
AT_WORK = (Trial.PENDING, Trial.RUNNING)


class DeadlineScheduler(TrialScheduler):  # type: ignore[misc]
    """The best trial by a deadline: many trials at first, then ever fewer, with ever more workers each.

    Attributes:
        deadline_s: Seconds from the call of `run_sweep` until the sweep ends. A sweep that is run again has as many
            once more.
        atoms: How many workers there are for all trials together; None takes as many as the cluster has.
        policy: Who gets the workers beyond each trial's minimum once trials are dropped: the most promising one
            (`top`), all alike (`uniform`), or each by its promise (`softmax`).
        metric, mode: Those of the sweep, unless given here.
        rules: The constants of the rule.

    Raises `InvalidOption` for a deadline or a number of workers that is not positive, and an unknown policy.
    """

    _supports_buffered_results = False

    def __init__(
        self,
        deadline_s: float,
        atoms: int | None = None,
        policy: Policy = "top",
        *,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        rules: Rules | None = None,
    ) -> None:
        super().__init__()
        if not deadline_s > 0 or (atoms is not None and atoms < 1):
            raise InvalidOption(f"DeadlineScheduler({deadline_s=}, {atoms=}) cannot work. Give more than 0 of both.")
        if policy not in ("top", "uniform", "softmax"):
            raise InvalidOption(f"policy={policy!r} is unknown. Choose 'top', 'uniform' or 'softmax'.")
        self.deadline_s = deadline_s
        self.clock: Callable[[], float] = time.monotonic
        self._rules = replace(rules or Rules(), policy=policy)
        self._metric, self._mode = metric, mode
        self._limit, self._atoms = atoms, atoms or 1
        self._max_live: int | None = None
        self._bounds: tuple[int, int] = (1, self._atoms)
        self._epochs: int | None = None
        self._experience = TrialStats()
        self._elapsed_s = 0.0
        self._began_at: float | None = None
        self._decisions = Decisions()
        self._decided_at: float | None = None
        self._held: Mapping[str, TrialAllocation] = {}
        self._follows_runs = False
        self._parting: dict[str, float] = {}
        self._given_up: dict[str, str] = {}
        self._is_out_of_time = False

    # What the sweep tells.

    def prepare(
        self, atoms: int, bounds: tuple[int, int], epochs: int | None = None, max_live: int | None = None
    ) -> None:
        """Before the first trial: workers of the cluster, least and most workers of a trial, epochs of its job, and
        how many trials may train at once, None for as many as have a place.
        """
        self._atoms = min(atoms, self._limit or atoms)
        self._bounds, self._epochs, self._max_live = bounds, epochs, max_live

    def recall(self, elapsed_s: float, values: Mapping[str, Sequence[float]], mode: Literal["min", "max"]) -> None:
        """After a restart: how long the sweep has run, and the metric after each epoch of each of its trials.

        `mode` is the sweep's: Tune tells it only later.
        """
        self._elapsed_s = elapsed_s
        for trial_id, each in values.items():
            known = len(self._experience.course(trial_id).scores)
            for value in each[known:]:
                self._experience.note_score(trial_id, _score(value, mode))

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:  # noqa: ARG002
        """Tune's: the sweep's metric and mode; False where they were given before."""
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric, self._mode = metric or self._metric, mode or self._mode  # type: ignore[assignment]
        return self._metric is not None and self._mode is not None

    @property
    def elapsed_s(self) -> float:
        """For how long the sweep has run, over all restarts."""
        return self._elapsed_s + (self.clock() - self._began_at if self._began_at is not None else 0.0)

    @property
    def stopped(self) -> str | None:
        """That trials had no time to train on, as a text; None as long as all had."""
        return f"the deadline of {time_text(self.deadline_s)} was reached" if self._is_out_of_time else None

    # What Tune tells and asks.

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Hold a new trial back: Tune starts whoever is PENDING, as soon as its process has a place."""
        if self._metric is None or self._mode not in ("min", "max"):
            raise InvalidOption(
                f"DeadlineScheduler needs a metric and a mode; it has {self._metric!r}, {self._mode!r}."
            )
        course = self._experience.course(trial.trial_id)
        if trial.is_finished():
            course.state = "over"
            return
        was_running = course.state == "running"
        course.state, course.workers = "paused" if course.scores else "waiting", 0
        if was_running:
            tune_controller._set_trial_status(trial, Trial.PAUSED)  # noqa: SLF001 - Tune's own schedulers do
        else:
            trial.set_status(Trial.PAUSED)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        """Whether a trial that has ended an epoch goes on, waits or ends."""
        self._note_result(trial.trial_id, result)
        decisions = self._decide(tune_controller)
        if trial.trial_id in decisions.stop:
            return str(TrialScheduler.STOP)
        if trial.trial_id in decisions.pause:
            course = self._experience.course(trial.trial_id)
            course.state, course.workers = "paused", 0
            return str(TrialScheduler.PAUSE)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> None:  # noqa: ARG002
        """A trial has ended. Its last result comes here alone."""
        course = self._experience.course(trial.trial_id)
        if result.get("training_iteration", 0) > len(course.scores) and self._metric in result:
            self._note_result(trial.trial_id, result)
        self._end(trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002
        """A trial has failed; one that is tried again is added anew."""
        self._decided_at = None

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002
        """A trial that did not train has ended."""
        self._end(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Who begins or goes on next, if its workers are free. Also ends whom the rule gives up between its results."""
        trials = {trial.trial_id: trial for trial in tune_controller.get_trials()}
        self._note_states(trials)
        now = self.clock()
        if self._decided_at is None or now - self._decided_at >= EVERY_S:
            self._decide(tune_controller)
        self._end_given_up(tune_controller, trials)
        for trial_id in self._decisions.start:
            trial = trials[trial_id]
            if trial.status == Trial.PAUSED and self._room(trials) >= self._least(trial_id):
                self._experience.note_start(trial_id, self.elapsed_s)
                self._decided_at = None
                return trial
        return None

    def debug_string(self) -> str:
        """One line for Tune's log."""
        return f"DeadlineScheduler: {self.elapsed_s:.0f} of {self.deadline_s:g} s, {dict(self._decisions.workers)}"

    # What the allotment tells and asks (`allotting.Shares`).

    def note_held(self, held: Mapping[str, TrialAllocation], atoms: int) -> None:
        """What the trials' runs have now, of how many there are."""
        for trial_id in self._parting.keys() - held.keys():
            self._experience.note_cost("stop_s", self.clock() - self._parting.pop(trial_id))
        for trial_id, each in held.items():
            self._experience.note_held(trial_id, each)
        self._held, self._follows_runs = held, True
        self._atoms = min(atoms, self._limit or atoms)

    def shares(self) -> Mapping[str, int]:
        """Trial -> workers, for those that train or are about to."""
        return self._decisions.workers

    def ending(self) -> Mapping[str, str]:
        """Trial -> why: those whose runs shall commit and end in the middle of an epoch."""
        given_up = self._given_up & self._held.keys()
        for trial_id in given_up:
            self._parting.setdefault(trial_id, self.clock())
        return {trial_id: self._given_up[trial_id] for trial_id in given_up}

    # Inside.

    def _decide(self, tune_controller: Any) -> Decisions:
        if self._began_at is None:
            self._began_at = self.clock()
        now_s = self.elapsed_s
        trial_ids = [trial.trial_id for trial in tune_controller.get_trials()]
        standings = self._experience.standings(trial_ids, now_s, self._bounds, self._epochs)
        view = SweepView(
            now_s=now_s,
            deadline_s=self.deadline_s,
            atoms=self._atoms,
            trials=standings,
            rungs=self._experience.rungs,
            costs=self._experience.costs,
            gains=self._experience.gains,
            scaling=self._experience.scaling,
            max_live=self._max_live,
            is_guess=not self._experience.has_seen_epoch,
        )
        self._decisions, self._decided_at = decide(view, self._rules), self.clock()
        self._is_out_of_time |= bool(self._decisions.late)
        return self._decisions

    def _note_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self._experience.note_result(trial_id, result, self.elapsed_s)
        if self._metric is not None and self._metric in result:
            self._experience.note_score(trial_id, _score(result[self._metric], self._mode))

    def _end(self, trial: Trial) -> None:
        course = self._experience.course(trial.trial_id)
        if course.state == "running" and self._follows_runs:
            self._parting.setdefault(trial.trial_id, self.clock())
        course.state, course.workers = "over", 0
        self._decided_at = None

    def _note_states(self, trials: Mapping[str, Trial]) -> None:
        """Tune ends trials on its own, too: at errors, and when somebody stops the sweep."""
        for trial_id, trial in trials.items():
            if trial.is_finished():
                self._experience.course(trial_id).state = "over"

    def _end_given_up(self, tune_controller: Any, trials: Mapping[str, Trial]) -> None:
        """Those that train end by `ending`, where somebody follows their runs; the others are stopped by Tune.

        Tune hears of the end of a run by its last result; of one without any it would take none.
        """
        for trial_id in self._decisions.stop:
            trial = trials[trial_id]
            is_at_work = trial.status in AT_WORK and self._follows_runs
            if is_at_work:
                is_late = trial_id in self._decisions.late
                self._given_up.setdefault(trial_id, NO_TIME if is_late else REASON)
            if not trial.is_finished() and not (is_at_work and self._experience.course(trial_id).scores):
                tune_controller.stop_trial(trial)

    def _least(self, trial_id: str) -> int:
        bounds = self._experience.course(trial_id).bounds or self._bounds
        return min(bounds[0], self._atoms)

    def _room(self, trials: Mapping[str, Trial]) -> int:
        """Workers that nobody has: neither a run, nor a trial that is about to begin one."""
        coming = [each for each, trial in trials.items() if trial.status in AT_WORK and each not in self._held]
        if self._max_live is not None and len(coming) + len(self._held) >= self._max_live:
            return 0
        return self._atoms - sum(run.occupied for run in self._held.values()) - sum(map(self._least, coming))

    def __getstate__(self) -> dict[str, Any]:
        """Where the sweep stands; its clock is that of one process."""
        return self.__dict__ | {
            "_elapsed_s": self.elapsed_s,
            "_began_at": None,
            "_decided_at": None,
            "_held": {},
            "_parting": {},
            "_follows_runs": False,
            "_decisions": Decisions(),
            "clock": time.monotonic,
        }


def _score(value: float, mode: str | None) -> float:
    return value if mode == "max" else -value
