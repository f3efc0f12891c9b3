"""Retried errors, the number of retries, and the final message."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from forebay.errors import Cancelled, CorruptFile, InvalidOption, ReadFailed
from forebay.storage.deadline import Cancellation
from forebay.storage.retry import ReadPolicy, read

QUICK = ReadPolicy(attempts=3, deadline_s=60.0, first_wait_s=0.001, max_wait_s=0.002)


class Flaky:
    """Raises the given errors in turn.

    Then it answers with the number of calls.
    """

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def test_passing_failures_are_tried_again_and_counted() -> None:
    retries: list[int] = []
    flaky = Flaky(OSError("reset"), TimeoutError("slow"))
    assert read("x", flaky, QUICK, on_retry=lambda: retries.append(1)) == 3
    assert len(retries) == 2


def test_the_last_failure_is_told() -> None:
    flaky = Flaky(*(OSError(f"reset {number}") for number in range(9)))
    with pytest.raises(
        ReadFailed, match=r"s3://b/x could not be read: 3 attempts.*OSError: reset 2.*deadline_s"
    ) as caught:
        read("s3://b/x", flaky, QUICK)
    assert flaky.calls == 3
    assert (caught.value.what, caught.value.attempts) == ("s3://b/x", 3)
    assert isinstance(caught.value.__cause__, OSError)
    assert pickle.loads(pickle.dumps(caught.value)).facts == caught.value.facts


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("gone"),
        PermissionError("no"),
        IsADirectoryError("folder"),
        pa.ArrowInvalid("bad"),
        CorruptFile("bad"),
        ValueError("bug"),
    ],
)
def test_what_another_attempt_cannot_cure_is_raised_at_once(error: Exception) -> None:
    flaky = Flaky(error)
    with pytest.raises(type(error)) as caught:
        read("x", flaky, QUICK)
    assert caught.value is error
    assert flaky.calls == 1


def test_a_stuck_attempt_is_replaced() -> None:
    release, calls = threading.Event(), []

    def stuck_once() -> str:
        calls.append(1)
        if len(calls) == 1:
            release.wait(120)
        return "answer"

    start = time.monotonic()
    policy = ReadPolicy(attempts=100, deadline_s=0.1, first_wait_s=0.0, max_wait_s=0.0)
    assert read("x", stuck_once, policy) == "answer"
    assert time.monotonic() - start < 60.0, "the stuck one was waited for"
    release.set()


def test_cancelling_ends_the_wait_between_attempts() -> None:
    cancelled = Cancellation()
    patient = ReadPolicy(attempts=5, first_wait_s=30.0, max_wait_s=60.0)
    timer = threading.Timer(0.1, cancelled.set)
    timer.start()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        read("x", Flaky(*[OSError("reset")] * 5), patient, cancelled)
    assert time.monotonic() - start < 20.0
    timer.join()


def waits_of(policy: ReadPolicy) -> list[float]:
    """Waits between the attempts of a read that never succeeds."""
    waits: list[float] = []

    class RecordedWaits(Cancellation):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    with pytest.raises(ReadFailed):
        read("x", Flaky(*[OSError("reset")] * policy.attempts), policy, RecordedWaits())
    return waits


def test_default_outlasts_a_server_that_starts_again() -> None:
    assert sum(waits_of(ReadPolicy())) >= 10.0


def test_waits_grow_and_stay_within_bounds() -> None:
    waits = waits_of(ReadPolicy(attempts=6, first_wait_s=1.0, max_wait_s=5.0))
    assert len(waits) == 5
    assert all(1.0 <= wait <= 5.0 for wait in waits)
    assert waits[0] <= 2.0
    assert waits[-1] >= 4.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReadPolicy(attempts=0),
        lambda: ReadPolicy(deadline_s=0),
        lambda: ReadPolicy(first_wait_s=-1),
        lambda: ReadPolicy(first_wait_s=9, max_wait_s=1),
    ],
)
def test_impossible_policies(make: Callable[[], ReadPolicy]) -> None:
    with pytest.raises(InvalidOption):
        make()
