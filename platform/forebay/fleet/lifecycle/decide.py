"""Decision on one job: its next state and actions.

It follows from its state, an observation and a time. Pure. Every action may be lost or repeated: the next decision
finds out what there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.errors import ExitCode
from forebay.fleet.lifecycle.states import (
    AttemptLost,
    AttemptPlacing,
    AttemptRunning,
    AttemptStarting,
    AttemptWithdrawing,
    JobEnd,
    JobFailed,
    JobQueued,
    JobState,
    JobStopped,
    JobSucceeded,
    LiveAttempt,
    Target,
)

DELETION_S = 120.0
"""Time after which a deletion that does not happen is left to the fence."""

Phase = Literal["absent", "starting", "running", "succeeded", "failed", "stopped"]
ENDED_PHASES: tuple[Phase, ...] = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClaim:
    """The newest claim of a run in storage.

    `how` is its end, None while it has none.
    """

    number: int
    target: Target
    how: Literal["finished", "stopped", "interrupted", "failed"] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRayJob:
    """RayJob of the attempt.

    `words` are the last ones of the scheduler, of a kubelet or of the run. `is_unstartable` means that a container of
    it cannot start on this cluster, or that the cluster refuses the RayJob.
    """

    phase: Phase
    words: str = ""
    exit_code: int | None = None
    is_unstartable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObservation:
    """Facts known of a job at one time.

    Attributes:
        claim: Newest claim in storage. None without one.
        storage_answers: Whether that is known.
        ray_job: RayJob of the state's attempt. None if its cluster gives no answer.
        is_refused: Whether the cluster refused us. Then silence of the attempt means nothing.
        target: Best target now. None without room.
        reasons: Reasons of the clusters that have no room.
        is_stopped: Whether the user asked to stop the job.
        failures: Attempts between the state's and the claim's that recorded their failure.
    """

    claim: SeenClaim | None = None
    storage_answers: bool = True
    ray_job: SeenRayJob | None = None
    is_refused: bool = False
    target: Target | None = None
    reasons: tuple[str, ...] = ()
    is_stopped: bool = False
    failures: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether the newest attempt recorded that the run is finished."""
        return self.claim is not None and self.claim.how == "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAttempt:
    """Create the claim on an attempt, exclusively.

    Another process may be first.
    """

    number: int
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRayJob:
    """Create the RayJob of a claimed attempt.

    One of the same name, key and attempt counts as created.
    """

    number: int
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRayJob:
    """Delete the RayJob of an attempt. None counts as deleted."""

    number: int
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEnd:
    """Record in storage how an attempt ended.

    An end that is there stays. It comes before the deletion of the RayJob, which is the only other evidence: a
    controller without a journal would start the attempt again.
    """

    number: int
    target: Target
    how: Literal["finished", "stopped", "failed"]
    why: str


FleetAction: TypeAlias = ClaimAttempt | CreateRayJob | DeleteRayJob | RecordEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRules:
    """Rules of a job for its attempts, from its specification.

    After an exit code of `final_codes` there is no other attempt.
    """

    start_within_s: float
    retries: int
    unreachable_s: float
    is_fenced: bool = True
    final_codes: frozenset[int] = frozenset({ExitCode.UNUSABLE_STORAGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDecision:
    """Next state of a job, and its actions.

    `turned_away` is a target to avoid for a while, `failed_at` one to leave alone for some seconds, and to avoid while
    others have room.
    """

    state: JobState
    actions: tuple[FleetAction, ...] = ()
    why: str = ""
    turned_away: Target | None = None
    failed_at: Target | None = None


def decide(state: JobState, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision:
    """Decide on one job.

    Without an answer of storage, nothing is claimed and nothing ends.
    """
    if isinstance(state, JobEnd):
        return FleetDecision(state=state)
    if not seen.storage_answers:
        return FleetDecision(state=state, why="storage gives no answer")
    return _by_storage(state, seen, rules, now) or _by_state(state, seen, rules, now)


def _by_storage(
    state: JobQueued | LiveAttempt, seen: JobObservation, rules: AttemptRules, now: float
) -> FleetDecision | None:
    """Decision that storage or the user made."""
    if seen.claim is not None and seen.is_finished:
        number = max(state.number, seen.claim.number)
        return FleetDecision(state=JobSucceeded(number=number), why="its result is in storage")
    if seen.claim is not None and seen.claim.number > state.number:
        return _adopted(state, seen.claim, seen.failures, rules, now)
    if seen.is_stopped and not isinstance(state, AttemptWithdrawing):
        return _stopped(state, now)
    return None


def _by_state(state: JobQueued | LiveAttempt, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision:
    match state:
        case JobQueued():
            return _queued(state, seen)
        case AttemptPlacing():
            return _placing(state, seen, rules, now)
        case AttemptStarting():
            return _starting(state, seen, rules, now)
        case AttemptRunning():
            return _running(state, seen, rules, now)
        case AttemptLost():
            return _lost(state, seen, rules, now)
        case AttemptWithdrawing():
            return _withdrawing(state, seen, rules, now)


def _adopted(
    state: JobQueued | LiveAttempt, claim: SeenClaim, failures: int, rules: AttemptRules, now: float
) -> FleetDecision:
    """Follow an attempt that is missing in the journal.

    Another process claimed it, or this one before it lost its journal.
    """
    adopted = AttemptStarting(
        number=claim.number,
        failures=state.failures + failures,
        target=claim.target,
        deadline=now + rules.start_within_s,
    )
    return FleetDecision(state=adopted, why=f"attempt {claim.number} is claimed for {claim.target.cluster}")


def _stopped(state: JobQueued | LiveAttempt, now: float) -> FleetDecision:
    if isinstance(state, JobQueued):
        return FleetDecision(state=JobStopped(number=state.number), why="stopped by its user")
    why = "stopped by its user"
    record = RecordEnd(number=state.number, target=state.target, how="stopped", why=why)
    return _withdrawn(state, now, why, is_final=True, record=record)


def _queued(state: JobQueued, seen: JobObservation) -> FleetDecision:
    if seen.target is None:
        waiting = JobQueued(since=state.since, number=state.number, failures=state.failures, reasons=seen.reasons)
        return FleetDecision(state=waiting, why="no cluster has room now")
    number = state.number + 1
    placing = AttemptPlacing(number=number, failures=state.failures, target=seen.target)
    claim = ClaimAttempt(number=number, target=seen.target)
    return FleetDecision(state=placing, actions=(claim,), why=f"attempt {number} goes to {seen.target.cluster}")


def _placing(state: AttemptPlacing, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision:
    if seen.claim is None or seen.claim.number < state.number:
        return FleetDecision(state=state, actions=(ClaimAttempt(number=state.number, target=state.target),))
    # The file decides where the attempt runs, also if another process wrote it.
    target = seen.claim.target
    starting = AttemptStarting(
        number=state.number, failures=state.failures, target=target, deadline=now + rules.start_within_s
    )
    create = CreateRayJob(number=state.number, target=target)
    return FleetDecision(state=starting, actions=(create,), why=f"attempt {state.number} is claimed")


def _starting(state: AttemptStarting, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision:
    if (ended := _ended(state, seen, rules, now)) is not None:
        return ended
    if seen.ray_job is None:
        return _silent(state, seen, now)
    if seen.ray_job.phase == "running":
        return _runs(state, now)
    if seen.ray_job.is_unstartable or now >= state.deadline:
        what = f"cannot start in {state.target.cluster}" if seen.ray_job.is_unstartable else "did not start in time"
        return _withdrawn(state, now, f"it {what}: {seen.ray_job.words or 'no reason is known'}")
    if seen.ray_job.phase == "absent":
        create = CreateRayJob(number=state.number, target=state.target)
        return FleetDecision(state=state, actions=(create,), why="its RayJob is created")
    return FleetDecision(state=state, why=seen.ray_job.words or "its pods start")


def _running(state: AttemptRunning, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision:
    if (ended := _ended(state, seen, rules, now)) is not None:
        return ended
    if seen.ray_job is None:
        return _silent(state, seen, now)
    if seen.ray_job.phase == "absent":
        # No result and no end in storage: it was deleted, or its cluster was.
        return _failed(state, rules, now, "its RayJob was deleted by somebody else")
    if seen.ray_job.phase == "starting":
        # Suspended by hand or by a queue: its pods are gone. It has the time of a start to come back.
        return FleetDecision(state=_starts_again(state, rules, now), why="its RayJob was suspended by somebody else")
    return FleetDecision(state=state, why="it runs")


def _lost(state: AttemptLost, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision:
    if (ended := _ended(state, seen, rules, now)) is not None:
        return ended
    if seen.ray_job is None:
        if now - state.since < rules.unreachable_s or not rules.is_fenced:
            return FleetDecision(state=state, why="its cluster gives no answer")
        # The claim on the next attempt is the fence: the lost one saves nothing from then on.
        why = f"{state.target.cluster} gave no answer for {now - state.since:.0f} s"
        return FleetDecision(state=_requeued(state, now), why=why, turned_away=state.target)
    if seen.ray_job.phase == "running":
        return _runs(state, now)
    if seen.ray_job.phase == "absent":
        return _failed(state, rules, now, "its RayJob is no longer there")
    return FleetDecision(state=_starts_again(state, rules, now), why="its cluster answers again")


def _withdrawing(state: AttemptWithdrawing, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision:
    is_absent = seen.ray_job is not None and seen.ray_job.phase == "absent"
    limit = rules.unreachable_s if seen.ray_job is None else DELETION_S
    is_left_to_fence = now - state.since >= limit and rules.is_fenced and not seen.is_refused
    if not is_absent and not is_left_to_fence:
        delete = DeleteRayJob(number=state.number, target=state.target)
        return FleetDecision(state=state, actions=(delete,), why=state.why)
    why = state.why if is_absent else f"{state.why}; its deletion is stuck, and the next attempt fences it"
    if state.is_final:
        return FleetDecision(state=JobStopped(number=state.number), why=why)
    if state.has_failed:
        return FleetDecision(state=_requeued(state, now), why=why, failed_at=state.target)
    return FleetDecision(state=_requeued(state, now), why=why, turned_away=state.target)


def _ended(state: LiveAttempt, seen: JobObservation, rules: AttemptRules, now: float) -> FleetDecision | None:
    """Return the decision on an ended attempt.

    The end is what it wrote itself, or its RayJob's. A RayJob that is complete may have been stopped.
    """
    claim, ray_job = seen.claim, seen.ray_job
    is_final = ray_job is not None and ray_job.phase == "failed" and ray_job.exit_code in rules.final_codes
    is_recorded = claim is not None and claim.number == state.number and claim.how is not None
    if claim is not None and is_recorded and not (is_final and claim.how == "failed"):
        return _ended_itself(state, claim, None if ray_job is None else ray_job.exit_code, rules, now)
    if ray_job is None or ray_job.phase in ("absent", "starting", "running"):
        return None
    if ray_job.phase == "succeeded":
        record = RecordEnd(number=state.number, target=state.target, how="finished", why="")
        return FleetDecision(state=JobSucceeded(number=state.number), actions=(record,), why="its RayJob succeeded")
    if is_final:  # also where the run has recorded that it failed: the code says why
        record = RecordEnd(number=state.number, target=state.target, how="failed", why=ray_job.words)
        failed = JobFailed(number=state.number, why=ray_job.words, code=ray_job.exit_code)
        return FleetDecision(state=failed, actions=() if is_recorded else (record,), why="no retry helps")
    return _failed(state, rules, now, ray_job.words or f"its RayJob {ray_job.phase}", ray_job.exit_code)


def _ended_itself(
    state: LiveAttempt, claim: SeenClaim, code: int | None, rules: AttemptRules, now: float
) -> FleetDecision:
    match claim.how:
        case "finished":
            return FleetDecision(state=JobSucceeded(number=state.number), why="the run is finished")
        case "stopped":
            return FleetDecision(state=JobStopped(number=state.number), why=claim.why or "the run was stopped")
        case _:
            return _failed(state, rules, now, claim.why or "the run failed", code)


def _silent(state: AttemptStarting | AttemptRunning, seen: JobObservation, now: float) -> FleetDecision:
    if seen.is_refused:
        # Their clusters answered, and refused us. That says nothing about the attempts.
        return FleetDecision(state=state, why=f"{state.target.cluster} refuses our credentials")
    lost = AttemptLost(number=state.number, failures=state.failures, target=state.target, since=now)
    return FleetDecision(state=lost, why=f"{state.target.cluster} gives no answer")


def _starts_again(state: LiveAttempt, rules: AttemptRules, now: float) -> AttemptStarting:
    return AttemptStarting(
        number=state.number, failures=state.failures, target=state.target, deadline=now + rules.start_within_s
    )


def _runs(state: LiveAttempt, now: float) -> FleetDecision:
    running = AttemptRunning(number=state.number, failures=state.failures, target=state.target, since=now)
    return FleetDecision(state=running, why="its workers run")


def _failed(state: LiveAttempt, rules: AttemptRules, now: float, why: str, code: int | None = None) -> FleetDecision:
    failures = state.failures + 1
    record = RecordEnd(number=state.number, target=state.target, how="failed", why=why)
    if failures > rules.retries:
        text = f"{why} (attempt {state.number}, {failures} failures, {rules.retries} retries allowed)"
        return FleetDecision(state=JobFailed(number=state.number, why=text, code=code), actions=(record,), why=text)
    # What is left of the attempt is deleted before the next one is claimed.
    return _withdrawn(state, now, why, failures=failures, record=record)


def _withdrawn(
    state: LiveAttempt,
    now: float,
    why: str,
    *,
    is_final: bool = False,
    failures: int | None = None,
    record: RecordEnd | None = None,
) -> FleetDecision:
    withdrawing = AttemptWithdrawing(
        number=state.number,
        failures=state.failures if failures is None else failures,
        target=state.target,
        since=now,
        why=why,
        is_final=is_final,
        has_failed=failures is not None,
    )
    delete = DeleteRayJob(number=state.number, target=state.target)
    return FleetDecision(state=withdrawing, actions=(delete,) if record is None else (record, delete), why=why)


def _requeued(state: LiveAttempt, now: float) -> JobQueued:
    return JobQueued(since=now, number=state.number, failures=state.failures)
