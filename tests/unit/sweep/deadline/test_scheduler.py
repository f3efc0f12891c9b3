"""`DeadlineScheduler` as Tune calls it, with trials that consist of a status only."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from forebay.errors import InvalidOption
from forebay.sweep.deadline.scheduler import NO_TIME, DeadlineScheduler
from forebay.sweep.deadline.trial_stats import PRIOR_COSTS, percentile_90
from forebay.sweep.deadline.trial_workers import TrialAllocation


class StatusTrial:
    def __init__(self, trial_id: str) -> None:
        self.trial_id, self.status = trial_id, Trial.PENDING

    def set_status(self, status: str) -> None:
        self.status = status

    def is_finished(self) -> bool:
        return self.status in (Trial.TERMINATED, Trial.ERROR)


class SchedulerController:
    """Tune's controller: adds trials, starts those that the scheduler chooses, and reports results."""

    def __init__(self, scheduler: DeadlineScheduler, trials: int) -> None:
        self.now, self.requeued = 100.0, 0
        self.scheduler = scheduler
        scheduler.clock = lambda: self.now
        self.trials = [StatusTrial(str(number)) for number in range(trials)]
        for trial in self.trials:
            scheduler.on_trial_add(self, trial)

    def get_trials(self) -> list[StatusTrial]:
        return self.trials

    def stop_trial(self, trial: StatusTrial) -> None:
        if trial.status == Trial.RUNNING:
            self.scheduler.on_trial_complete(self, trial, {})
        else:
            self.scheduler.on_trial_remove(self, trial)
        trial.status = Trial.TERMINATED

    def _set_trial_status(self, trial: StatusTrial, status: str) -> None:
        self.requeued += 1
        trial.status = status

    def start_all(self) -> list[str]:
        started = []
        while (trial := self.scheduler.choose_trial_to_run(self)) is not None:
            trial.status = Trial.RUNNING
            started.append(trial.trial_id)
        return started

    def report(self, number: int, loss: float, **facts: Any) -> str:
        trial = self.trials[number]
        decision = self.scheduler.on_trial_result(self, trial, {"loss": loss, "workers": 1, "epoch_s": 5.0, **facts})
        if decision != TrialScheduler.CONTINUE:
            trial.status = Trial.PAUSED if decision == TrialScheduler.PAUSE else Trial.TERMINATED
        return decision

    @property
    def statuses(self) -> list[str]:
        return [trial.status for trial in self.trials]


def begun(trials: int = 6, slots: int = 4, deadline_s: float = 100.0) -> SchedulerController:
    scheduler = DeadlineScheduler(deadline_s, slots, metric="loss", mode="min")
    scheduler.set_limits(slots, (1, slots), epochs=1000)
    return SchedulerController(scheduler, trials)


def test_trials_are_held_back_until_they_have_a_worker() -> None:
    controller = begun()
    assert controller.statuses == [Trial.PAUSED] * 6
    assert controller.start_all() == ["0", "1", "2", "3"]
    assert controller.start_all() == []


def test_a_trial_begins_only_where_nobody_holds_its_worker() -> None:
    controller = begun(trials=2, slots=2)
    full = TrialAllocation(target=1, world_size=2, min_workers=1, max_workers=2)
    controller.scheduler.note_allocations({"gone": full}, 2)
    assert controller.start_all() == []
    controller.scheduler.note_allocations({}, 2)
    assert controller.start_all() == ["0", "1"]


def test_a_result_decides_who_goes_on() -> None:
    controller = begun()
    controller.start_all()
    # Less loss is better. Without other trials there is no comparison to lose.
    assert [controller.report(0, 0.2), controller.report(1, 0.9)] == [TrialScheduler.CONTINUE, TrialScheduler.STOP]
    controller.scheduler.on_trial_complete(controller, controller.trials[1], {})
    assert controller.start_all() == ["4"]
    controller.now += 95.0
    assert controller.report(2, 0.5) == TrialScheduler.PAUSE
    assert controller.report(0, 0.1) == TrialScheduler.CONTINUE
    assert controller.scheduler.target_workers()["0"] > 1


def test_everything_ends_at_the_deadline() -> None:
    controller = begun()
    controller.start_all()
    assert controller.scheduler.stopped is None
    controller.now += 99.5
    controller.start_all()
    assert controller.statuses == [Trial.TERMINATED] * 6
    assert controller.scheduler.stopped == "the deadline of 1:40 was reached"
    assert controller.scheduler.cut_off == set("012345")


def test_losers_are_not_cut_off() -> None:
    controller = begun(trials=5)
    controller.start_all()
    assert [controller.report(0, 0.2), controller.report(1, 0.9)] == [TrialScheduler.CONTINUE, TrialScheduler.STOP]
    controller.scheduler.on_trial_complete(controller, controller.trials[1], {})
    controller.now += 99.5
    assert controller.report(0, 0.1) == TrialScheduler.STOP
    assert controller.scheduler.cut_off == {"0"}


def test_runs_that_are_followed_commit_first() -> None:
    controller = begun(trials=1)
    controller.start_all()
    controller.report(0, 0.5)
    allocations = {"0": TrialAllocation(target=1, world_size=1, min_workers=1, max_workers=4)}
    controller.scheduler.note_allocations(allocations, 4)
    controller.now += 99.5
    controller.start_all()
    assert controller.statuses == [Trial.RUNNING]
    assert controller.scheduler.trials_to_stop() == {"0": NO_TIME}
    controller.now += 0.25
    controller.scheduler.note_allocations({}, 4)
    # From now on, the scheduler knows how long an end takes.
    assert controller.scheduler._experience.costs.stop_s == pytest.approx(0.25)


def test_a_run_without_a_result_is_ended_and_not_waited_for() -> None:
    """Its last result would have no metric, which Tune does not accept."""
    controller = begun(trials=1)
    controller.start_all()
    controller.scheduler.note_allocations({}, 4)
    controller.now += 99.5
    controller.start_all()
    assert controller.statuses == [Trial.TERMINATED]
    # Its coordinator exists only from now on.
    controller.scheduler.note_allocations(
        {"0": TrialAllocation(target=1, world_size=0, min_workers=1, max_workers=4)}, 4
    )
    assert set(controller.scheduler.trials_to_stop()) == {"0"}


def test_costs_are_measured_once_each() -> None:
    controller = begun()
    controller.start_all()
    for loss in (0.3, 0.2, 0.1):
        controller.report(0, loss, startup_s=3.0, resize_s=0.4)
    experience = controller.scheduler._experience
    assert (experience.costs.startup_s, experience.costs.resize_s) == (3.0, 0.4)
    assert experience.costs.stop_s == PRIOR_COSTS.stop_s
    assert experience._costs["resize_s"] == [0.4]
    assert percentile_90([float(each) for each in range(1, 11)], 0.0) == 9.0


def test_a_trial_that_failed_and_is_tried_again_waits_its_turn() -> None:
    controller = begun(trials=1)
    controller.start_all()
    trial = controller.trials[0]
    controller.scheduler.on_trial_error(controller, trial)
    trial.status = Trial.PENDING
    controller.scheduler.on_trial_add(controller, trial)
    assert (controller.statuses, controller.requeued) == ([Trial.PAUSED], 1)
    assert controller.start_all() == ["0"]


def test_pickled_it_keeps_its_time_and_scores() -> None:
    controller = begun()
    controller.start_all()
    controller.report(0, 0.3)
    controller.now += 40.0
    again = pickle.loads(pickle.dumps(controller.scheduler))
    assert again.elapsed_s == pytest.approx(40.0)
    later = SchedulerController(again, 6)
    later.now = 5.0
    assert "0" in later.start_all()
    later.now += 59.5
    later.start_all()
    assert later.statuses == [Trial.TERMINATED] * 6


def test_recalled_it_goes_on_where_it_was() -> None:
    scheduler = DeadlineScheduler(100.0, 2, metric="loss", mode="min")
    scheduler.set_limits(8, (1, 8), epochs=1000)
    scheduler.restore_scores(60.0, {"1": [0.5, 0.4], "2": [0.9]}, "min")
    controller = SchedulerController(scheduler, 3)
    # No new trial begins so late. Trials under way continue, the better one first.
    assert controller.start_all() == ["1"]
    assert scheduler.elapsed_s == pytest.approx(60.0)


def test_what_is_recalled_before_tune_tells_the_mode_has_its_sign() -> None:
    scheduler = DeadlineScheduler(100.0, 2)
    scheduler.set_limits(8, (1, 8), epochs=1000)
    scheduler.restore_scores(60.0, {"0": [0.5, 0.6], "1": [0.8, 0.9]}, "max")
    assert scheduler.set_search_properties("auc", "max")
    assert SchedulerController(scheduler, 3).start_all() == ["1"]


def test_no_more_trials_train_at_once_than_may() -> None:
    scheduler = DeadlineScheduler(100.0, metric="loss", mode="min")
    scheduler.set_limits(8, (1, 8), epochs=1000, max_live=2)
    controller = SchedulerController(scheduler, 4)
    assert controller.start_all() == ["0", "1"]
    # A trial that still commits counts.
    controller.stop_trial(controller.trials[0])
    parting = {each: TrialAllocation(target=1, world_size=1, min_workers=1, max_workers=8) for each in ("0", "1")}
    scheduler.note_allocations(parting, 8)
    assert controller.start_all() == []
    parting.pop("0")
    scheduler.note_allocations(parting, 8)
    assert controller.start_all() == ["2"]


def test_nobody_is_given_up_by_a_guess() -> None:
    controller = begun(trials=3, slots=2, deadline_s=12.0)
    assert controller.start_all() == ["0", "1"]
    controller.now += 9.0
    assert controller.start_all() == []
    assert controller.statuses == [Trial.RUNNING, Trial.RUNNING, Trial.PAUSED]
    # An epoch took 5 s: no other trial ends one in the 2 s that are left.
    assert controller.report(0, 0.5) == TrialScheduler.STOP
    controller.start_all()
    assert controller.statuses[2] == Trial.TERMINATED
    assert controller.scheduler.stopped == "the deadline of 0:12 was reached"


def test_metric_and_mode_come_from_the_sweep_once() -> None:
    scheduler = DeadlineScheduler(10.0)
    assert scheduler.set_search_properties("loss", "min")
    assert not scheduler.set_search_properties("other", "max")
    with pytest.raises(InvalidOption, match="None, None"):
        SchedulerController(DeadlineScheduler(10.0), 1)


@pytest.mark.parametrize(
    "options",
    [
        {"deadline_s": 0.0},
        {"deadline_s": float("inf")},
        {"deadline_s": 5.0, "slots": 0},
        {"deadline_s": 5.0, "slots": 1.5},
        {"deadline_s": 5.0, "policy": "best"},
    ],
)
def test_impossible_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        DeadlineScheduler(**options)


def test_epochs_that_are_trained_again_count_once() -> None:
    scheduler = DeadlineScheduler(10_000.0, 1, metric="loss", mode="min")
    scheduler.set_limits(1, (1, 1), epochs=10)
    controller = SchedulerController(scheduler, 1)
    controller.start_all()
    for epoch in range(1, 7):
        controller.report(0, 1 / epoch, training_iteration=epoch)
    (trial,) = controller.trials
    # Its process is lost. The newest checkpoint in storage is of epoch 2.
    scheduler.on_trial_error(controller, trial)
    trial.status = Trial.PENDING
    scheduler.on_trial_add(controller, trial)
    controller.start_all()
    decisions = [controller.report(0, 1 / epoch, training_iteration=epoch, epochs=10) for epoch in range(3, 11)]
    assert decisions == [TrialScheduler.CONTINUE] * 7 + [TrialScheduler.STOP]
    assert {epoch: len(scores) for epoch, scores in scheduler._experience.rungs.items()} == dict.fromkeys(
        range(1, 11), 1
    )


def test_trials_of_more_epochs_than_the_sample_job_go_on() -> None:
    scheduler = DeadlineScheduler(1000.0, 1, metric="auc", mode="max")
    scheduler.set_limits(1, (1, 1), epochs=1)
    scheduler.restore_scores(0.0, {"1": [0.5, 0.6]}, "max")
    controller = SchedulerController(scheduler, 2)
    assert controller.start_all() == ["0"]
    result = {"training_iteration": 1, "auc": 0.5, "epoch_s": 1.0, "workers": 1, "epochs": 4}
    assert scheduler.on_trial_result(controller, controller.trials[0], result) == TrialScheduler.CONTINUE
    assert controller.start_all() == [] and controller.trials[1].status == Trial.PAUSED


def test_slots_that_hold_no_trial_are_refused() -> None:
    scheduler = DeadlineScheduler(10.0, slots=1)
    with pytest.raises(InvalidOption, match=r"slots=1\) has no room for a trial, .*Give slots=2 or more"):
        scheduler.set_limits(4, (2, 2))
