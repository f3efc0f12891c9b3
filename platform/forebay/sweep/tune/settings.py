"""What Ray Tune is set to while a sweep runs, and what is put back afterwards.

What goes beyond Tune's documented surface is in this file, checked on Ray 2.60: `Trial.handle_error` and
`Trial.max_failures` (an exception of a job is no reason to try again, a lost process is), the controller's
`_actor_force_cleanup_timeout` (the last trials commit as all others do), its `_maybe_cache_trial_actor` (a process
that is kept for a later trial lets go of its own), `_trial_task_failure` and `_resetting_trials` (such a process that
is lost is replaced), `_schedule_trial_stop`, `_staged_trials` and `_unstage_trial_with_resources` (no process is kept
for a trial that was stopped). tests/ray/sweep fails when one of them moves.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType

from ray.exceptions import RayActorError, RayTaskError
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback

from forebay.ray_cluster.session import environment_defaults
from forebay.sweep.tune.stopper import PARTING_S

TUNE_ENVIRONMENT: Mapping[str, str] = {
    # The record is what a sweep writes; Tune's loggers write three files per trial beside it.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ctrl-C lets all trials commit first, which takes longer than Tune waits.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune's own tables; `live.py` shows ours.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # 10 s by default: what a driver that is killed forgets of its trials.
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    # A trial that ends before its first epoch has no metric: Tune would give up the sweep. Trials check their own.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Recorder and allotment are called at every turn.
    "TUNE_WARN_THRESHOLD_S": "10",
}
LOGGERS = ("ray.tune", "ray.air", "ray.train")
FORCE, KEEP, FAIL = "_actor_force_cleanup_timeout", "_maybe_cache_trial_actor", "_trial_task_failure"
STOP = "_schedule_trial_stop"


class Silent(TrialProgressCallback):  # type: ignore[misc]
    """Tune adds one of these that prints, at any verbosity, of trials that end before they begin; unless it has one."""

    def _print(self, msg: str, *args: object, **kwargs: object) -> None:
        """Nothing."""


@contextmanager
def tune_settings() -> Iterator[None]:
    """For the length of the block Tune is as a sweep needs it."""
    with ExitStack() as stack:
        for each in (_quiet(), environment_defaults(TUNE_ENVIRONMENT)):
            stack.enter_context(each)
        for changed in (
            _jobs_fail_once(),
            _last_ones_commit(),
            _kept_ones_let_go(),
            _lost_ones_fail_once(),
            _stopped_ones_wait_for_nothing(),
        ):
            stack.enter_context(changed)
        yield


@contextmanager
def interrupts(interrupt: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C asks for an end, the second one is as ever. Tune takes SIGUSR1 for its own: it is put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - Python's signature
        signal.signal(signal.SIGINT, kept[signal.SIGINT])
        interrupt()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        for number, was in kept.items():
            signal.signal(number, was)


@contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong is in the record, or raised."""
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _jobs_fail_once() -> Iterator[None]:
    """Let `max_failures` count lost processes alone: an exception of a job would be raised again."""
    handle_error = Trial.handle_error

    def handle(trial: Trial, exc: Exception | None = None) -> None:
        handle_error(trial, exc)
        if isinstance(exc, RayTaskError) and not isinstance(exc.as_instanceof_cause(), RayActorError):
            trial.max_failures = 0

    Trial.handle_error = handle
    try:
        yield
    finally:
        Trial.handle_error = handle_error


@contextmanager
def _last_ones_commit() -> Iterator[None]:
    """Tune kills whoever has not ended ten seconds after the last trial was stopped, in the middle of its commit."""

    def keep(controller: TuneController, seconds: float) -> None:
        """Tune sets its own, and takes it from what it has saved; this one stays."""

    setattr(TuneController, FORCE, property(lambda _: PARTING_S, keep))
    try:
        yield
    finally:
        delattr(TuneController, FORCE)


def _kept_ones_let_go() -> AbstractContextManager[None]:
    """Have a process that Tune keeps for a later trial end its run: it would hold its workers until that one comes."""
    cache = getattr(TuneController, KEEP)

    def cache_and_clean(controller: TuneController, trial: Trial) -> bool:
        actor = trial.temporary_state.ray_actor
        is_cached = bool(cache(controller, trial))
        if is_cached and actor is not None:
            actor.cleanup.remote()
        return is_cached

    return _instead(KEEP, cache_and_clean)


def _lost_ones_fail_once() -> AbstractContextManager[None]:
    """Have a process that was lost while it was kept for a later trial be replaced, as any other.

    Tune hears of it twice, from the process and from what it was asked to do: by the second time the trial waits for
    another process already, and would fail for good. And it goes on believing that the first is about to be ready.
    """
    fail = getattr(TuneController, FAIL)

    def fail_once(controller: TuneController, trial: Trial, exception: Exception) -> None:
        controller._resetting_trials.discard(trial)  # noqa: SLF001
        if not (isinstance(exception, RayActorError) and trial.status == Trial.PENDING):
            fail(controller, trial, exception)

    return _instead(FAIL, fail_once)


def _stopped_ones_wait_for_nothing() -> AbstractContextManager[None]:
    """Have Tune forget that a trial waits for a process, when it is stopped before it has one.

    It would keep a process of that size for it, and a trial of another size might wait for those CPUs to the end.
    """
    stop = getattr(TuneController, STOP)

    def unstage_and_stop(controller: TuneController, trial: Trial, exception: Exception | None = None) -> None:
        if trial in controller._staged_trials:  # noqa: SLF001
            controller._unstage_trial_with_resources(trial)  # noqa: SLF001
        stop(controller, trial, exception)

    return _instead(STOP, unstage_and_stop)


@contextmanager
def _instead(method: str, ours: Callable[..., object]) -> Iterator[None]:
    was = getattr(TuneController, method)
    setattr(TuneController, method, ours)
    try:
        yield
    finally:
        setattr(TuneController, method, was)
