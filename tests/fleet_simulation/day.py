"""A day of a simulated fleet on a fake clock.

It has jobs, faults and controllers. The laws are checked at every step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles

from tests.fleet_simulation.clusters import SimulatedFleet
from tests.fleet_simulation.storage import SimulatedStorage

from forebay.errors import WriteFailed
from forebay.fleet.federation.acceptance import Oversight
from forebay.fleet.federation.audit import AuditLine
from forebay.fleet.federation.federation import Federation, Placer
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.lifecycle.states import JobEnd, JobSucceeded
from forebay.fleet.placement.place import place
from forebay.fleet.spec.job_spec import JobSpec


class ControllerEnded(Exception):
    """A simulated `kill -9` of a controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job of one task, with its submission time.

    Its work is in worker seconds.
    """

    spec: JobSpec
    submitted_at: float
    work: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Chances of faults, per cluster and hour.

    A node is lost per running attempt and hour.
    """

    cut: float = 0.0
    storage_cut: float = 0.0
    refused: float = 0.0
    throttled: float = 0.0
    lost_answers: float = 0.0
    stale: float = 0.0
    node_loss: float = 0.0
    spot_storm: float = 0.0
    longest_s: float = 2400.0


@dataclass(slots=True)
class DayReport:
    """Numbers of a day."""

    started_after_s: list[float] = field(default_factory=list)
    starts: int = 0
    succeeded: int = 0
    ended: int = 0
    withdrawals: int = 0
    gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    controllers_ended: int = 0
    cluster_requests: int = 0
    storage_requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def mean_start_s(self) -> float:
        """Mean time from submission to the first running worker."""
        return fmean(self.started_after_s) if self.started_after_s else 0.0

    @property
    def p99_start_s(self) -> float:
        """99th percentile of that time."""
        return quantiles(self.started_after_s, n=100)[-1] if len(self.started_after_s) > 1 else self.mean_start_s

    @property
    def idle_share(self) -> float:
        """Share of GPU time without a worker."""
        return 1 - self.busy_gpu_s / self.gpu_s if self.gpu_s else 0.0

    @property
    def restarts(self) -> int:
        """Starts beyond the first one of each job."""
        return self.starts - len(self.started_after_s)


class SimulatedDay:
    """Jobs on a fleet, under faults.

    Every step checks the laws of what is kept, and `run` that no job is lost. `num_controllers` run at the same time,
    each with its own journal. `crash_chance` is each effect's chance to end its controller, before or after.
    `keeps_journal` says whether the next one finds the journal.
    """

    def __init__(
        self,
        fleet: Fleet,
        clusters: SimulatedFleet,
        jobs: Sequence[SimulatedJob],
        *,
        seed: int = 0,
        faults: FaultRates | None = None,
        placer: Placer = place,
    ) -> None:
        self.fleet, self.clusters, self.jobs = fleet, clusters, sorted(jobs, key=lambda job: job.submitted_at)
        self.storage, self.report = SimulatedStorage(), DayReport()
        self.faults, self.placer = faults or FaultRates(), placer
        self.num_controllers, self.crash_chance, self.keeps_journal = 1, 0.0, True
        self.step_s = 30.0
        self.audit_chance = 0.0
        self.lines: list[AuditLine] = []
        # Of their own each, so that the same clusters fail at the same times under every rule of placement.
        self._random, self._losses, self._ends = (random.Random(seed + n) for n in range(3))
        self._refusals = random.Random(seed + 3)
        self._checked = 0
        self._work = {job.spec.run_name(job.spec.task[0]): job.work for job in jobs}
        self._submitted: list[SimulatedJob] = []
        self._started: dict[str, float] = {}
        self._seen_starts: set[str] = set()
        self._faults_end: list[tuple[float, Callable[[], None]]] = []
        self._controllers: list[tuple[Federation, JobJournal]] = []

    def run(self, seconds: float, *, drain_s: float = 86_400.0) -> DayReport:
        """Run the day, and drain it without faults.

        All jobs end then. Fails if one has not ended after `drain_s`.
        """
        now = 0.0
        self._controllers = [self._new_controller() for _ in range(self.num_controllers)]
        self.clusters.effect = self._maybe_end
        while now < seconds or not self._is_done():
            now += self.step_s
            assert now < seconds + drain_s, f"jobs did not end: {self._left()[:5]}"
            self.clusters.now = now
            self._submit(now)
            if now < seconds:
                self._inject(now)
            self._end_faults(now, everything=now >= seconds)
            for found in self.clusters.clusters.values():
                found.advance(self.storage, self._work.__getitem__, now, self.step_s)
            self._step_controllers(now)
            self._check_audit()
            self._measure(now, in_day=now < seconds)
        return self._summary()

    def _new_controller(self) -> tuple[Federation, JobJournal]:
        journal = JobJournal(":memory:")
        controller = self._federation(journal)
        for job in self._submitted:
            controller.submit(job.spec, job.submitted_at)
        return controller, journal

    def _federation(self, journal: JobJournal) -> Federation:
        oversight = Oversight(note=self._note)
        return Federation(self.fleet, self.clusters, self.storage, journal, placer=self.placer, oversight=oversight)

    def _note(self, line: AuditLine) -> None:
        if self.audit_chance and self._refusals.random() < self.audit_chance:
            self.report.faults["audit"] += 1
            raise WriteFailed("the audit takes no line")
        self.lines.append(line)
        self.clusters.effect("audit")

    def _check_audit(self) -> None:
        """Every change in a cluster has a line of before."""
        told = {(line.action, line.cluster, line.object) for line in self.lines}
        new = self.clusters.changes[self._checked :]
        assert told.issuperset(new), f"a change without a line: {set(new) - told}"
        self._checked += len(new)

    def _submit(self, now: float) -> None:
        while len(self._submitted) < len(self.jobs) and self.jobs[len(self._submitted)].submitted_at <= now:
            job = self.jobs[len(self._submitted)]
            self._submitted.append(job)
            for controller, _ in self._controllers:
                controller.submit(job.spec, job.submitted_at)

    def _step_controllers(self, now: float) -> None:
        for number, (controller, journal) in enumerate(self._controllers):
            try:
                controller.step(now)
            except ControllerEnded:
                self.report.controllers_ended += 1
                self.report.faults["controller killed"] += 1
                if self.keeps_journal:
                    self._controllers[number] = (self._federation(journal), journal)
                else:
                    journal.close()
                    self._controllers[number] = self._new_controller()

    def _maybe_end(self, _: str) -> None:
        if self.crash_chance and self._ends.random() < self.crash_chance:
            raise ControllerEnded

    def _inject(self, now: float) -> None:
        share = self.step_s / 3600
        rates = self.faults
        for found in self.clusters.clusters.values():
            for name, rate in (
                ("is_cut", rates.cut),
                ("is_storage_cut", rates.storage_cut),
                ("is_refusing", rates.refused),
                ("is_throttling", rates.throttled),
                ("loses_answers", rates.lost_answers),
            ):
                if rate and self._random.random() < rate * share and not getattr(found, name):
                    self.report.faults[name.removeprefix("is_")] += 1
                    setattr(found, name, True)
                    self._later(now, lambda found=found, name=name: setattr(found, name, False))  # type: ignore[misc]
            if rates.stale and self._random.random() < rates.stale * share and found.frozen is None:
                self.report.faults["stale"] += 1
                found.frozen = found.capacity(now)
                self._later(now, lambda found=found: setattr(found, "frozen", None))  # type: ignore[misc]
            is_storm = bool(rates.spot_storm) and self._random.random() < rates.spot_storm * share
            for job in found.jobs.values():
                is_taken = is_storm and job.attempt.market == "spot" and self._losses.random() < 0.7
                if job.phase == "running" and (is_taken or self._losses.random() < rates.node_loss * share):
                    self.report.faults["spot taken" if is_taken else "head lost"] += 1
                    found.end(job, "failed", "its head was lost", now)

    def _later(self, now: float, undo: Callable[[], None]) -> None:
        self._faults_end.append((now + self._random.uniform(60, self.faults.longest_s), undo))

    def _end_faults(self, now: float, *, everything: bool) -> None:
        left = []
        for end, undo in self._faults_end:
            if everything or end <= now:
                undo()
            else:
                left.append((end, undo))
        self._faults_end = left

    def _measure(self, now: float, *, in_day: bool) -> None:
        for found in self.clusters.clusters.values():
            if in_day:
                self.report.gpu_s += found.nodes.total_gpus * self.step_s
                self.report.busy_gpu_s += found.busy_gpus * self.step_s
            for name, job in found.jobs.items():
                if job.phase == "running" and name not in self._seen_starts:
                    self._seen_starts.add(name)
                    self.report.starts += 1
                    self._started.setdefault(job.run, now)
                    self._check_limits(job.attempt.spec, job.attempt.sku, found.cluster.name)

    def _check_limits(self, spec: JobSpec, sku: str, cluster: str) -> None:
        named = self.fleet.named(cluster)
        assert named.is_allowed(spec.scheduling.clusters, spec.scheduling.deny) is None, "a job runs where it may not"
        wanted = spec.task[0].workers.sku
        assert not wanted or sku in wanted

    def _is_done(self) -> bool:
        return len(self._submitted) == len(self.jobs) and not self._left()

    def _left(self) -> list[str]:
        return [entry.name for _, journal in self._controllers for entry in journal.entries(live=True)]

    def _summary(self) -> DayReport:
        """Check that every job ended once, with reasons."""
        submitted = {job.spec.run_name(job.spec.task[0]): job.submitted_at for job in self.jobs}
        for name, work in self._work.items():
            run = self.storage.runs[name]
            if run.finished_by is not None:
                assert run.progress == work, "a finished run has all of its work, once"
        _, journal = self._controllers[0]
        for entry in journal.entries():
            assert isinstance(entry.state, JobEnd)
            self.report.ended += 1
            self.report.succeeded += isinstance(entry.state, JobSucceeded)
            reasons = journal.reasons(entry.name)
            assert all(reason.why for reason in reasons), "a decision without a reason"
            states = [reason.state for reason in reasons]
            self.report.withdrawals += states.count("AttemptWithdrawing")
        self.report.started_after_s = [at - submitted[name] for name, at in self._started.items()]
        self.report.cluster_requests = self.clusters.requests
        self.report.storage_requests = self.storage.requests
        return self.report
