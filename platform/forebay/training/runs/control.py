"""Callbacks of a run, and the control that they have."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from forebay.errors import BatchTooSmall, InvalidOption, RunFailed, whole_number
from forebay.events import Event, Request
from forebay.runtime.foreign_code import error_of, message_of
from forebay.runtime.user_frames import with_traceback
from forebay.storage.json_file import Fact
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.runs.attempts.files import How
from forebay.training.runs.attempts.stored_request import load_counted
from forebay.training.runs.job_facts import job_facts
from forebay.training.runs.run_folder import RunFolder


class Control:
    """Makes the requests of callbacks.

    The driver obeys them at the next checkpoint. A stop, a global batch or a smaller target may be requested on
    `EpochEnded`. Then it takes effect at exactly the checkpoint that ends the epoch, in every run alike. A larger
    target takes effect at the first checkpoint after the new workers are warm. Any thread may read and request.

    >>> control = Control(elastic=Elastic(min_workers=1, max_workers=4))
    >>> control.resize(16)
    4
    >>> control.stop("loss is low enough")
    >>> control.request.stop
    'loss is low enough'
    """

    def __init__(
        self,
        *,
        elastic: Elastic | None = None,
        workers: int = 1,
        global_batch: int = 1,
        epochs: int = 1,
        epoch: int = 0,
        facts: Mapping[str, Fact] | None = None,
    ) -> None:
        self._elastic, self._epochs, self._epoch = elastic, epochs, epoch
        self._facts = dict(facts or {})
        self._num_fixed, self._batch = workers, global_batch
        self._request = Request(target=None if elastic is None else elastic.target)
        self._world_size = self.target
        self._requested: int | None = None
        self._asked: dict[str, How] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, job: Job, epoch: int = 0) -> Control:
        """Control of `job`, whose training begins with epoch `epoch`, from 0."""
        return cls(
            elastic=job.elastic,
            workers=job.workers,
            global_batch=job.data.global_batch,
            epochs=job.epochs,
            epoch=epoch,
            facts=job_facts(job),
        )

    def stop(self, reason: str) -> None:
        """End the run after its next checkpoint.

        The first reason is kept. Raises `InvalidOption` for one without text: the run would count as finished.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidOption(f"stop({reason!r}) gives no reason, and the result keeps one. Give a text.")
        with self._lock:
            if self._request.stop is None:
                self._request = replace(self._request, stop=reason)

    def obey_stop(self, reason: str, how: How = "stopped") -> None:
        """For drivers: stop because somebody asked from outside of the job.

        `how` is how the run ends then: "stopped" by a person, "interrupted" by SIGTERM.
        """
        with self._lock:
            # Also of a later one: another part of the run may have heard that first.
            self._asked.setdefault(reason, how)
            if self._request.stop is None:
                self._request = replace(self._request, stop=reason)

    def how_ended(self, stopped: str | None) -> How:
        """How a run has ended, early for the reason `stopped`.

        One that its own callbacks or monitors end has finished. One that a person asked to stop, also after SIGTERM,
        was stopped.
        """
        how = "finished" if stopped is None else self._asked.get(stopped, "finished")
        return "stopped" if how == "interrupted" and "stopped" in self._asked.values() else how

    def resize(self, workers: int) -> int:
        """Set the target, clamped to the job's bounds.

        Returns the new target. Of several calls the last one counts. Raises `InvalidOption` if the job is not elastic.
        """
        if self._elastic is None:
            raise InvalidOption(
                f"resize({workers}) needs an elastic job: this one has a fixed number of workers ({self._num_fixed}). "
                "Give it elastic=Elastic(min_workers=..., max_workers=...)."
            )
        with self._lock:
            self._requested = self._elastic.clamp(operator.index(workers))
            self._request = replace(self._request, target=self._requested)
            return self._requested

    def global_batch(self, rows: int) -> None:
        """Train on `rows` rows per step, over all workers.

        From then on this overrides the job's own batch policy. Raises `BatchTooSmall` for fewer rows than the job's
        maximum of workers, and `InvalidOption` for fewer than 1.
        """
        rows = whole_number("global_batch", rows, least=1)
        if rows < self.max_workers:
            raise BatchTooSmall(
                f"global_batch({rows}) has fewer rows than the job may have workers ({self.max_workers}). "
                f"Ask for {self.max_workers} rows or more.",
                global_batch=rows,
                max_workers=self.max_workers,
            )
        with self._lock:
            self._request = replace(self._request, global_batch=rows)

    def follow(self, *, target: int | None = None, world_size: int | None = None, batch: int | None = None) -> None:
        """For drivers: update the present state.

        Updates the target as well, if it was set elsewhere (`forebay scale`).
        """
        with self._lock:
            if target is not None:
                self._request = replace(self._request, target=target)
            if world_size is not None:
                self._world_size = world_size
            if batch:
                self._batch = batch

    def bound(self, elastic: Elastic | None) -> None:
        """For drivers: set other bounds, and clamp the target to them."""
        if elastic is not None:
            with self._lock:
                self._elastic = elastic
                self._request = replace(self._request, target=elastic.clamp(self._request.target or elastic.target))

    def begin_with(self, epoch: int) -> None:
        """For drivers: set the epoch that training begins with, from 0."""
        self._epoch = epoch

    def take_resize(self) -> int | None:
        """For drivers: return the target of the last `resize`.

        None if there was none since the previous call.
        """
        with self._lock:
            requested, self._requested = self._requested, None
            return requested

    @property
    def request(self) -> Request:
        """All that was requested so far.

        `target` is always set for an elastic job.
        """
        return self._request

    @property
    def stop_reason(self) -> str | None:
        """Reason of the requested stop, or None."""
        return self._request.stop

    @property
    def target(self) -> int:
        """Number of workers that the run should have."""
        return self._num_fixed if self._request.target is None else self._request.target

    @property
    def world_size(self) -> int:
        """Number of workers that train now, or trained last."""
        return self._world_size

    @property
    def min_workers(self) -> int:
        """Smallest target of the job."""
        return self._num_fixed if self._elastic is None else self._elastic.min_workers

    @property
    def max_workers(self) -> int:
        """Largest target of the job."""
        return self._num_fixed if self._elastic is None else self._elastic.max_workers

    @property
    def is_elastic(self) -> bool:
        """Whether `resize` is possible."""
        return self._elastic is not None

    @property
    def job_epochs(self) -> int:
        """Number of epochs of the job."""
        return self._epochs

    @property
    def job_facts(self) -> Mapping[str, Fact]:
        """Parameters of the job function, and numbers of the job.

        By name, without secrets.
        """
        return self._facts

    @property
    def first_epoch(self) -> int:
        """Epoch that training began with, from 0.

        Before there are workers, the expected one.
        """
        return self._epoch

    @property
    def batch(self) -> int:
        """Rows per step, as of the newest reported step."""
        return self._batch


log = logging.getLogger(__name__)


Callback = Callable[[Event, Control], object]
"""Called on the driver with every event, in order. An exception stops the run. See `optional_callback`."""


class Optional:
    """Callback that the run can do without. See `optional_callback`."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._failed = False

    def __call__(self, event: Event, control: Control) -> None:
        if self._failed:
            return
        error = _error_of(self._callback, event, control)
        if error is not None:
            self._failed = True
            log.warning("%s raised and is not called again.", name_of(self._callback), exc_info=error)


def optional_callback(callback: Callback) -> Callback:
    """Wrap `callback`, so that exceptions do not stop the run.

    Its first exception is logged with a traceback. Then it is not called again.
    """
    return Optional(callback)


def notify(callbacks: Iterable[Callback], event: Event, control: Control) -> None:
    """Call every callback.

    If one raised, raises `RunFailed`, naming it, after all were called.
    """
    failures = [failure for callback in callbacks if (failure := _failure_of(callback, event, control))]
    if failures:
        raise failures[0] from failures[0].__cause__


def _error_of(callback: Callback, event: Event, control: Control) -> Exception | None:
    return error_of(partial(callback, event, control))


def _failure_of(callback: Callback, event: Event, control: Control) -> RunFailed | None:
    error = _error_of(callback, event, control)
    if error is None:
        return None
    text = (
        f"the callback {name_of(callback)} raised {type(error).__name__}: {message_of(error)} on "
        f"{type(event).__name__}. The run was stopped; its checkpoints are kept. Correct the callback, or wrap it in "
        "fb.callbacks.optional_callback if the run can do without it."
    )
    failure = RunFailed(
        with_traceback(text, error),
        callback=name_of(callback),
        event=type(event).__name__,
    )
    failure.__cause__ = error
    return failure


def name_of(callback: Callback) -> str:
    """Name of a callback for a message."""
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


class RequestReader:
    """Passes stored requests on to a run's control."""

    def __init__(self, run: str | RunFolder, attempt: int | None, control: Control) -> None:
        self._run, self._attempt, self._control = RunFolder.at(run), 0 if attempt is None else attempt, control
        self._known, self._targets = Request(), 0
        self._is_damaged = False

    def obey(self) -> None:
        """Read the file, and request what is new.

        A damaged file is reported once, and requests nothing. Raises `OSError` if storage does not answer.
        """
        try:
            targets, request = load_counted(self._run, self._attempt)
        except InvalidOption as error:
            if not self._is_damaged:
                log.warning("The request to this run cannot be obeyed: %s", error)
            self._is_damaged = True
            return
        self._is_damaged = False
        if request.stop is not None and self._known.stop is None:
            self._control.obey_stop(request.stop)
        # Also the target of before: callbacks may have set another one since.
        is_new = (targets, request.target) != (self._targets, self._known.target)
        if request.target is not None and is_new and self._control.is_elastic:
            self._control.resize(request.target)
        self._known, self._targets = request, targets
