"""Calls in as many threads as the system allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from forebay.errors import LimitReached
from forebay.runtime.foreign_code import NO_ROOM, OutcomeThread, begin

T = TypeVar("T")
R = TypeVar("R")

_LOOK_S = 5.0


def each_in_threads(call: Callable[[T], R], items: Sequence[T], *, most: int, name: str) -> Iterator[tuple[int, R]]:
    """Call for each item in at most `most` daemon threads.

    Yields the index and the result of each, as they come. An error of a call ends the iteration; calls that run go on.
    With fewer threads than wanted it is slower. Raises `LimitReached` without any.
    """
    waiting, ended = deque(enumerate(items)), SimpleQueue[tuple[int, R] | None]()

    def work() -> None:
        while waiting:
            try:
                index, item = waiting.popleft()
            except IndexError:  # another thread took it
                return
            ended.put((index, call(item)))

    wanted = range(min(most, len(items)))
    threads = _begun([OutcomeThread(work, f"{name}_{number}", partial(ended.put, None)) for number in wanted])
    try:
        for _ in items:
            yield _next(ended, threads)
        for thread in threads:
            thread.join()
    finally:
        waiting.clear()


def _begun(threads: Sequence[OutcomeThread[None]]) -> list[OutcomeThread[None]]:
    """Start threads, as many as the system allows."""
    begun: list[OutcomeThread[None]] = []
    for thread in threads:
        try:
            begin(thread)
        except LimitReached:
            if not begun:
                raise
            break
        begun.append(thread)
    return begun


def _next(ended: SimpleQueue[T | None], threads: Sequence[OutcomeThread[None]]) -> T:
    """Next result.

    A thread that ends puts None. Raises the error of a thread, and `LimitReached` if none is left: without memory, one
    ends without a result.
    """
    while True:
        is_over = not any(thread.is_alive() for thread in threads)
        try:
            found = ended.get(timeout=0 if is_over else _LOOK_S)
        except Empty:
            if is_over:
                raise LimitReached(f"The threads ended without a result: memory ran out. {NO_ROOM}") from None
            continue
        if found is not None:
            return found
        for thread in threads:
            if thread.error is not None:
                raise thread.error
