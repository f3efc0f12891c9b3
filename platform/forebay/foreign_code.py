"""Calls into code of users and of other libraries, which may raise anything: the only place that catches everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome(Generic[T]):
    """What a call returned, or what it raised (`SystemExit` and `KeyboardInterrupt` too)."""

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    def settle(self, future: Future[T]) -> None:
        """Give the outcome to a future that runs."""
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(cast(T, self.value))


def outcome_of(call: Callable[[], T]) -> CallOutcome[T]:
    """Call, and keep whatever it raises: for a thread or a process whose errors another one raises or judges."""
    try:
        return CallOutcome(value=call())
    except BaseException as error:  # noqa: BLE001 - see above
        return CallOutcome(error=error)


def error_of(call: Callable[[], object]) -> Exception | None:
    """Call, and return the `Exception` that it raised, or None. Others, such as `KeyboardInterrupt`, pass through."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - see above
        return error
    return None


@contextmanager
def replaced_errors(replace: Callable[[Exception], Exception], *, is_cause_shown: bool = True) -> Iterator[None]:
    """Raise `replace(error)` for every `Exception` of the block, or the error itself where that is what it returns.

    Without `is_cause_shown`, the error raised does not refer to the one of the block, which may tell a secret.
    """
    try:
        yield
    except Exception as error:
        instead = replace(error)
        if instead is error:
            raise
        raise instead from (error if is_cause_shown else None)
