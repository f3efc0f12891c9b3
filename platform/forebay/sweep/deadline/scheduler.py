"""The deadline policy as a trial scheduler of Ray Tune.

After HyperSched (Liaw et al., arXiv 2001.02338), implemented from the paper; docs/adr/0016-deadline-scheduling.md
explains the differences. Beyond Tune's documented surface it uses `Trial.set_status` and the controller's
`_set_trial_status` (`ray_cluster/private_names.py`); tests/ray/sweep/test_deadline.py fails if they change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from forebay.errors import InvalidOption, whole_number
from forebay.runtime.formatting import time_text
from forebay.sweep.deadline.allocation import Policy
from forebay.sweep.deadline.policy import Decisions, Rules, SweepView, decide
from forebay.sweep.deadline.trial_stats import TrialStats
from forebay.sweep.deadline.trial_workers import TrialAllocation

EVERY_S = 0.25
REASON = "its workers go to trials with better forecasts"
NO_TIME = "the sweep's deadline leaves no time for another epoch"
AT_WORK = (Trial.PENDING, Trial.RUNNING)


class DeadlineScheduler(TrialScheduler):  # type: ignore[misc]
    """Find the best trial by a deadline.

    Many trials at first, then fewer trials with more workers each.

    Attributes:
        deadline_s: Seconds from the call of `run_sweep` until the sweep ends. A resumed sweep has the same time once
            more.
        slots: Number of workers for all trials together. None uses all of the cluster.
        policy: Distribution of the workers beyond each trial's minimum after exploring: to the best forecast (`top`),
            evenly (`uniform`), or by forecast (`softmax`).
        metric, mode: Those of the sweep, unless given here.
        rules: Constants of the rule.

    Raises `InvalidOption` for a deadline or a number of workers that is not positive, and for an unknown policy.
    """

    _supports_buffered_results = False

    def __init__(
        self,
        deadline_s: float,
        slots: int | None = None,
        policy: Policy = "top",
        *,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        rules: Rules | None = None,
    ) -> None:
        super().__init__()
        if not 0 < deadline_s < math.inf:
            raise InvalidOption(f"DeadlineScheduler({deadline_s=}) cannot work. Give a number of seconds, more than 0.")
        if slots is not None:
            whole_number("slots", slots, least=1)
        if policy not in ("top", "uniform", "softmax"):
            raise InvalidOption(f"policy={policy!r} is unknown. Choose 'top', 'uniform' or 'softmax'.")
        self.deadline_s = deadline_s
        self.clock: Callable[[], float] = time.monotonic
        self._rules = replace(rules or Rules(), policy=policy)
        self._metric, self._mode = metric, mode
        self._limit, self._slots = slots, slots or 1
        self._max_live: int | None = None
        self._bounds: tuple[int, int] = (1, self._slots)
        self._epochs: int | None = None
        self._experience = TrialStats()
        self._elapsed_s = 0.0
        self._began_at: float | None = None
        self._decisions = Decisions()
        self._decided_at: float | None = None
        self._allocations: Mapping[str, TrialAllocation] = {}
        self._follows_runs = False
        self._parting: dict[str, float] = {}
        self._given_up: dict[str, str] = {}
        self._is_out_of_time = False
        self.cut_off: set[str] = set()
        """Trials that were stopped since the deadline left no time for another epoch."""

    # Called by the sweep.

    def set_limits(
        self, slots: int, bounds: tuple[int, int], epochs: int | None = None, max_live: int | None = None
    ) -> None:
        """Set the limits before the first trial.

        Args:
            slots: Workers of the cluster.
            bounds: Smallest and largest number of workers of a trial.
            epochs: Epochs of the trials' job.
            max_live: Largest number of trials that train at once. None for as many as fit.

        Raises `InvalidOption` for `slots` of this scheduler that hold no trial.
        """
        if self._limit is not None and self._limit < bounds[0]:
            raise InvalidOption(
                f"DeadlineScheduler(slots={self._limit}) has no room for a trial, which starts with {bounds[0]} "
                f"workers. Give slots={bounds[0]} or more, or leave it out.",
                slots=self._limit,
            )
        self._slots = min(slots, self._limit or slots)
        self._bounds, self._epochs, self._max_live = bounds, epochs, max_live

    def restore_scores(
        self, elapsed_s: float, values: Mapping[str, Sequence[float]], mode: Literal["min", "max"]
    ) -> None:
        """Restore the elapsed time and the scores after a restart.

        `values` has the metric after each epoch of each trial.

        `mode` is the sweep's: Tune passes it only later.
        """
        self._elapsed_s = elapsed_s
        for trial_id, each in values.items():
            known = len(self._experience.history(trial_id).scores)
            for value in each[known:]:
                self._experience.note_score(trial_id, _score(value, mode))

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:  # noqa: ARG002
        """Set the metric and mode of the sweep.

        Returns False if they were given before.
        """
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric, self._mode = metric or self._metric, mode or self._mode  # type: ignore[assignment]
        return self._metric is not None and self._mode is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds that the sweep has run, over all restarts."""
        return self._elapsed_s + (self.clock() - self._began_at if self._began_at is not None else 0.0)

    @property
    def stopped(self) -> str | None:
        """Return a text if the deadline left trials no time.

        Otherwise None.
        """
        return f"the deadline of {time_text(self.deadline_s)} was reached" if self._is_out_of_time else None

    # Called by Tune.

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Hold a new trial back.

        Tune starts every PENDING trial as soon as its process has its resources.
        """
        if self._metric is None or self._mode not in ("min", "max"):
            raise InvalidOption(
                f"DeadlineScheduler needs a metric and a mode; it has {self._metric!r}, {self._mode!r}."
            )
        history = self._experience.history(trial.trial_id)
        if trial.is_finished():
            history.state = "over"
            return
        was_running = history.state == "running"
        history.state, history.workers = "paused" if history.scores else "waiting", 0
        if was_running:
            tune_controller._set_trial_status(trial, Trial.PAUSED)  # noqa: SLF001 - Tune's own schedulers do
        else:
            trial.set_status(Trial.PAUSED)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        """Decide whether a trial continues, pauses or stops.

        It has ended an epoch.
        """
        self._note_result(trial.trial_id, result)
        decisions = self._decide(tune_controller)
        if trial.trial_id in decisions.stop:
            self._note_cut(trial.trial_id)
            return str(TrialScheduler.STOP)
        if trial.trial_id in decisions.pause:
            history = self._experience.history(trial.trial_id)
            history.state, history.workers = "paused", 0
            return str(TrialScheduler.PAUSE)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Note an ended trial.

        Its last result arrives only here.
        """
        history = self._experience.history(trial.trial_id)
        if result.get("training_iteration", 0) > len(history.scores) and self._metric in result:
            self._note_result(trial.trial_id, result)
        self._end(trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002
        """Note a failed trial.

        One that is tried again is added again.
        """
        self._decided_at = None

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:  # noqa: ARG002
        """Note the end of a trial that did not train."""
        self._end(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the next trial to start or resume.

        Only if its workers are free. Also stops trials given up between results.
        """
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

    # Called by the allocator (`allocator.AllocatingScheduler`).

    def note_allocations(self, allocations: Mapping[str, TrialAllocation], slots: int) -> None:
        """Note the current allocations of the runs.

        `slots` is the number of workers of the sweep.
        """
        for trial_id in self._parting.keys() - allocations.keys():
            self._experience.note_cost("stop_s", self.clock() - self._parting.pop(trial_id))
        for trial_id, each in allocations.items():
            self._experience.note_allocations(trial_id, each)
        self._allocations, self._follows_runs = allocations, True
        self._slots = min(slots, self._limit or slots)

    def target_workers(self) -> Mapping[str, int]:
        """Return trial -> number of workers.

        For trials that train or are about to.
        """
        return self._decisions.workers

    def trials_to_stop(self) -> Mapping[str, str]:
        """Return trial -> reason, for runs to stop now.

        They save a checkpoint and end during an epoch.
        """
        given_up = self._given_up & self._allocations.keys()
        for trial_id in given_up:
            self._parting.setdefault(trial_id, self.clock())
        return {trial_id: self._given_up[trial_id] for trial_id in given_up}

    # Internal.

    def _decide(self, tune_controller: Any) -> Decisions:
        if self._began_at is None:
            self._began_at = self.clock()
        now_s = self.elapsed_s
        trial_ids = [trial.trial_id for trial in tune_controller.get_trials()]
        trial_views = self._experience.trial_views(trial_ids, now_s, self._bounds, self._epochs)
        view = SweepView(
            now_s=now_s,
            deadline_s=self.deadline_s,
            slots=self._slots,
            trials=trial_views,
            rungs=self._experience.rungs,
            costs=self._experience.costs,
            learning_curve=self._experience.learning_curve,
            speedup_model=self._experience.speedup_model,
            max_live=self._max_live,
            is_estimate=not self._experience.has_measured_epoch,
        )
        self._decisions, self._decided_at = decide(view, self._rules), self.clock()
        self._is_out_of_time |= bool(self._decisions.late)
        return self._decisions

    def _note_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self._experience.note_result(trial_id, result, self.elapsed_s)
        if self._metric is not None and self._metric in result:
            score = _score(result[self._metric], self._mode)
            self._experience.note_score(trial_id, score, result.get("training_iteration"))

    def _end(self, trial: Trial) -> None:
        history = self._experience.history(trial.trial_id)
        if history.state == "running" and self._follows_runs:
            self._parting.setdefault(trial.trial_id, self.clock())
        history.state, history.workers = "over", 0
        self._decided_at = None

    def _note_states(self, trials: Mapping[str, Trial]) -> None:
        """Note trials that Tune ended itself.

        After errors, and when the sweep is stopped.
        """
        for trial_id, trial in trials.items():
            if trial.is_finished():
                self._experience.history(trial_id).state = "over"

    def _end_given_up(self, tune_controller: Any, trials: Mapping[str, Trial]) -> None:
        """Stop trials that the policy has ended.

        Running ones through `trials_to_stop` if there is an allocator, others through Tune.

        Tune learns the end of a run from its last result. It accepts no result from a trial that had none before.
        """
        for trial_id in self._decisions.stop:
            trial = trials[trial_id]
            is_at_work = trial.status in AT_WORK and self._follows_runs
            if is_at_work:
                is_late = trial_id in self._decisions.late
                self._given_up.setdefault(trial_id, NO_TIME if is_late else REASON)
            if trial.is_finished():
                continue
            self._note_cut(trial_id)
            if not (is_at_work and self._experience.history(trial_id).scores):
                tune_controller.stop_trial(trial)

    def _note_cut(self, trial_id: str) -> None:
        if trial_id in self._decisions.late:
            self.cut_off.add(trial_id)

    def _least(self, trial_id: str) -> int:
        bounds = self._experience.history(trial_id).bounds or self._bounds
        return min(bounds[0], self._slots)

    def _room(self, trials: Mapping[str, Trial]) -> int:
        """Return the number of free workers.

        Not occupied by a run, and not reserved for a trial that is about to start.
        """
        coming = [each for each, trial in trials.items() if trial.status in AT_WORK and each not in self._allocations]
        if self._max_live is not None and len(coming) + len(self._allocations) >= self._max_live:
            return 0
        return self._slots - sum(run.occupied for run in self._allocations.values()) - sum(map(self._least, coming))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to resume from.

        The clock belongs to one process.
        """
        return self.__dict__ | {
            "_elapsed_s": self.elapsed_s,
            "_began_at": None,
            "_decided_at": None,
            "_allocations": {},
            "_parting": {},
            "_follows_runs": False,
            "_decisions": Decisions(),
            "clock": time.monotonic,
        }


def _score(value: float, mode: str | None) -> float:
    return value if mode == "max" else -value
