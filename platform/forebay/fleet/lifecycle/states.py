"""States of a job in a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, get_args

from forebay.errors import InvalidOption
from forebay.fleet.cluster import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Cluster, machines and first number of workers of an attempt.

    `price_per_hour` is for the smallest world. `is_head_apart` keeps the head off the workers' nodes. A claim does not
    hold it: a controller that adopts an attempt leaves the head to the scheduler.
    """

    cluster: str
    sku: str
    market: Market
    workers: int
    price_per_hour: float | None = None
    is_head_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueued:
    """The job waits for capacity.

    `number` is its last attempt, 0 without one.
    """

    since: float
    number: int = 0
    failures: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlacing:
    """The claim on attempt `number` is being created in storage."""

    number: int
    failures: int
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarting:
    """The attempt is claimed.

    Its RayJob is created, if it is not there, and has to run before `deadline`.
    """

    number: int
    failures: int
    target: Target
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRunning:
    """Its workers run."""

    number: int
    failures: int
    target: Target
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWithdrawing:
    """The RayJob of the attempt is being deleted.

    With `is_final` the job ends then, otherwise it is queued again. `has_failed` means that it ran, and counts as a
    failure.
    """

    number: int
    failures: int
    target: Target
    since: float
    why: str
    is_final: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """The cluster of the attempt gives no answer.

    Nothing is known of the attempt.
    """

    number: int
    failures: int
    target: Target
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded:
    """Its result is in storage."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """It ended without a result.

    `code` is the exit code of its last process, if known.
    """

    number: int
    why: str
    code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopped:
    """It was stopped by its user."""

    number: int


LiveAttempt: TypeAlias = AttemptPlacing | AttemptStarting | AttemptRunning | AttemptWithdrawing | AttemptLost
JobEnd: TypeAlias = JobSucceeded | JobFailed | JobStopped
JobState: TypeAlias = JobQueued | LiveAttempt | JobEnd

_KINDS = {kind.__name__: kind for kind in get_args(JobState)}


def state_to_facts(state: JobState) -> dict[str, Any]:
    """State as JSON values."""
    return {"state": type(state).__name__, **asdict(state)}


def state_from_facts(facts: Mapping[str, Any]) -> JobState:
    """State of the values of `state_to_facts`.

    Raises `InvalidOption` for others.
    """
    values = dict(facts)
    try:
        kind = _KINDS[values.pop("state")]
        if "target" in values:
            values["target"] = Target(**values["target"])
        if "reasons" in values:
            values["reasons"] = tuple(values["reasons"])
        state: JobState = kind(**values)
    except (KeyError, TypeError) as error:
        raise InvalidOption(f"this is not the state of a job ({error}). Rebuild the journal.") from error
    return state
