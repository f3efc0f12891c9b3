"""Claims and ends of runs in storage."""

from __future__ import annotations

import time

from forebay.errors import InvalidOption, ReadFailed, WriteFailed
from forebay.events import Request
from forebay.fleet.cluster import Market
from forebay.fleet.lifecycle.decide import SeenClaim
from forebay.fleet.lifecycle.states import Target
from forebay.fleet.spec.canonical import key_of
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.storage.credentials import redact, redacted
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, How
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.attempts.stored_request import load_request
from forebay.training.runs.run_folder import RunFolder

_MARKETS: dict[str, Market] = {"spot": "spot", "on-demand": "on-demand"}


STOP_S = 120.0
"""Time in which a run obeys a request to stop: it saves a checkpoint first."""


class RunStorage:
    """`StoragePort` over the files of attempts.

    A claim names the target of its attempt, for the next controller. A request to stop counts after `stop_s` seconds:
    until then the run may end by itself.

    Attributes:
        targets: Attempts and workers that users asked for, by the URI of the run.
    """

    def __init__(self, *, stop_s: float = STOP_S) -> None:
        self._stop_s = stop_s
        self._requested_at: dict[str, float] = {}
        self.targets: dict[str, tuple[int, int]] = {}
        self._replaced: dict[str, int] = {}

    def begin_after(self, spec: JobSpec, task: Task, number: int) -> None:
        """Take the ends of attempts up to `number` for the ends of an earlier specification."""
        self._replaced[run_folder(spec, task).uri] = number

    def newest_claim(self, spec: JobSpec, task: Task) -> SeenClaim | None:
        """Return the newest claim of a run, with its end.

        Raises `ReadFailed`.
        """
        run = run_folder(spec, task)
        files = AttemptFiles(run)
        try:
            claim = files.newest()
            is_replaced = claim is None or claim.number <= self._replaced.get(run.uri, 0)
            end = None if claim is None or is_replaced else files.ended(claim.number)
        except OSError as error:
            raise _unread(spec, task, error) from redacted(error)
        if claim is None:
            return None
        target = target_of(claim.cluster)
        if end is None:
            return SeenClaim(number=claim.number, target=target)
        return SeenClaim(number=claim.number, target=target, how=end.how, why=end.why)

    def failures(self, spec: JobSpec, task: Task, *, since: int, before: int) -> int:
        """Count recorded failures of attempts `since` to `before` - 1.

        Raises `ReadFailed`.
        """
        files = AttemptFiles(run_folder(spec, task))
        try:
            return files.num_failed(since, before)
        except OSError as error:
            raise _unread(spec, task, error) from redacted(error)

    def is_stopped(self, spec: JobSpec, task: Task, live: int = 0) -> bool:
        """Whether a request to stop is old enough.

        Raises `ReadFailed`. A request that its attempt has obeyed counts only if that is the attempt `live`, whose
        RayJob is still there. One to an attempt that is not placed yet counts at once.
        """
        run = run_folder(spec, task)
        files = AttemptFiles(run)
        try:
            newest = files.newest()
            number = 0 if newest is None else newest.number
            if not live and load_request(run, number + 1).stop is not None:
                return True
            request = load_request(run, number) if number else Request()
            if request.target is not None:
                self.targets[run.uri] = (number, request.target)
            is_requested = request.stop is not None
            if is_requested:
                # A queued job whose attempt has obeyed was submitted again since.
                end = files.ended(number)
                is_requested = end is None or end.how != "stopped" or number == live
        except OSError as error:
            raise _unread(spec, task, error) from redacted(error)
        if not is_requested:
            self._requested_at.pop(run.uri, None)
            return False
        now = time.monotonic()
        return now - self._requested_at.setdefault(run.uri, now) >= self._stop_s

    def claim(self, spec: JobSpec, task: Task, number: int, target: Target) -> bool:
        """Claim attempt `number` of a run for a target.

        Returns false if another process has it. Raises `WriteFailed`, and `NoExclusiveCreation` for a store that cannot
        decide.
        """
        try:
            made = create_attempt(run_folder(spec, task), number, key=key_of(spec), cluster=text_of(target))
        except OSError as error:
            raise WriteFailed(
                f"attempt {number} of {spec.name} could not be claimed in {spec.storage} ({redact(str(error))}). Check "
                "that the storage answers.",
                name=spec.name,
            ) from redacted(error)
        return made is not None

    def end(self, spec: JobSpec, task: Task, number: int, how: How, why: str) -> None:
        """Record how an attempt ended, unless it did.

        Raises `WriteFailed`.
        """
        files = AttemptFiles(run_folder(spec, task))
        try:
            if files.ended(number) is None:
                files.end(number, AttemptEnd(how=how, why=why))
        except OSError as error:
            raise WriteFailed(
                f"the end of attempt {number} of {spec.name} could not be recorded in {spec.storage} "
                f"({redact(str(error))}). Check that the storage answers.",
                name=spec.name,
            ) from redacted(error)

    def token(self, spec: JobSpec, task: Task, number: int) -> str:
        """Return the token of attempt `number`.

        Its process shows it to adopt the claim. Raises `ReadFailed`.
        """
        try:
            claim = AttemptFiles(run_folder(spec, task)).newest()
        except OSError as error:
            raise _unread(spec, task, error) from redacted(error)
        if claim is None or claim.number != number:
            raise ReadFailed(f"attempt {number} of {spec.name} is not the newest one in {spec.storage}.")
        return claim.token


def text_of(target: Target) -> str:
    """Return a target as one text, for a claim.

    >>> text_of(Target(cluster="west", sku="h100", market="spot", workers=4))
    'west/h100/spot/4'
    """
    return f"{target.cluster}/{target.sku}/{target.market}/{target.workers}"


def target_of(text: str) -> Target:
    """Return the target in a claim.

    Raises `InvalidOption` for a run that was started outside of the fleet.
    """
    parts = text.split("/")
    if len(parts) != 4 or parts[2] not in _MARKETS or not parts[3].isdecimal():
        raise InvalidOption(
            f"the run was started outside of the fleet ({text or 'no target'} is in its claim). Give the job a name "
            "that no plain run has.",
            target=text,
        )
    return Target(cluster=parts[0], sku=parts[1], market=_MARKETS[parts[2]], workers=int(parts[3]))


def run_folder(spec: JobSpec, task: Task) -> RunFolder:
    """Folder of the run of a task."""
    return RunFolder.below(spec.storage, spec.run_name(task))


def _unread(spec: JobSpec, task: Task, error: OSError) -> ReadFailed:
    return ReadFailed(
        f"the attempts of {spec.run_name(task)} in {spec.storage} cannot be read ({redact(str(error))}). Check that "
        "the storage answers.",
        name=spec.name,
    )
