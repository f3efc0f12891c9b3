"""Phases of a run, with their data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.training.driver.worker_error import WorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """The ranks of a world are joining.

    No rank trains. `after` says why the world was opened.
    """

    after: Literal["begin", "resize", "failure"] = "begin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Steps are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """Every rank pauses at the next commit.

    A world of `resize_to` follows.
    """

    resize_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Every rank ends at the next commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Rank 0's train function has returned.

    `stopped` is the reason if it returned early.
    """

    stopped: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A train function raised `error`.

    No worker's death explains it.
    """

    error: WorkerError


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyFailures:
    """More workers were lost than the job allows.

    `error` is one line about the last loss.
    """

    error: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """The driver has aborted the run."""


Cause: TypeAlias = Completed | Raised | TooManyFailures | Aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """No world follows. The first cause is kept."""

    cause: Cause


AtWork: TypeAlias = Training | Resizing | Stopping
Phase: TypeAlias = Starting | AtWork | Ended
