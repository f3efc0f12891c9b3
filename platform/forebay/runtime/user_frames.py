"""Tracebacks of a user's function, without Forebay's frames."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

# Users did not write these frames of Forebay.
_OUR_FILES = (
    "data/transform/augment.py",
    "data/transform/row_rules.py",
    "data/transform/transform.py",
    "doctor/diagnose.py",
    "doctor/rounds/examined_worker.py",
    "runtime/foreign_code.py",
    "training/driver/local/child.py",
    "training/driver/horovod/worker.py",
    "training/driver/local/driver.py",
    "training/driver/ray_train/worker.py",
    "training/driver/worker_main.py",
    "training/runs/control.py",
    "training/worker/worker.py",
)
_OUR_PATHS = {str(Path(__file__).parents[1] / name) for name in _OUR_FILES}


def traceback_of(error: BaseException) -> str:
    """Traceback of `error` as text.

    It begins at the frames of the user's function, and has all frames if there are no others.
    """
    return "".join(traceback.format_exception(type(error), error, _without_ours(error.__traceback__)))


def with_traceback(message: str, error: BaseException) -> str:
    """Return a message, followed by frames of the user's function and its error."""
    lines = traceback_of(error).splitlines()
    return "\n".join([message, "", *(line for line in lines if not line.startswith("Traceback (most recent"))])


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename in _OUR_PATHS:
        first = first.tb_next
    return first or frames
