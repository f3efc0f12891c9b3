"""Thread that runs calls in order, beside the gathering thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, cast

from forebay.cache.single_flight import SingleFlightPool

T = TypeVar("T")


class SerialExecutor:
    """Executor that calls functions one after the other in a daemon thread.

    Not a ThreadPoolExecutor: that accepts no calls after the main thread has ended, while other threads still run.
    """

    def __init__(self) -> None:
        self._workers: SingleFlightPool[Callable[[], Any], Any] = SingleFlightPool(_call, num_threads=1)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Future of `function(*arguments)`."""
        return cast("Future[T]", self._workers.submit(partial(function, *arguments)))

    def close(self) -> None:
        """End the thread after its current call, and cancel the waiting calls."""
        self._workers.close(timeout_s=1)


def _call(function: Callable[[], T]) -> T:
    return function()
