"""Calls of code that may raise anything.

It is code of users and of other libraries. Only this file catches everything.

Each call of `outcome_of` and `error_of`, and of `replaced_errors` without `kinds`, counts as a broad handler: name what
is caught where it can be named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from forebay.errors import LimitReached

T = TypeVar("T")
StartedThread = TypeVar("StartedThread", bound=threading.Thread)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome(Generic[T]):
    """Result of a call, or the exception that it raised.

    Also `SystemExit` and `KeyboardInterrupt`.
    """

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    def settle(self, future: Future[T]) -> None:
        """Set the outcome as the result of a running future."""
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(cast(T, self.value))


def outcome_of(call: Callable[[], T]) -> CallOutcome[T]:
    """Call, and keep any exception.

    For a thread or a process whose errors are raised or judged by another one.
    """
    try:
        return CallOutcome(value=call())
    except BaseException as error:  # noqa: BLE001 - see above
        return CallOutcome(error=error)


class OutcomeThread(threading.Thread, Generic[T]):
    """A daemon thread of one call.

    Its result or its exception is for the thread that asks for it.
    """

    def __init__(self, call: Callable[[], T], name: str, on_end: Callable[[], object] = lambda: None) -> None:
        """Prepare the thread.

        It calls `on_end` once `outcome` is set.
        """
        super().__init__(name=name, daemon=True)
        self._call, self._on_end = call, on_end
        self.outcome: CallOutcome[T] | None = None

    def run(self) -> None:
        """Run the call."""
        self.outcome = outcome_of(self._call)
        del self._call  # and what it refers to: this object may live longer
        self._on_end()

    @property
    def error(self) -> BaseException | None:
        """Exception of the call.

        None if it succeeded or has not ended.
        """
        return None if self.outcome is None else self.outcome.error


BEGIN_S = 60.0
"""A machine with a load of 40 needs less than a second."""
NO_ROOM = (
    "Raise the limit on processes (`ulimit -u`, or pids of the container) or on memory (`ulimit -v`, or memory of the "
    "container), or run fewer processes beside this one."
)
"""Advice in the error for a thread that cannot be started."""
IS_ENDING = (
    "The main thread of this program has ended. Let it wait (`join`) for the thread that loads or trains, and do "
    "neither in a function of `atexit`."
)


class _Began(threading.Event):
    """Event that a new thread sets, with a limit for waiting."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(BEGIN_S if timeout is None else timeout)


def begin(thread: StartedThread) -> StartedThread:
    """Start a thread within a limit, and return it.

    Keep what this returns, not the thread before: one that could not start, as while the interpreter ends, cannot be
    joined either.

    `Thread.start` of CPython waits without a limit for the new thread, which never answers if memory ran out before its
    first instruction.

    Raises `LimitReached` if the machine has no room for it, or if the program ends: Python 3.12 begins none once the
    main thread has ended.
    """
    began = _Began()
    # A private name, seen in 3.11 to 3.14: what `Thread.start` waits for.
    thread._started = began  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "thread" not in str(error):
            raise
        advice = IS_ENDING if "shutdown" in str(error) else NO_ROOM
        raise LimitReached(f"Thread {thread.name!r} could not be started ({error}). {advice}") from error
    if not began.is_set():
        raise LimitReached(f"Thread {thread.name!r} has not begun within {BEGIN_S:g} s: memory ran out. {NO_ROOM}")
    return thread


def error_of(call: Callable[[], object]) -> Exception | None:
    """Call, and return the `Exception` that it raised.

    None without one. Others, such as `KeyboardInterrupt`, are raised.
    """
    try:
        call()
    except Exception as error:  # noqa: BLE001 - see above
        return error
    return None


def message_of(error: BaseException | None) -> str:
    """Text of an error without its full stop.

    For a message that ends the sentence itself.

    >>> message_of(ValueError("There is no such color."))
    'There is no such color'
    """
    return str(error).rstrip(". \n")


@contextmanager
def replaced_errors(
    replace: Callable[[Exception], Exception],
    kinds: type[Exception] | tuple[type[Exception], ...] = Exception,
    *,
    is_cause_shown: bool = True,
) -> Iterator[None]:
    """Raise `replace(error)` for errors of `kinds` in the block.

    If that is `error` itself, it is raised unchanged. Without `is_cause_shown`, the new error does not refer to the
    original one, which may contain a secret.
    """
    try:
        yield
    except kinds as error:
        instead = replace(error)
        if instead is error:
            raise
        raise instead from (error if is_cause_shown else None)
