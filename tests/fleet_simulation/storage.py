"""Simulated storage, with the laws of what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from forebay.errors import ReadFailed
from forebay.fleet.lifecycle.decide import SeenClaim
from forebay.fleet.lifecycle.states import Target
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.training.runs.attempts.files import How


@dataclass(slots=True)
class StoredRun:
    """A run in storage.

    `commits` are pairs of an attempt and the work that was done when it saved.
    """

    claims: list[SeenClaim] = field(default_factory=list)
    commits: list[tuple[int, float]] = field(default_factory=list)
    finished_by: int | None = None

    @property
    def progress(self) -> float:
        """Work that is kept."""
        return self.commits[-1][1] if self.commits else 0.0


class SimulatedStorage:
    """`StoragePort` in memory.

    `is_cut` makes every request of a controller fail.
    """

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.stopped: set[str] = set()
        self.is_cut = False
        self.requests = 0

    def run(self, spec: JobSpec, task: Task) -> StoredRun:
        """Run of a task."""
        return self.runs.setdefault(spec.run_name(task), StoredRun())

    def newest_claim(self, spec: JobSpec, task: Task) -> SeenClaim | None:
        self._request()
        run = self.run(spec, task)
        if not run.claims:
            return None
        newest = run.claims[-1]
        return replace(newest, how="finished") if run.finished_by == newest.number else newest

    def failures(self, spec: JobSpec, task: Task, *, since: int, before: int) -> int:
        return sum(claim.how == "failed" for claim in self.run(spec, task).claims[max(since, 1) - 1 : before - 1])

    def is_stopped(self, spec: JobSpec, task: Task, live: int = 0) -> bool:
        return spec.run_name(task) in self.stopped

    def claim(self, spec: JobSpec, task: Task, number: int, target: Target) -> bool:
        self._request()
        claims = self.run(spec, task).claims
        if number <= len(claims):
            return False
        assert number == len(claims) + 1, "a claim was skipped"
        claims.append(SeenClaim(number=number, target=target))
        return True

    def end(self, spec: JobSpec, task: Task, number: int, how: How, why: str) -> None:
        self._request()
        claims = self.run(spec, task).claims
        if claims[number - 1].how is None:
            claims[number - 1] = replace(claims[number - 1], how=how, why=why)

    def commit(self, name: str, number: int, begin: float, end: float) -> bool:
        """Save the work of an attempt.

        It goes from `begin` to `end`. False if a later attempt has taken over: it is fenced.
        """
        run = self.runs[name]
        if number != len(run.claims):
            return False
        assert run.progress == begin, "work is kept twice, or is missing"
        assert run.finished_by is None, "a finished run trains"
        run.commits.append((number, end))
        return True

    def finish(self, name: str, number: int) -> None:
        """Write the result of a run, once."""
        run = self.runs[name]
        assert number == len(run.claims)
        assert run.finished_by is None, "a run has two results"
        run.finished_by = number

    def _request(self) -> None:
        self.requests += 1
        if self.is_cut:
            raise ReadFailed("storage gives no answer")
