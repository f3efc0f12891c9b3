"""Start of an attempt at a run.

One process claims a run. Others follow it or are refused. A silent attempt is taken over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import Fenced, InvalidOption, UnderWay
from forebay.storage.credentials import redact
from forebay.storage.exclusive import NoExclusiveCreation
from forebay.storage.file_lock import FileLock
from forebay.training.checkpoint.files.claim import GONE_S, Claim, ClaimGone, check_own, fenced_error
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts.fence import ASK_S, CONFIRM_S, Fence
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, AttemptHeartbeat
from forebay.training.runs.run_folder import RunFolder

POLL_S = 1.0

log = logging.getLogger(__name__)

OnProgress = Callable[[str], None]
"""Called with a line about the attempt that is followed, when it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedEnd:
    """Regular end of the attempt that this start has followed."""

    claim: Claim
    end: AttemptEnd


def start_attempt(run: str | RunFolder, policy: StartPolicy, on_progress: OnProgress) -> Fence | FollowedEnd:
    """Claim a run, or follow its running attempt.

    With `policy.follow`, may return the end of the attempt that was followed.

    Raises:
        UnderWay: Another attempt is alive, and `policy` does not follow.
        InvalidOption: The storage shows heartbeats later than `policy` waits.
        Fenced: The attempt that `policy` names was taken over, or has been started before.
        OSError: Storage does not answer.
    """
    files = AttemptFiles(run)
    _require_fresh_reads(files, policy)
    if policy.attempt is not None:
        return _adopt(files, policy.attempt)
    try:
        return _Starter(files, policy, on_progress).start()
    except NoExclusiveCreation as error:
        log.warning("%s Start this run on one machine at a time.", error)
        return Fence(None, None)


def _require_fresh_reads(files: AttemptFiles, policy: StartPolicy) -> None:
    """Raise `InvalidOption` if this machine would see heartbeats too late.

    A living attempt would be taken over.
    """
    from forebay.storage.private_folder import mount_of  # noqa: PLC0415 - few commands need it

    mount = mount_of(files.run.location.path) if files.is_local else None
    if mount is None or not mount.late_s:
        return
    least_s = mount.late_s + 3 * ASK_S
    if policy.takeover_s < least_s:
        raise InvalidOption(
            f"takeover_s={policy.takeover_s:g}: {files.run.location.uri} is on {mount.title}, mounted with `nocto`, so "
            f"that this machine may see a heartbeat {mount.late_s:g} s late, and take over an attempt that is alive. "
            f"Mount it without `nocto`, or wait for {least_s:g} s (--takeover-after, StartPolicy(takeover_s=...)).",
            takeover_s=policy.takeover_s,
        )


class _Starter:
    """Watches the newest attempt until it has ended.

    An attempt that is silent for too long counts as ended. Only this machine's clock is used.
    """

    def __init__(self, files: AttemptFiles, policy: StartPolicy, on_progress: OnProgress) -> None:
        self._files, self._policy, self._on_progress = files, policy, on_progress
        self._watched: Claim | None = None
        self._first = self._last = _NO_HEARTBEAT
        self._heard_at = 0.0
        self._said = ""
        self._unread_since: float | None = None

    def start(self) -> Fence | FollowedEnd:
        while True:
            found = self._read()
            if isinstance(found, FollowedEnd):
                return found
            if found is None:
                time.sleep(POLL_S)
            elif (fence := self._claim(found)) is not None:
                return fence

    def _read(self) -> FollowedEnd | int | None:
        """Return the end of the attempt that was followed, or the number to claim.

        None while the attempt is alive, and while storage does not answer: its driver, too, waits that long.
        """
        try:
            found = self._next()
        except OSError as error:
            since = self._unread_since = self._unread_since or time.monotonic()
            limit_s = GONE_S if isinstance(error, ClaimGone) else CONFIRM_S
            if self._watched is None or time.monotonic() - since > limit_s:
                raise
            self._tell(f"following {self._watched.title}: its storage does not answer ({redact(str(error))})")
            return None
        self._unread_since = None
        return found

    def _next(self) -> FollowedEnd | int | None:
        newest, watched = self._files.newest(), self._watched
        if newest is None and watched is not None:  # removed, or not mounted: a new run there would be another one
            check_own(self._files.claim_uri(watched.number), watched.number, watched.token)
            return None
        if newest is None:
            return 1
        if (end := self._files.ended(newest.number)) is not None:
            is_followed = watched is not None and self._policy.follow
            return FollowedEnd(claim=newest, end=end) if is_followed else newest.number + 1
        return newest.number + 1 if self._may_take_over(newest) else None

    def _claim(self, number: int) -> Fence | None:
        claim = Claim.of_this_process(number, restorable=self._files.restorable_by(number))
        created = self._files.create(claim)
        if isinstance(created, FileLock):
            return Fence(self._files, claim, created)
        return Fence(self._files, claim) if created else None

    def _may_take_over(self, newest: Claim) -> bool:
        """Whether the attempt has ended or is silent too long.

        Raises `UnderWay`.
        """
        is_dead = self._is_dead(newest)
        if is_dead:
            log.info("%s has ended without a record of it. This start takes over.", newest.title)
            return True
        silent_s = self._listen(newest)
        is_alive = is_dead is False or self._last != self._first
        if is_alive and not self._policy.follow:
            raise UnderWay(
                f"a run named {self._files.run.name!r} is under way: {newest.title} in {self._files.uri}. Wait for its "
                "end, follow it (`forebay run --follow`, start=StartPolicy(follow=True)), or give this one another "
                "name.",
                name=self._files.run.name,
                attempt=newest.number,
                host=newest.host,
            )
        if silent_s >= self._policy.takeover_s:
            log.warning(
                "%s has sent no heartbeat for %.0f s. This start takes over; the other ends when it reaches storage.",
                newest.title,
                silent_s,
            )
            return True
        self._say(newest, silent_s)
        return False

    def _is_dead(self, claim: Claim) -> bool | None:
        if self._files.is_local and claim.is_of_this_kernel:
            is_locked = self._files.is_locked(claim.number)
            if is_locked is not None:
                return not is_locked
        return claim.is_dead()

    def _listen(self, newest: Claim) -> float:
        """Seconds since the last new heartbeat of the attempt."""
        asked_at = time.monotonic()
        heartbeat = self._files.heartbeat(newest.number) or _NO_HEARTBEAT
        if self._watched is None or self._watched.token != newest.token:
            self._watched, self._first, self._last, self._heard_at = newest, heartbeat, heartbeat, time.monotonic()
        elif heartbeat != self._last or self._unread_since is not None:
            # Storage that did not answer here may not have taken its heartbeats either.
            self._last, self._heard_at = heartbeat, time.monotonic()
        # Up to the question, not to its answer: this process may have been suspended in between.
        return max(asked_at - self._heard_at, 0.0)

    def _say(self, newest: Claim, silent_s: float) -> None:
        last = self._last
        where = f": epoch {min(last.epoch + 1, last.epochs)} of {last.epochs}, step {last.step}" if last.epochs else ""
        text = f"following {newest.title}{where}"
        if silent_s > 2 * ASK_S:
            text += f"; no heartbeat for {silent_s // 10 * 10:.0f} s, taken over after {self._policy.takeover_s:g} s"
        self._tell(text)

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._on_progress(text)


_NO_HEARTBEAT = AttemptHeartbeat(number=0)


def _adopt(files: AttemptFiles, attempt: str) -> Fence:
    """Adopt the attempt `NUMBER/TOKEN`.

    Another process has created it for this one.
    """
    number, _, token = attempt.partition("/")
    claim = files.newest() if number.isdecimal() else None
    if claim is None or claim.number < int(number):
        raise InvalidOption(
            f"attempt={attempt!r} is not in {files.uri}. Give the number and the token of its file there.",
            attempt=attempt,
        )
    if claim.number > int(number) or claim.token != token:
        raise fenced_error(files.claim_uri(claim.number), int(number))
    if not files.start(Claim.of_this_process(claim.number)):
        raise Fenced(
            f"attempt {claim.number} in {files.uri} was started before: a second process of it ends. Its submitter "
            "makes a new attempt where one is needed.",
            attempt=claim.number,
        )
    return Fence(files, claim)


def create_attempt(run: str | RunFolder, number: int, *, key: str = "", cluster: str = "") -> Claim | None:
    """Create attempt `number` for a process elsewhere.

    That process adopts it. Returns None if another one created it.

    Args:
        run: Folder of the run, a path or URI.
        number: 1, or one more than an attempt that is known to be gone, or was unreachable for long enough.
        key: Idempotency key of the job.
        cluster: Name of the cluster that gets it.

    Raises `OSError`, and `NoExclusiveCreation` for a store that cannot decide.
    """
    files = AttemptFiles(run)
    submitter = Claim.of_this_process(number, key=key, cluster=cluster)
    # The process of the submitter may end: it says nothing about the attempt.
    claim = Claim(
        number=number,
        token=submitter.token,
        host=submitter.host,
        key=key,
        cluster=cluster,
        time=submitter.time,
        restorable=files.restorable_by(number),
    )
    created = files.create(claim)
    if isinstance(created, FileLock):
        created.release()
    return claim if created else None


def newest_attempt(storage: str, name: str) -> Claim | None:
    """Return the newest attempt of a run, or None.

    The run is `name` below `storage`. Raises `OSError`.
    """
    return AttemptFiles(RunFolder.below(storage, name)).newest()
