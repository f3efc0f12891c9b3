"""Calls of a run's callbacks, and their exceptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from forebay.errors import RunFailed
from forebay.events import Event
from forebay.runtime.foreign_code import error_of, message_of
from forebay.runtime.user_frames import with_traceback
from forebay.training.runs.control import Control as Control

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
