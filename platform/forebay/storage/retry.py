"""Retries of reads from storage that fail or hang.

They read source data, listings and checkpoints.

No other loop repeats a failed read. Loops elsewhere repeat something else:

- `json_file.read_json_content` reads again what was replaced during the read, and so is torn.
- `exclusive` sends a conditional creation again if the store asks for it.
- The storage check, the fence of an attempt, uploads and stored logs wait until a storage is back, within limits of
  their own. Each of their questions is one attempt.
- `cache/block_builder.py` fetches a row group again whose bytes were damaged on the way.
- Data nodes and cache actors pass work to another process when one is lost, and so does Ray with tasks.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import tenacity
from tenacity.wait import wait_base

from forebay.errors import Cancelled, ForebayError, InvalidOption, ReadFailed, whole_number
from forebay.storage.credentials import redacting
from forebay.storage.deadline import Cancellation, call_with_deadline

T = TypeVar("T")


class NotAFile(OSError):
    """In the place of a file is something else."""


_MOST_WAIT_S = 300.0
"""Longest wait that a store may ask for. The Hugging Face Hub counts requests in windows of five minutes."""
# Errors that the next attempt would meet again. ArrowInvalid is an error in the content, not in the transport.
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, pa.ArrowInvalid, ForebayError)


_THROTTLED = re.compile(
    r"SLOW_?DOWN|SlowDown|THROTTLING|Throttl|TooManyRequests|Too Many Requests|RequestLimitExceeded|ServerBusy|"
    r"SERVICE_UNAVAILABLE|Service Unavailable|rateLimitExceeded|RESOURCE_EXHAUSTED|"
    r"HTTP (?:status code:? |response code |status |error )?(?:429|503)\b|\b(?:429|503) (?:Client|Server) Error"
)
_NAMES = re.compile(r"(?<=\s)'[^']*'|\w+://\S+")
"""Keys and URIs in the text of an error. A file may be named as an error is: `logs/ExpiredToken/a.parquet`."""
_STORE = re.compile(r"\w+://[^/?]*")
_EASE = 0.5
"""With 0.8, one process of 50 was still slow when the others had ended: five times the time of the store's limit."""
_NONE_S = 0.01
THROTTLED_ATTEMPTS = 4
"""A store that says "slow down" is asked four times as often before a read fails, at the pace of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """Attempts of a read, their deadline, the waits between, and its size.

    Waits double, with jitter. After an answer of "slow down" (503, 429), all reads of the process from that store slow
    down, and four times as many attempts may be refused so.

    The default waits 11 s in all: a server that is started again, or a NameNode that takes over, needs 2 to 10 s.

    A row group that takes more than `most_row_group_bytes` in memory is refused: 213 kB of a file may hold 60 million
    equal rows. None: the memory of the machine.
    """

    attempts: int = 7
    deadline_s: float = 60.0
    first_wait_s: float = 0.2
    max_wait_s: float = 5.0
    most_row_group_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidOption(f"attempts={self.attempts}: a read needs at least one attempt.")
        if self.deadline_s <= 0:
            raise InvalidOption(f"deadline_s={self.deadline_s}: an attempt needs time, e.g. 60 seconds.")
        if not 0 <= self.first_wait_s <= self.max_wait_s:
            raise InvalidOption(
                f"first_wait_s={self.first_wait_s}, max_wait_s={self.max_wait_s}: waits begin at first_wait_s and grow "
                "to max_wait_s, so 0 <= first_wait_s <= max_wait_s."
            )
        if self.most_row_group_bytes is not None:
            whole_number("most_row_group_bytes", self.most_row_group_bytes, least=1)

    def row_group_limit(self) -> int:
        """Most bytes of a decoded row group."""
        from forebay.runtime.memory.available import machine_bytes  # noqa: PLC0415 - commands about jobs read no Parquet

        return machine_bytes() if self.most_row_group_bytes is None else self.most_row_group_bytes


DEFAULT_POLICY = ReadPolicy()


def read(
    what: str,
    fn: Callable[[], T],
    policy: ReadPolicy = DEFAULT_POLICY,
    cancelled: Cancellation | None = None,
    on_retry: Callable[[], None] | None = None,
) -> T:
    """Call `fn` until it succeeds, each time with a deadline.

    At most `policy.attempts` times, each in a thread of its own.

    Args:
        what: Name of the object that is read, for messages, such as a URI.
        fn: The read. An attempt that missed its deadline may still be running beside the next one.
        policy: Attempts, deadline and waits.
        cancelled: Set by another thread to stop at once, also in the middle of an attempt or a wait.
        on_retry: Called before every attempt except the first.

    Raises:
        ReadFailed: The last attempt failed too, or did not answer in time.
        Cancelled: `cancelled` was set.
        Exception: Another attempt cannot help, such as for a missing file. Raised as `fn` raised it.
    """
    stop, pace = cancelled or Cancellation(), pace_of(what)
    tries = _Tries(policy, pace)

    def wait(seconds: float) -> None:
        if seconds and stop.wait(seconds):
            raise Cancelled(f"reading {what} was cancelled")

    def attempt() -> T:
        tries.began_at = time.monotonic()
        wait(pace.wait_s())
        value = call_with_deadline(partial(_told_apart, fn), policy.deadline_s, stop)
        pace.record_success()
        return value

    try:
        return attempt()
    except OSError as error:
        if not _may_pass(error):
            raise
        first: list[OSError] = [error]

    def again() -> T:
        if first:
            raise first.pop()
        return attempt()

    try:
        # Made after a failure only: it takes 28 us under the lock of Python.
        value: T = _retrying(tries, wait, on_retry)(again)
    except tenacity.RetryError as failed:
        last = failed.last_attempt.exception()
        raise _read_failed(what, policy, failed.last_attempt.attempt_number, last) from last
    return value


class _Tries:
    """Attempts of one read that failed, and those that were throttled."""

    def __init__(self, policy: ReadPolicy, pace: ReadPace) -> None:
        self.policy, self._pace = policy, pace
        self.began_at = 0.0
        self._failed = self._throttled = 0

    def is_last(self, state: tenacity.RetryCallState) -> bool:
        """Count the attempt that has just failed. Whether no other one follows."""
        if _is_throttled(state):
            self._throttled += 1
            self._pace.record_throttled(
                self.began_at, first_s=self.policy.first_wait_s, longest_s=self.policy.max_wait_s
            )
        else:
            self._failed += 1
        most = self.policy.attempts
        return self._failed >= most or self._throttled + self._failed >= THROTTLED_ATTEMPTS * most

    def wait_s(self, state: tenacity.RetryCallState) -> float:
        """Wait after a failure. After a throttled attempt the pace alone decides."""
        if _is_throttled(state):
            return 0.0
        first_s = self.policy.first_wait_s
        doubled = tenacity.wait_exponential(multiplier=first_s, max=self.policy.max_wait_s - first_s)
        return float(doubled(state) + tenacity.wait_random(0, first_s)(state))


def _is_throttled(state: tenacity.RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    return error is not None and is_throttled(error)


def _retrying(tries: _Tries, wait: Callable[[float], None], on_retry: Callable[[], None] | None) -> tenacity.Retrying:
    asked_for = _WaitAskedFor()
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        stop=tries.is_last,
        wait=lambda state: tries.wait_s(state) + asked_for(state),
        sleep=wait,
        before_sleep=(lambda _state: on_retry()) if on_retry else None,
    )


class _WaitAskedFor(wait_base):
    """Seconds that the store asked to wait.

    As with HTTP's Retry-After.
    """

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        return min(float(getattr(error, "retry_after_s", 0.0)), _MOST_WAIT_S)


def _told_apart(fn: Callable[[], T]) -> T:
    """Call `fn`, and raise its errors without secrets.

    A refusal by the store is raised as a `PermissionError`.
    """
    with redacting():
        try:
            return fn()
        except NotAFile as error:
            raise ReadFailed(f"{error}. Put a file in its place, or leave it out.", last_error=str(error)) from error
        except OSError as error:
            refusal = as_refusal(error)
            if refusal is None:
                raise
            raise refusal from None


def _may_pass(error: BaseException) -> bool:
    # TimeoutError is an OSError, and so is the error of a missed deadline.
    return isinstance(error, OSError) and not isinstance(error, _PERMANENT)


def _read_failed(what: str, policy: ReadPolicy, attempts: int, last: BaseException | None) -> ReadFailed:
    return ReadFailed(
        f"{what} could not be read: {attempts} attempts of at most {policy.deadline_s:g} s each failed, the "
        f"last with {type(last).__name__}: {last}. Check that the storage answers; a slow one needs a longer "
        "ReadPolicy(deadline_s=...), an unreliable one more attempts.",
        what=what,
        attempts=attempts,
        last_error=str(last),
    )


# Texts of refusals in the clients of pyarrow and fsspec: S3, Google Cloud, Azure, HTTP, WebHDFS.
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_SIGNATURE|"
    r"UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN|EXPIRED_TOKEN|ExpiredToken|InvalidAccessKeyId|InvalidToken|"
    r"AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch|AuthorizationProtocolMismatch|"
    r"PERMISSION_DENIED|UNAUTHENTICATED|HTTP (?:status code:? |response code |error )?40[13]\b|\b40[13] Client Error|"
    r"\b40[13], message=|\(403\) Forbidden|No response body.*HTTP status 403|AccessControlException"
)
REMEDY = "Ask for read access, or check the credentials in the environment or in the URI."
"""Advice in the error for a refusal."""


def as_refusal(error: BaseException) -> PermissionError | None:
    """Return a refusal by the store as a `PermissionError`.

    Clients raise refusals as other types too. None for any other error.
    """
    if isinstance(error, OSError) and not isinstance(error, PermissionError) and _REFUSED.search(_words(error)):
        return PermissionError(str(error))
    return None


def is_throttled(error: BaseException) -> bool:
    """Whether a store refused a request because there are too many."""
    return _THROTTLED.search(_words(error)) is not None


def _words(error: BaseException) -> str:
    return _NAMES.sub("", str(error))


class ReadPace:
    """Wait before each attempt to read from one store.

    All reads of a process share it. So after an answer of "slow down" those wait too that have not been refused yet,
    and the retries of one process never outnumber its reads. Thread-safe.

    The mean wait doubles with each such answer, once for all attempts that began before the last doubling. It is
    halved for every twice its length in which attempts succeed. A wait is anything from 0 to twice the mean, so that
    processes that were refused together do not come back together.

    Source: full jitter (Brooker, AWS Architecture Blog, 2015) and the adaptive mode of AWS's clients.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._clock, self._draw = clock, draw
        self._guard = threading.Lock()
        self._changed_at = float("-inf")
        self.mean_s = 0.0
        """Mean wait. 0 while the store takes all requests."""

    def wait_s(self) -> float:
        """Draw the wait before the next attempt."""
        return 2 * self.mean_s * self._draw() if self.mean_s else 0.0

    def record_throttled(self, began_at: float, *, first_s: float, longest_s: float) -> None:
        """Count an attempt that was refused. The waits come from the `ReadPolicy` of the read."""
        with self._guard:
            if began_at >= self._changed_at:
                self.mean_s = min(max(2 * self.mean_s, first_s), longest_s)
                self._changed_at = self._clock()

    def record_success(self) -> None:
        """Count an attempt that succeeded."""
        if not self.mean_s:
            return
        with self._guard:
            if (now := self._clock()) - self._changed_at >= 2 * self.mean_s:
                self.mean_s = self.mean_s * _EASE if self.mean_s > _NONE_S else 0.0
                self._changed_at = now


_paces: dict[str, ReadPace] = {}


def pace_of(what: str) -> ReadPace:
    """Pace of the store whose URI is in `what`."""
    found = _STORE.search(what)
    return _paces.setdefault(found[0] if found else "", ReadPace())
