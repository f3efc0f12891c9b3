"""Ray Tune's synchronous schedulers, kept from waiting forever.

HyperBand and synchronous population-based training let every trial of a round wait for the others. Unchanged, they wait
forever in three cases: one of these trials has failed, it was over before a restart, or all are further than a new
scheduler expects. Beyond Tune's documented surface (`ray_cluster/private_names.py`) it uses the brackets of HyperBand,
`_synch`, `_trial_state` and `_next_perturbation_sync` of population-based training, and the controller's set of live
trials. tests/unit/sweep/tune/test_sync_schedulers.py fails if one of them changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining, TrialScheduler


def end_stalled_rounds(scheduler: TrialScheduler) -> None:
    """Make `scheduler` end rounds without running trials.

    A round ends as soon as no trial can still train in it.
    """
    if isinstance(scheduler, HyperBandScheduler):
        _skip_finished_trials(scheduler)
        _when_all_paused(scheduler, lambda controller: _halve(scheduler, controller))
    elif is_synchronous(scheduler):
        _when_all_paused(scheduler, lambda controller: _perturb(scheduler, controller))


def is_synchronous(scheduler: TrialScheduler) -> bool:
    """Return whether this is synchronous population-based training.

    Its trials wait for each other.
    """
    return isinstance(scheduler, PopulationBasedTraining) and bool(scheduler._synch)  # noqa: SLF001 - see above


def _skip_finished_trials(scheduler: HyperBandScheduler) -> None:
    """Skip finished trials after a restart.

    Tune adds them to a bracket too, where they would never report again.
    """
    add = scheduler.on_trial_add

    def on_trial_add(controller: Any, trial: Trial) -> None:
        if not trial.is_finished():
            add(controller, trial)

    scheduler.on_trial_add = on_trial_add


def _when_all_paused(scheduler: TrialScheduler, end_round: Callable[[Any], None]) -> None:
    choose = scheduler.choose_trial_to_run

    def choose_trial_to_run(controller: Any, **options: Any) -> Trial | None:
        live = controller.get_live_trials()
        # Tune does not remove failed trials from it.
        live.difference_update([trial for trial in live if trial.is_finished()])
        chosen = choose(controller, **options)
        if chosen is None and live and all(trial.status == Trial.PAUSED for trial in live):
            end_round(controller)
            chosen = choose(controller, **options)
        return chosen

    scheduler.choose_trial_to_run = choose_trial_to_run


def _halve(scheduler: HyperBandScheduler, controller: Any) -> None:
    for bracket in [bracket for band in scheduler._hyperbands for bracket in band if bracket is not None]:  # noqa: SLF001
        if bracket.current_trials() and bracket.cur_iter_done():
            scheduler._process_bracket(controller, bracket)  # noqa: SLF001


def _perturb(scheduler: Any, controller: Any) -> None:
    live = controller.get_live_trials()
    states = {trial: scheduler._trial_state[trial] for trial in live}  # noqa: SLF001
    due = [
        trial
        for trial, state in states.items()
        if state.last_result is not None
        and state.last_train_time - state.last_perturbation_time >= scheduler._perturbation_interval  # noqa: SLF001
    ]
    if due:
        # As if the last of them had reported only now.
        last = max(due, key=lambda trial: trial.trial_id)
        scheduler.on_trial_result(controller, last, states[last].last_result)
    furthest = max(state.last_train_time for state in states.values())
    if min(state.last_train_time for state in states.values()) >= scheduler._next_perturbation_sync:  # noqa: SLF001
        scheduler._next_perturbation_sync = furthest + scheduler._perturbation_interval  # noqa: SLF001
