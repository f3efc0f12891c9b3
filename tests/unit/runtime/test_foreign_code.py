"""Code that may raise anything.

Errors are kept, replaced or passed through.
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from forebay.errors import TransformFailed
from forebay.runtime.foreign_code import OutcomeThread, error_of, outcome_of, replaced_errors


def raising(error: BaseException) -> object:
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_outcome_keeps_whatever_was_raised(error: BaseException) -> None:
    outcome = outcome_of(lambda: raising(error))
    assert outcome.error is error
    with pytest.raises(type(error)):
        outcome.result()
    future: Future[object] = Future()
    outcome.settle(future)
    assert future.exception() is error


def test_an_outcome_keeps_the_value_even_none() -> None:
    assert outcome_of(lambda: 7).result() == 7
    future: Future[None] = Future()
    outcome_of(lambda: None).settle(future)
    assert future.result() is None


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_a_thread_keeps_whatever_was_raised(error: BaseException) -> None:
    ended: list[BaseException | None] = []
    thread = OutcomeThread(lambda: raising(error), "test", lambda: ended.append(thread.error))
    assert thread.outcome is None
    assert thread.error is None
    thread.start()
    thread.join()
    assert ended == [error]


def test_only_the_named_kinds_are_replaced() -> None:
    with pytest.raises(TransformFailed), replaced_errors(lambda _: TransformFailed("no"), (OSError, ValueError)):
        raise ValueError("named")
    with pytest.raises(KeyError), replaced_errors(lambda _: TransformFailed("no"), (OSError, ValueError)):
        raise KeyError("another")


def test_an_error_is_returned_and_an_interrupt_passes() -> None:
    error = ValueError("no")
    assert error_of(lambda: raising(error)) is error
    assert error_of(lambda: 7) is None
    with pytest.raises(KeyboardInterrupt):
        error_of(lambda: raising(KeyboardInterrupt()))


def test_errors_are_replaced_with_or_without_their_cause() -> None:
    with pytest.raises(TransformFailed, match="no") as shown, replaced_errors(lambda e: TransformFailed(str(e))):
        raise ValueError("no")
    assert isinstance(shown.value.__cause__, ValueError)
    with (
        pytest.raises(OSError, match="hidden") as hidden,
        replaced_errors(lambda _: OSError("hidden"), is_cause_shown=False),
    ):
        raise ValueError("secret")
    assert hidden.value.__cause__ is None
    assert hidden.value.__suppress_context__


def test_an_error_that_replaces_itself_keeps_its_cause() -> None:
    with pytest.raises(ValueError, match="no") as found, replaced_errors(lambda error: error):
        raise ValueError("no") from KeyError("why")
    assert isinstance(found.value.__cause__, KeyError)
    with pytest.raises(KeyboardInterrupt), replaced_errors(lambda _: ValueError("never")):
        raise KeyboardInterrupt
