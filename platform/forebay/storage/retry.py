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

import functools
import os
import re
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

_MOST_WAIT_S = 300.0
"""Longest wait that a store may ask for. The Hugging Face Hub counts requests in windows of five minutes."""
# Errors that the next attempt would meet again. ArrowInvalid is an error in the content, not in the transport.
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, pa.ArrowInvalid, ForebayError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """Attempts of a read, their deadline, the waits between, and its size.

    Waits double, with jitter.

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
        return _machine_bytes() if self.most_row_group_bytes is None else self.most_row_group_bytes


@functools.cache
def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
    stop = cancelled or Cancellation()
    attempt = partial(call_with_deadline, partial(_told_apart, fn), policy.deadline_s, stop)
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

    def wait(seconds: float) -> None:
        if stop.wait(seconds):
            raise Cancelled(f"reading {what} was cancelled")

    try:
        # Made after a failure only: it takes 28 us under the lock of Python.
        value: T = _retrying(policy, wait, on_retry)(again)
    except tenacity.RetryError as failed:
        last = failed.last_attempt.exception()
        raise _read_failed(what, policy, last) from last
    return value


def _retrying(
    policy: ReadPolicy, wait: Callable[[float], None], on_retry: Callable[[], None] | None
) -> tenacity.Retrying:
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=tenacity.wait_exponential(multiplier=policy.first_wait_s, max=policy.max_wait_s - policy.first_wait_s)
        + tenacity.wait_random(0, policy.first_wait_s)
        + _WaitAskedFor(),
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
        except OSError as error:
            refusal = as_refusal(error)
            if refusal is None:
                raise
            raise refusal from None


def _may_pass(error: BaseException) -> bool:
    # TimeoutError is an OSError, and so is the error of a missed deadline.
    return isinstance(error, OSError) and not isinstance(error, _PERMANENT)


def _read_failed(what: str, policy: ReadPolicy, last: BaseException | None) -> ReadFailed:
    return ReadFailed(
        f"{what} could not be read: {policy.attempts} attempts of at most {policy.deadline_s:g} s each failed, the "
        f"last with {type(last).__name__}: {last}. Check that the storage answers; a slow one needs a longer "
        "ReadPolicy(deadline_s=...), an unreliable one more attempts.",
        what=what,
        attempts=policy.attempts,
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
    if isinstance(error, OSError) and not isinstance(error, PermissionError) and _REFUSED.search(str(error)):
        return PermissionError(str(error))
    return None
