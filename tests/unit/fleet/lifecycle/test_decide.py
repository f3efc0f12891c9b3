"""The table of transitions.

It leads from a state and an observation to the next state and its actions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.errors import ExitCode
from forebay.fleet.lifecycle.decide import (
    AttemptRules,
    ClaimAttempt,
    CreateRayJob,
    DeleteRayJob,
    JobObservation,
    Phase,
    RecordEnd,
    SeenClaim,
    SeenRayJob,
    decide,
)
from forebay.fleet.lifecycle.states import (
    AttemptLost,
    AttemptPlacing,
    AttemptRunning,
    AttemptStarting,
    AttemptWithdrawing,
    JobFailed,
    JobQueued,
    JobState,
    JobStopped,
    JobSucceeded,
    Target,
    state_from_facts,
    state_to_facts,
)
from forebay.fleet.spec.job_spec import Task

NOW = 1000.0
A = Target(cluster="a", sku="h100", market="spot", workers=2)
B = Target(cluster="b", sku="h100", market="on-demand", workers=2)
RULES = AttemptRules(start_within_s=600, retries=2, unreachable_s=300)
WAIT = AttemptRules(start_within_s=600, retries=2, unreachable_s=300, is_fenced=False)

QUEUED = JobQueued(since=0.0, number=1)
PLACING = AttemptPlacing(number=2, failures=0, target=A)
STARTING = AttemptStarting(number=2, failures=0, target=A, deadline=NOW + 1)
LATE = AttemptStarting(number=2, failures=0, target=A, deadline=NOW)
RUNNING = AttemptRunning(number=2, failures=0, target=A, since=0.0)
WORN = AttemptRunning(number=2, failures=2, target=A, since=0.0)
LOST = AttemptLost(number=2, failures=0, target=A, since=NOW - 299)
LONG_LOST = AttemptLost(number=2, failures=0, target=A, since=NOW - 300)
LEAVING = AttemptWithdrawing(number=2, failures=1, target=A, since=NOW - 5, why="late")
STUCK = AttemptWithdrawing(number=2, failures=1, target=A, since=NOW - 500, why="late")
FINAL = AttemptWithdrawing(number=2, failures=0, target=A, since=NOW, why="stopped", is_final=True)


def ray(phase: Phase, **more: Any) -> SeenRayJob:
    return SeenRayJob(phase=phase, **more)


def seen(**facts: Any) -> JobObservation:
    return JobObservation(**{"claim": SeenClaim(number=2, target=A), **facts})


def ended(how: Any) -> JobObservation:
    return seen(claim=SeenClaim(number=2, target=A, how=how, why="as it says"), ray_job=ray("absent"))


NO_SECRET = seen(ray_job=ray("starting", words='secret "hf" not found', is_unstartable=True))
NO_QUOTA = seen(ray_job=ray("absent", words="403: exceeded quota", is_unstartable=True))
NONE = JobObservation(claim=SeenClaim(number=1, target=B))
HELD: list[tuple[str, JobState, JobObservation, type, str]] = [
    ("no room", QUEUED, JobObservation(reasons=("full",)), JobQueued, ""),
    ("room", QUEUED, JobObservation(target=A), AttemptPlacing, "claim"),
    ("storage is silent", QUEUED, JobObservation(target=A, storage_answers=False), JobQueued, ""),
    ("result of an earlier controller", QUEUED, ended("finished"), JobSucceeded, ""),
    ("claim of another controller", QUEUED, seen(), AttemptStarting, ""),
    ("stop in the queue", QUEUED, JobObservation(is_stopped=True), JobStopped, ""),
    ("claim lost", PLACING, NONE, AttemptPlacing, "claim"),
    ("claim is ours", PLACING, seen(), AttemptStarting, "create"),
    ("create lost", STARTING, seen(ray_job=ray("absent")), AttemptStarting, "create"),
    ("pods start", STARTING, seen(ray_job=ray("starting")), AttemptStarting, ""),
    ("pods run", STARTING, seen(ray_job=ray("running")), AttemptRunning, ""),
    ("too late", LATE, seen(ray_job=ray("starting")), AttemptWithdrawing, "delete"),
    ("too late, but it runs", LATE, seen(ray_job=ray("running")), AttemptRunning, ""),
    ("its namespace has no quota", STARTING, NO_QUOTA, AttemptWithdrawing, "delete"),
    ("a Secret is missing", STARTING, NO_SECRET, AttemptWithdrawing, "delete"),
    ("silence while it starts", STARTING, seen(), AttemptLost, ""),
    ("it runs", RUNNING, seen(ray_job=ray("running")), AttemptRunning, ""),
    ("suspended by hand", RUNNING, seen(ray_job=ray("starting")), AttemptStarting, ""),
    ("edited until the operator refuses it", RUNNING, seen(ray_job=ray("failed")), AttemptWithdrawing, "end delete"),
    ("silence while it runs", RUNNING, seen(), AttemptLost, ""),
    ("our credentials are refused", RUNNING, seen(is_refused=True), AttemptRunning, ""),
    ("success", RUNNING, seen(ray_job=ray("succeeded")), JobSucceeded, "end"),
    ("complete, but stopped", RUNNING, seen(ray_job=ray("stopped")), AttemptWithdrawing, "end delete"),
    ("removed by its TTL after its end", RUNNING, ended("finished"), JobSucceeded, ""),
    ("stopped by forebay stop", RUNNING, ended("stopped"), JobStopped, ""),
    ("the run failed", RUNNING, ended("failed"), AttemptWithdrawing, "end delete"),
    ("its head was drained", RUNNING, ended("interrupted"), AttemptWithdrawing, "end delete"),
    ("deleted by hand", RUNNING, seen(ray_job=ray("absent")), AttemptWithdrawing, "end delete"),
    ("failed", RUNNING, seen(ray_job=ray("failed")), AttemptWithdrawing, "end delete"),
    ("failed for good", RUNNING, seen(ray_job=ray("failed", exit_code=78)), JobFailed, "end"),
    (
        "failed by a code of its own",
        RUNNING,
        seen(ray_job=ray("failed", exit_code=3)),
        AttemptWithdrawing,
        "end delete",
    ),
    ("no retry left", WORN, seen(ray_job=ray("failed")), JobFailed, "end"),
    ("stop", RUNNING, seen(ray_job=ray("running"), is_stopped=True), AttemptWithdrawing, "end delete"),
    ("a later claim", RUNNING, seen(claim=SeenClaim(number=3, target=B)), AttemptStarting, ""),
    ("still silent", LOST, seen(), AttemptLost, ""),
    ("silent too long", LONG_LOST, seen(), JobQueued, ""),
    ("back, and it runs", LOST, seen(ray_job=ray("running")), AttemptRunning, ""),
    ("back, and it starts", LOST, seen(ray_job=ray("starting")), AttemptStarting, ""),
    ("back without it", LOST, seen(ray_job=ray("absent")), AttemptWithdrawing, "end delete"),
    ("its result came by storage", LONG_LOST, ended("finished"), JobSucceeded, ""),
    ("deletion goes on", LEAVING, seen(ray_job=ray("starting")), AttemptWithdrawing, "delete"),
    ("deleted", LEAVING, seen(ray_job=ray("absent")), JobQueued, ""),
    ("deletion stuck", STUCK, seen(ray_job=ray("starting")), JobQueued, ""),
    ("deletion in silence", STUCK, seen(), JobQueued, ""),
    ("deletion refused", STUCK, seen(is_refused=True), AttemptWithdrawing, "delete"),
    ("stopped and deleted", FINAL, seen(ray_job=ray("absent")), JobStopped, ""),
]
ACTIONS = {"claim": ClaimAttempt, "create": CreateRayJob, "end": RecordEnd, "delete": DeleteRayJob}


@pytest.mark.parametrize(("case", "state", "observation", "after", "action"), HELD, ids=[case for case, *_ in HELD])
def test_transition(case: str, state: JobState, observation: JobObservation, after: type, action: str) -> None:
    decision = decide(state, observation, RULES, NOW)
    assert type(decision.state) is after
    assert [type(each) for each in decision.actions] == [ACTIONS[each] for each in action.split()]
    assert decision.why or type(decision.state) is type(state)
    assert state_from_facts(state_to_facts(decision.state)) == decision.state
    # Repeated with the same observation, a decision on an end changes nothing.
    if after in (JobSucceeded, JobFailed, JobStopped):
        again = decide(decision.state, observation, RULES, NOW)
        assert (again.state, again.actions) == (decision.state, ())


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.REFUSED, ExitCode.UNUSABLE_STORAGE])
@pytest.mark.parametrize("how", [None, "failed", "finished"])
def test_a_final_code_ends_the_job_unless_its_run_is_finished(code: ExitCode, how: Any) -> None:
    rules = replace(RULES, final_codes=Task(run="job.py").final_codes)
    claim = SeenClaim(number=2, target=A, how=how)
    observed = seen(claim=claim, ray_job=ray("failed", exit_code=code, words=f"exit code {code}: no column"))
    decision = decide(RUNNING, observed, rules, NOW)
    ended = (
        JobSucceeded(number=2)
        if how == "finished"
        else JobFailed(number=2, why=f"exit code {code}: no column", code=code)
    )
    assert decision.state == ended
    assert [(each.how, each.number) for each in decision.actions if isinstance(each, RecordEnd)] == (
        [("failed", 2)] if how is None else []
    ), "an attempt without a recorded end looks as if it still trained"


@pytest.mark.parametrize("code", [ExitCode.FAILED, ExitCode.FENCED, ExitCode.INTERRUPTED, 137, None])
def test_other_codes_are_tried_again(code: int | None) -> None:
    rules = replace(RULES, final_codes=Task(run="job.py").final_codes)
    decision = decide(RUNNING, seen(ray_job=ray("failed", exit_code=code)), rules, NOW)
    assert isinstance(decision.state, AttemptWithdrawing)


def test_a_command_has_codes_of_its_own() -> None:
    own, ours = Task(command=("make",)).final_codes, Task(run="job.py").final_codes
    assert ExitCode.REFUSED in ours and ExitCode.REFUSED not in own
    assert ours & own == {ExitCode.USAGE, ExitCode.UNUSABLE_STORAGE}


def test_a_job_with_effects_elsewhere_waits_for_a_silent_cluster() -> None:
    assert decide(LONG_LOST, seen(), WAIT, NOW).state == LONG_LOST
    assert isinstance(decide(STUCK, seen(ray_job=ray("starting")), WAIT, NOW).state, AttemptWithdrawing)


def test_the_claim_says_where_an_attempt_runs() -> None:
    decision = decide(PLACING, seen(claim=SeenClaim(number=2, target=B)), RULES, NOW)
    assert decision.state == AttemptStarting(number=2, failures=0, target=B, deadline=NOW + 600)
    assert decision.actions == (CreateRayJob(number=2, target=B),)


def test_places_that_turned_an_attempt_away_are_named() -> None:
    late = decide(LATE, seen(ray_job=ray("starting", words="0/4 nodes are available")), RULES, NOW)
    assert "0/4 nodes are available" in late.why
    assert isinstance(late.state, AttemptWithdrawing) and late.state.failures == 0
    assert decide(late.state, seen(ray_job=ray("absent")), RULES, NOW).turned_away == A


def test_failures_count_and_withdrawals_do_not() -> None:
    failed = decide(RUNNING, seen(ray_job=ray("failed", words="exit 1")), RULES, NOW)
    queued = decide(failed.state, seen(ray_job=ray("absent")), RULES, NOW).state
    assert queued == JobQueued(since=NOW, number=2, failures=1)
    again = decide(failed.state, seen(ray_job=ray("absent")), RULES, NOW)
    assert (again.failed_at, again.turned_away) == (A, None)
    claim = SeenClaim(number=5, target=B)
    adopted = decide(JobQueued(since=NOW), JobObservation(claim=claim, failures=3), RULES, NOW).state
    assert adopted == AttemptStarting(number=5, failures=3, target=B, deadline=NOW + 600)
    last = decide(WORN, seen(ray_job=ray("failed", words="exit 74", exit_code=74)), RULES, NOW).state
    assert last == JobFailed(number=2, why="exit 74 (attempt 2, 3 failures, 2 retries allowed)", code=74)
    assert state_from_facts(state_to_facts(last)) == last
