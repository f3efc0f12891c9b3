"""The federation: observe, decide on every job, and act."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from forebay.errors import InvalidOption, ReadFailed, WriteFailed
from forebay.fleet.cluster import Cluster
from forebay.fleet.federation.acceptance import ANYBODY, GpuShares, Oversight
from forebay.fleet.federation.audit import Action, AuditLine
from forebay.fleet.federation.ports import ClusterPort, ClusterView, StoragePort
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.kube.api_errors import KubeError, NamespaceEnds, ObjectInvalid, QuotaExceeded
from forebay.fleet.kube.kuberay import NameTaken
from forebay.fleet.lifecycle.decide import (
    ENDED_PHASES,
    AttemptRules,
    ClaimAttempt,
    CreateRayJob,
    DeleteRayJob,
    FleetAction,
    FleetDecision,
    JobObservation,
    RecordEnd,
    SeenClaim,
    SeenRayJob,
    decide,
)
from forebay.fleet.lifecycle.journal import JobJournal, JournalEntry
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
from forebay.fleet.placement.capacity import Capacity
from forebay.fleet.placement.history import PlacementHistory
from forebay.fleet.placement.hold import Holds, WaitingTask, choose_holds
from forebay.fleet.placement.place import FleetView, Placement, gang_of, place, taken
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.spec.canonical import key_of
from forebay.fleet.spec.job_spec import JobSpec, Task

KEEP_ENDED_S = 3600.0
"""Time for which the RayJob of an ended attempt stays, with the log of its submitter. KubeRay deletes only its pods."""
MOST_DELETED = 10
"""Ended RayJobs that one round deletes at most: a deletion may take seconds."""
ABSENT = SeenRayJob(phase="absent")
REFUSALS = (QuotaExceeded, NamespaceEnds, ObjectInvalid, NameTaken, InvalidOption)
"""Errors after which a RayJob goes to another cluster at once."""

Placer: TypeAlias = Callable[[JobSpec, Task, FleetView, PlacementHistory, float], Placement]


@dataclass(slots=True)
class _Round:
    """Facts of one round.

    `left` is the free room less everything that was placed and is not counted yet.
    """

    now: float
    views: Mapping[str, ClusterView]
    left: dict[str, Capacity]
    shares: GpuShares
    clusters: Mapping[str, Cluster]
    full: dict[object, Placement] = field(default_factory=dict)


class Federation:
    """Controller of the jobs of a fleet.

    Any number of them may run: claims in storage decide between them. It may be ended at any point and started again,
    with its journal or without.

    Attributes:
        failed_attempts: Number of attempts that this process saw fail.
    """

    def __init__(
        self,
        fleet: Fleet,
        clusters: ClusterPort,
        storage: StoragePort,
        journal: JobJournal,
        *,
        placer: Placer = place,
        oversight: Oversight = ANYBODY,
    ) -> None:
        self._fleet, self._clusters, self._storage, self._journal = fleet, clusters, storage, journal
        self._placer, self._audit, self._shares = placer, oversight.note, oversight.shares
        self._history: dict[str, PlacementHistory] = {}
        self._holds: Holds = {}
        self._waits: dict[str, tuple[str, ...]] = {}
        self._prefixes: dict[str, str] = {}
        self._ended_at: dict[tuple[str, str], float] = {}
        # RayJobs that their clusters refused, with the words: no later round could create them there.
        self._refused: dict[str, SeenRayJob] = {}
        # Runs whose claims were read. Without a journal, attempts are followed also if they fill the fleet.
        self._read: set[str] = set()
        self.failed_attempts = 0

    def submit(self, spec: JobSpec, now: float | None = None) -> None:
        """Add a job.

        One of the same name stays as it is, unless it has another specification and no attempt.
        """
        entries = [self._journal.entry(spec.run_name(task)) for task in spec.task]
        known = [entry for entry in entries if entry is not None and entry.spec != spec]
        # A job of the same name in another storage is somebody else's.
        if known and all(
            entry.spec.storage == spec.storage and isinstance(entry.state, JobEnd | JobQueued) for entry in known
        ):
            self._journal.replace(spec)
            for entry in known:
                self._prefixes.pop(entry.name, None)
        self._journal.add(spec, time.time() if now is None else now)

    def reasons(self, name: str) -> tuple[str, ...]:
        """Reasons for which a queued job waits, one per cluster."""
        return self._waits.get(name, ())

    def step(self, now: float) -> None:
        """Make a round over live jobs, by submission."""
        views = self._clusters.look_all(now)
        entries = list(self._journal.entries(live=True))
        described = {each.name: each for each in self._fleet.cluster}
        described |= {name: view.cluster for name, view in views.items() if view.cluster is not None}
        round_ = _Round(
            now, views, {name: view.capacity for name, view in views.items()}, self._shares(entries), described
        )
        self._reserve(entries, round_)
        self._hold(entries, round_)
        for entry in entries:
            decision = self._decide(entry, round_)
            self._record(entry, decision, now)
            for action in decision.actions:
                self._act(entry, action)
        self._delete_ended(entries, round_)

    def _decide(self, entry: JournalEntry, round_: _Round) -> FleetDecision:
        before = self._before(entry)
        if before is not None:
            return before
        try:
            observed = self._observe(entry, round_)
        except InvalidOption as error:
            # The run of this name was started by somebody else. The other jobs of the fleet go on.
            return FleetDecision(state=JobFailed(number=0, why=str(error)), why=str(error))
        return decide(entry.state, observed, rules_of(entry.spec, entry.task), round_.now)

    def _before(self, entry: JournalEntry) -> FleetDecision | None:
        """Return the decision on a task whose earlier tasks run or failed."""
        for name in entry.task.after:
            earlier = next(task for task in entry.spec.task if task.name == name)
            found = self._journal.entry(entry.spec.run_name(earlier))
            if found is None or isinstance(found.state, JobSucceeded):
                continue
            if isinstance(found.state, JobEnd):
                why = f"its task {name} did not succeed"
                return FleetDecision(state=JobFailed(number=0, why=why), why=why)
            return FleetDecision(state=entry.state)
        return None

    def _observe(self, entry: JournalEntry, round_: _Round) -> JobObservation:
        state = entry.state
        ray_job, is_refused = None, False
        if not isinstance(state, JobQueued | JobEnd):
            # A cluster that was taken out of the fleet file is as silent as one that is cut off.
            view = round_.views.get(state.target.cluster)
            is_refused = view is not None and view.is_refused
            if view is not None and view.ray_jobs is not None:
                name = self._name(entry, state.number)
                # A RayJob of a refused name is somebody else's.
                ray_job = self._refused.get(name) or view.ray_jobs.get(name, ABSENT)
        is_alive = ray_job is not None and ray_job.phase in ("starting", "running")
        if is_alive and isinstance(state, AttemptStarting | AttemptRunning):
            # Nothing in storage can change what is decided then.
            return JobObservation(ray_job=ray_job, is_stopped=self._is_stopped(entry))
        target, reasons = self._best(entry, round_) if isinstance(state, JobQueued) else (None, ())
        if isinstance(state, JobQueued) and target is None and entry.name in self._read:
            return JobObservation(reasons=reasons, is_stopped=self._is_stopped(entry))
        try:
            claim = self._storage.newest_claim(entry.spec, entry.task)
            if claim is not None and (claim.number > state.number or isinstance(state, AttemptPlacing)):
                _require_fit(entry, claim.target, round_.clusters.get(claim.target.cluster))
            found = JobObservation(
                claim=claim,
                failures=self._failures(entry, claim),
                ray_job=ray_job,
                is_refused=is_refused,
                target=target,
                reasons=reasons,
                is_stopped=self._storage.is_stopped(entry.spec, entry.task, _live_attempt(entry)),
            )
        except ReadFailed:
            return JobObservation(storage_answers=False)
        self._read.add(entry.name)
        return found

    def _failures(self, entry: JournalEntry, claim: SeenClaim | None) -> int:
        """Count failed attempts missing in the journal.

        Another controller made them, or this one before it lost its journal.
        """
        state = entry.state
        if claim is None or claim.number <= state.number:
            return 0
        is_counted = isinstance(state, JobQueued | AttemptWithdrawing)
        since = state.number + 1 if is_counted else state.number
        return self._storage.failures(entry.spec, entry.task, since=since, before=claim.number)

    def _is_stopped(self, entry: JournalEntry) -> bool:
        try:
            return self._storage.is_stopped(entry.spec, entry.task, _live_attempt(entry))
        except ReadFailed:
            return False

    def _best(self, entry: JournalEntry, round_: _Round) -> tuple[Target | None, tuple[str, ...]]:
        if (share := round_.shares.refusal(entry)) is not None:
            return None, (share,)
        history = self._history.get(entry.name, PlacementHistory())
        key = (repr(entry.task.workers), repr(entry.spec.scheduling), entry.name in self._holds.values())
        is_usual = history == PlacementHistory() and not key[-1]
        if is_usual and key in round_.full:
            return None, self._why(round_.full[key])
        placement = self._placer(entry.spec, entry.task, self._view(round_), history, round_.now)
        best = placement.best
        if best is None:
            if is_usual:
                round_.full[key] = placement
            return None, self._why(placement)
        round_.shares.take(entry)
        left = round_.left[best.cluster]
        round_.left[best.cluster] = replace(left, nodes=taken(left.nodes, best.gang))
        target = Target(
            cluster=best.cluster,
            sku=best.sku,
            market=best.market,
            workers=best.workers,
            price_per_hour=best.price_per_hour,
            is_head_apart=best.is_head_apart,
        )
        return target, ()

    def _why(self, placement: Placement) -> tuple[str, ...]:
        return tuple(f"{each.cluster}: {each.reason}" for each in placement.refusals)

    def _view(self, round_: _Round) -> FleetView:
        return FleetView(clusters=tuple(round_.clusters.values()), capacities=round_.left, held=self._holds)

    def _reserve(self, entries: list[JournalEntry], round_: _Round) -> None:
        """Reserve capacity for placed attempts without counted pods."""
        for entry in entries:
            state = entry.state
            if isinstance(state, AttemptPlacing | AttemptStarting):
                view = round_.views.get(state.target.cluster)
                if view is None or self._name(entry, state.number) in view.counted:
                    continue
                left, cluster = round_.left[state.target.cluster], round_.clusters[state.target.cluster]
                if state.target.sku not in cluster.sku:  # its catalogue was changed, or was not read yet
                    continue
                gang = gang_of(entry.spec, entry.task, cluster, state.target.sku, state.target.market)
                gang = replace(gang, workers=state.target.workers)
                round_.left[state.target.cluster] = replace(left, nodes=taken(left.nodes, gang))

    def _hold(self, entries: list[JournalEntry], round_: _Round) -> None:
        waiting = [
            WaitingTask(name=entry.name, spec=entry.spec, task=entry.task, since=self._waits_since(entry))
            for entry in entries
            # Room that is held for a task that may not start would stay empty, also for the task that it waits for.
            if isinstance(entry.state, JobQueued)
            and self._before(entry) is None
            and round_.shares.refusal(entry) is None
        ]
        self._holds = choose_holds(waiting, self._view(round_), self._holds, round_.now)

    def _waits_since(self, entry: JournalEntry) -> float:
        """Return when a task began to wait. An attempt that was turned away did not end that, one that failed did."""
        return max(entry.submitted_at, self._history.get(entry.name, PlacementHistory()).failed_at)

    def _record(self, entry: JournalEntry, decision: FleetDecision, now: float) -> None:
        if isinstance(entry.state, LiveAttempt):
            failures = getattr(decision.state, "failures", entry.state.failures)
            self.failed_attempts += max(isinstance(decision.state, JobFailed), failures - entry.state.failures)
        if decision.turned_away is not None:
            self._remember(entry.name, decision.turned_away, now)
        if decision.failed_at is not None:
            at, history = decision.failed_at, self._history.get(entry.name, PlacementHistory())
            self._history[entry.name] = history.with_failure((at.cluster, at.sku, at.market), now)
        if isinstance(decision.state, JobQueued) and decision.state.reasons:
            self._waits[entry.name] = decision.state.reasons
        if isinstance(decision.state, AttemptRunning) and not isinstance(entry.state, AttemptRunning):
            history = self._history.get(entry.name, PlacementHistory())
            self._history[entry.name] = replace(history, ran={**history.ran, decision.state.target.cluster: now})
        if decision.state != entry.state and _is_news(decision, entry):
            self._journal.record(entry.name, decision.state, now, decision.why)
            if (action := _audited(entry.state, decision.state)) is not None:
                with suppress(WriteFailed):  # it changes no cluster
                    self._audit(_line(entry, action, decision.state.number, decision.why))

    def _remember(self, name: str, target: Target, now: float) -> None:
        history = self._history.get(name, PlacementHistory())
        away = {**history.turned_away, (target.cluster, target.sku, target.market): now}
        self._history[name] = replace(history, turned_away=away)

    def _act(self, entry: JournalEntry, action: FleetAction) -> None:
        """Carry out one action.

        What fails is found out by the next round.
        """
        attempt = self._attempt(entry, action.number, action.target)
        try:
            if isinstance(action, CreateRayJob | DeleteRayJob):
                kind: Action = "started" if isinstance(action, CreateRayJob) else "deleted"
                line = _line(entry, kind, action.number, getattr(entry.state, "why", ""))
                self._audit(replace(line, cluster=action.target.cluster, object=attempt.name))
            match action:
                case ClaimAttempt():
                    self._storage.claim(entry.spec, entry.task, action.number, action.target)
                case CreateRayJob():
                    self._clusters.create(action.target.cluster, attempt)
                case RecordEnd():
                    self._storage.end(entry.spec, entry.task, action.number, action.how, action.why)
                case DeleteRayJob():
                    self._clusters.delete(action.target.cluster, attempt.name, key=key_of(entry.spec))
        except (KubeError, ReadFailed, WriteFailed, InvalidOption) as error:
            # The other jobs of the fleet go on.
            self._waits[entry.name] = (str(error),)
            if isinstance(action, CreateRayJob) and isinstance(error, REFUSALS):
                self._refused[attempt.name] = SeenRayJob(phase="absent", words=str(error), is_unstartable=True)

    def _delete_ended(self, entries: list[JournalEntry], round_: _Round) -> None:
        """Delete RayJobs that ended long ago.

        Attempts of jobs that were live in this round stay.
        """
        live = {self._name(entry, entry.state.number) for entry in entries if not isinstance(entry.state, JobEnd)}
        ended = {
            (cluster, name)
            for cluster, view in round_.views.items()
            for name, ray_job in (view.ray_jobs or {}).items()
            if ray_job.phase in ENDED_PHASES and name not in live
        }
        # A deletion that did not succeed is tried again after the same time.
        self._ended_at = {each: self._ended_at.get(each, round_.now) for each in ended}
        due = [each for each, at in self._ended_at.items() if round_.now - at >= KEEP_ENDED_S]
        for cluster, name in sorted(due)[:MOST_DELETED]:
            self._ended_at[cluster, name] = round_.now
            with suppress(KubeError, WriteFailed):
                why = f"it ended {KEEP_ENDED_S / 60:.0f} minutes ago"
                self._audit(AuditLine(action="deleted", cluster=cluster, object=name, why=why))
                self._clusters.delete(cluster, name)

    def _name(self, entry: JournalEntry, number: int) -> str:
        """Return the name of an attempt's RayJob.

        Its hash takes longer than the rest of a round.
        """
        prefix = self._prefixes.get(entry.name)
        if prefix is None:
            placed = PlacedAttempt(spec=entry.spec, task=entry.task, number=number, sku="")
            prefix = self._prefixes[entry.name] = placed.prefix
        return f"{prefix}-{number}"

    def _attempt(self, entry: JournalEntry, number: int, target: Target) -> PlacedAttempt:
        return PlacedAttempt(
            spec=entry.spec,
            task=entry.task,
            number=number,
            sku=target.sku,
            market=target.market,
            workers=target.workers,
            is_head_apart=target.is_head_apart,
        )


def _require_fit(entry: JournalEntry, target: Target, cluster: Cluster | None) -> None:
    """Raise `InvalidOption` for a claim that no controller makes for this job.

    A submitter who may write the run's folder may write a claim, and gets no other cluster or machine by it.
    `cluster` is None for one that is not in the fleet any more.
    """
    workers, scheduling = entry.task.workers, entry.spec.scheduling
    refusal = None if cluster is None else cluster.is_allowed(scheduling.clusters, scheduling.deny)
    if refusal is not None:
        why = f"{target.cluster} is {refusal}"
    elif not workers.min <= target.workers <= workers.largest:
        why = f"the task has {workers.min} to {workers.largest} workers"
    elif workers.sku and target.sku not in workers.sku:
        why = f"the task may have {', '.join(workers.sku)}"
    elif target.market == {"never": "spot", "only": "on-demand"}.get(workers.spot):
        why = f"the task has spot = {workers.spot!r}"
    else:
        return
    text = f"{target.cluster}/{target.sku}/{target.market}/{target.workers}"
    raise InvalidOption(
        f"its newest claim is for {text}, and {why}: no controller has made it for this job. Submit it under a name "
        "that no run has.",
        target=text,
    )


def _line(entry: JournalEntry, action: Action, number: int, why: str) -> AuditLine:
    state = entry.state
    return AuditLine(
        action=action,
        job=entry.spec.name,
        storage=entry.spec.storage,
        run=entry.name,
        attempt=number,
        cluster="" if isinstance(state, JobQueued | JobEnd) else state.target.cluster,
        why=why,
    )


def _audited(before: JobState, after: JobState) -> Action | None:
    """Action that a change of state stands for, None for the course of things."""
    match after:
        case AttemptWithdrawing(is_final=True) | JobStopped():
            was_told = isinstance(before, AttemptWithdrawing) and before.is_final
            return None if was_told else "stopped"
        case JobSucceeded():
            return "succeeded"
        case JobFailed():
            return "failed"
        case JobQueued() if isinstance(before, AttemptLost):
            return "taken over"
        case _:
            return None


def _live_attempt(entry: JournalEntry) -> int:
    """Return the attempt that may have a RayJob, or 0."""
    return entry.state.number if isinstance(entry.state, LiveAttempt) else 0


def rules_of(spec: JobSpec, task: Task) -> AttemptRules:
    """Rules of a task for its attempts."""
    scheduling = spec.scheduling
    return AttemptRules(
        start_within_s=scheduling.start_within,
        retries=task.retries,
        unreachable_s=scheduling.unreachable.after,
        is_fenced=scheduling.unreachable.then == "fence",
        final_codes=task.final_codes,
    )


def _is_news(decision: FleetDecision, entry: JournalEntry) -> bool:
    """Whether a state is worth a journal line.

    Reasons of waiting change with every round.
    """
    return type(decision.state) is not type(entry.state) or decision.state.number != entry.state.number
