"""Settings of Ray Tune while a sweep runs.

All of them are restored afterwards.

All use of Tune beyond its documented surface for running trials is in this file, and listed in
`ray_cluster/private_names.py`:
- `Trial.handle_error` and `Trial.max_failures`: an exception of a job is final, a lost process is not
- the controller's `_actor_force_cleanup_timeout`: the last trials save a checkpoint like all others
- `_maybe_cache_trial_actor`: a cached process ends its run
- `_trial_task_failure` and `_resetting_trials`: a lost cached process is replaced
- `_schedule_trial_stop`, `_staged_trials` and `_unstage_trial_with_resources`: no process is kept for a stopped trial
- `_get_placeholder`: values beside placeholders in a config stay

tests/ray/sweep fails if one of them changes.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.impl import placeholder
from ray.tune.progress_reporter import TrialProgressCallback

from forebay.errors import InvalidOption
from forebay.ray_cluster.session import environment_defaults
from forebay.sweep.tune.stopper import STOP_TIMEOUT_S

TUNE_ENVIRONMENT: Mapping[str, str] = {
    # A sweep writes its own record; Tune's loggers would add three files per trial.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # After Ctrl-C all trials save a checkpoint first, which takes longer than Tune waits.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune's own tables; `report/live.py` shows ours.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    # 10 s by default: state that a killed driver loses.
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    # A trial that ends before its first epoch has no metric, and Tune would end the sweep. Trials check their own.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # The recorder and the allocator are called at every turn.
    "TUNE_WARN_THRESHOLD_S": "10",
}
LOGGERS = ("ray.tune", "ray.air", "ray.train")
FORCE, KEEP, FAIL = "_actor_force_cleanup_timeout", "_maybe_cache_trial_actor", "_trial_task_failure"
STOP, FIND = "_schedule_trial_stop", "_get_placeholder"
_ONE_SWEEP = threading.Lock()


class SilentReporter(TrialProgressCallback):  # type: ignore[misc]
    """Reporter that prints nothing.

    Without a reporter, Tune prints trials that end before they start.
    """

    def _print(self, msg: str, *args: object, **kwargs: object) -> None:
        """Print nothing."""


@contextmanager
def tune_settings() -> Iterator[None]:
    """Settings of Tune for the duration of the block.

    Raises `InvalidOption` during another such block: Tune would start trials of one sweep with the job of the other.
    """
    if not _ONE_SWEEP.acquire(blocking=False):
        raise InvalidOption(
            "another sweep is running in this process, and Ray Tune runs one at a time. Wait for its end, or run this "
            "one in a process of its own."
        )
    with ExitStack() as stack:
        stack.callback(_ONE_SWEEP.release)
        for each in (_quiet_loggers(), environment_defaults(TUNE_ENVIRONMENT)):
            stack.enter_context(each)
        for changed in (
            _job_errors_are_final(),
            _no_forced_cleanup(),
            _cached_actors_end_their_runs(),
            _lost_cached_actors_are_replaced(),
            _stopped_trials_are_unstaged(),
            _values_are_no_placeholders(),
        ):
            stack.enter_context(changed)
        yield


@contextmanager
def on_interrupt(interrupt: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call `interrupt` with Ctrl-C (SIGINT) and SIGTERM.

    The second Ctrl-C works as usual. Every SIGTERM is passed on: SLURM sends several. Restores SIGUSR1, which Tune
    takes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - Python's signature
        if number == signal.SIGINT:
            signal.signal(number, kept[signal.SIGINT])
        interrupt(signal.Signals(number))

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        for number, was in kept.items():
            signal.signal(number, was)


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence Tune's loggers.

    Errors are in the record, or raised.
    """
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _job_errors_are_final() -> Iterator[None]:
    """Count only lost processes in `max_failures`.

    Otherwise Tune would retry a trial whose job raised an exception.
    """
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
def _no_forced_cleanup() -> Iterator[None]:
    """Keep Tune from killing trials that save a checkpoint.

    It would do so ten seconds after the last one was stopped.
    """

    def keep(controller: TuneController, seconds: float) -> None:
        """Ignore the value that Tune sets or restores."""

    setattr(TuneController, FORCE, property(lambda _: STOP_TIMEOUT_S, keep))
    try:
        yield
    finally:
        delattr(TuneController, FORCE)


def _cached_actors_end_their_runs() -> AbstractContextManager[None]:
    """Make cached processes end their runs.

    A process that Tune caches for a later trial would keep its workers until then.
    """
    cache = getattr(TuneController, KEEP)

    def cache_and_clean(controller: TuneController, trial: Trial) -> bool:
        actor = trial.temporary_state.ray_actor
        is_cached = bool(cache(controller, trial))
        if is_cached and actor is not None:
            actor.cleanup.remote()
        return is_cached

    return _patched(TuneController, KEEP, cache_and_clean)


def _lost_cached_actors_are_replaced() -> AbstractContextManager[None]:
    """Replace a lost process also if it was cached.

    Tune caches a process for a later trial.

    Tune receives the loss twice: from the process and from its last call. At the second report the trial already waits
    for another process, and would fail for good. Tune would also still expect the first process to become ready.
    """
    fail = getattr(TuneController, FAIL)

    def fail_once(controller: TuneController, trial: Trial, exception: Exception) -> None:
        controller._resetting_trials.discard(trial)  # noqa: SLF001
        if not (isinstance(exception, RayActorError) and trial.status == Trial.PENDING):
            fail(controller, trial, exception)

    return _patched(TuneController, FAIL, fail_once)


def _stopped_trials_are_unstaged() -> AbstractContextManager[None]:
    """Remove stopped trials from Tune's waiting list.

    A trial may be stopped before it has a process.

    Otherwise Tune keeps a process of that size. A trial of another size could then wait for those CPUs until the end.
    """
    stop = getattr(TuneController, STOP)

    def unstage_and_stop(controller: TuneController, trial: Trial, exception: Exception | None = None) -> None:
        if trial in controller._staged_trials:  # noqa: SLF001
            controller._unstage_trial_with_resources(trial)  # noqa: SLF001
        stop(controller, trial, exception)

    return _patched(TuneController, STOP, unstage_and_stop)


def _values_are_no_placeholders() -> AbstractContextManager[None]:
    """Let values stand where Tune looks for placeholders.

    Before it draws, Tune puts a placeholder for every object in a list and for every function, and then looks for one
    in each config. It fails for a number beside objects, for values of several forms that hold objects, and for every
    value of a trial that is resumed.
    """
    tokens = (placeholder._FunctionResolver.TOKEN, placeholder._RefResolver.TOKEN)  # noqa: SLF001

    def find_placeholder(config: Any, prefix: tuple[Any, ...], path: tuple[Any, ...]) -> tuple[Any, Any]:
        if isinstance(config, tuple) and len(config) == 2 and isinstance(config[0], str) and config[0] in tokens:
            return prefix, config
        keys = config if isinstance(config, dict) else range(len(config)) if isinstance(config, list | tuple) else ()
        if path and path[0] in keys:
            return find_placeholder(config[path[0]], (*prefix, path[0]), path[1:])
        return None, None

    return _patched(placeholder, FIND, find_placeholder)


@contextmanager
def _patched(owner: object, name: str, ours: Callable[..., object]) -> Iterator[None]:
    was = getattr(owner, name)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        setattr(owner, name, was)
