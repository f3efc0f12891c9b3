"""Skeleton of the elastic drivers.

A run with its coordinator, its checkpoint stores, and a thread that trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Self, TypeAlias

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RuntimeEnvSetupError

from forebay.errors import ForebayError, RunFailed
from forebay.events import Preparing
from forebay.runtime.foreign_code import OutcomeThread, begin, message_of
from forebay.training.checkpoint.ray_store import checkpoint_stores
from forebay.training.driver.elastic.coordinator_actor import coordinator_of
from forebay.training.driver.elastic.event_loop import follow
from forebay.training.driver.elastic.phase import Cause, Completed, Raised, TooManyFailures
from forebay.training.runs.result import Result
from forebay.training.runs.run import Run

END_S = 30.0

Trainer: TypeAlias = Callable[[], object]
"""Trains until the run ends. Called in a thread of its own."""
OpenBackend: TypeAlias = Callable[[Run, ActorHandle], AbstractContextManager[Trainer]]
"""Opens the trainer of a backend for a run and its coordinator. Leaving the context ends what it has started."""

log = logging.getLogger(__name__)


def train_elastic(run: Run, driver: str, open_backend: OpenBackend) -> Result:
    """Train `run` in the present Ray session.

    `driver` is the name of the driver for messages. Raises `RunFailed` when a train function raises, workers die too
    often, or Ray cannot be reached any more.
    """
    with (
        coordinator_of(run, driver) as coordinator,
        checkpoint_stores(run.name, run.checkpoint_config, run.has_successor),
    ):
        run.tell(Preparing(what=f"starting {run.job.start_workers} workers, a process each"))
        try:
            with open_backend(run, coordinator) as trainer, TrainingThread(trainer, coordinator) as training:
                stopped = follow(run, coordinator, lambda: training.is_running)
            cause: Cause | None = ray.get(coordinator.cause.remote())
        except RayError as error:
            # A later attempt on this cluster ends the coordinator.
            run.ask_fence()
            raise RunFailed(
                f"run {run.name!r} lost its connection to Ray ({type(error).__name__}: {_line_of(error)}). Run "
                f"{run.name!r} again: it continues from its newest checkpoint, if it has one.",
                name=run.name,
            ) from error
        if stopped is not None:
            return run.finish(stopped)
        if isinstance(cause, Completed):
            return run.finish(cause.stopped)
        raise _end_of(run, driver, cause, training.error)


def _line_of(error: RayError) -> str:
    r"""Line of Ray's message that names the cause.

    >>> _line_of(RuntimeEnvSetupError("Traceback (most recent call last):\n  ...\nOSError: the disk is full."))
    'OSError: the disk is full'
    """
    lines = message_of(error).splitlines()
    return lines[-1 if isinstance(error, RuntimeEnvSetupError) else 0]  # a traceback ends with its cause


def _end_of(run: Run, driver: str, cause: Cause | None, error: BaseException | None) -> Exception:
    """Return the error that explains a run's end.

    `error` is what the trainer raised.
    """
    end: Exception
    match cause:
        case Raised():
            end = cause.error.as_error(run.name)
        case TooManyFailures():
            end = run.too_many_failures(cause.error)
        case _ if isinstance(error, ForebayError):
            return error
        case _:
            end = RunFailed(
                f"run {run.name!r}: driver={driver!r} ended it with {type(error).__name__}: {message_of(error)}. "
                f"Run {run.name!r} again: it continues from its newest checkpoint, if it has one.",
                name=run.name,
            )
    end.__cause__ = end.__cause__ or error
    return end


class TrainingThread:
    """Runs a trainer in a thread during the block.

    So callbacks cannot delay it. In the main thread, Ray Train's `fit()` would replace the SIGINT handler permanently,
    and Ctrl-C would end the process.
    """

    def __init__(self, trainer: Trainer, coordinator: ActorHandle) -> None:
        self._coordinator = coordinator
        self._thread = OutcomeThread(trainer, "forebay-train")

    @property
    def error(self) -> BaseException | None:
        """Exception of the trainer, for the thread that waits for its end."""
        return self._thread.error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        begin(self._thread)
        return self

    def __exit__(self, *_: object) -> None:
        """Abort a trainer that is still running.

        Its workers are killed, and not replaced.
        """
        was_running = self.is_running
        with suppress(RayError):
            workers = ray.get(self._coordinator.abort.remote(), timeout=END_S)
            for worker in workers.values() if was_running else ():
                ray.kill(worker)
        self._thread.join(END_S)
        if self.is_running:
            log.warning("The run's workers have not ended after %.0f s.", END_S)
