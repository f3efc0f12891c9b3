"""Access of faults to reads: every Parquet file that a reader opens passes through here."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.parquet import reading

Strike = Callable[[str], None]
"""Called with the URI before each read. It may raise, or wait."""
Alter = Callable[[str, object], object]
"""Called with the URI and what a read found. Returns what the reader gets instead."""


class Watched:
    """A `NativeFile` whose reads pass through `strike` before and `alter` after."""

    def __init__(self, uri: str, file: object, strike: Strike, alter: Alter) -> None:
        self._uri, self._file, self._strike, self._alter = uri, file, strike, alter

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> object:
        found = getattr(self._file, name)
        if not name.startswith("read"):
            return found

        def struck(*args: object) -> object:
            self._strike(self._uri)
            return self._alter(self._uri, found(*args))

        def struck_into(target: NDArray[np.uint8]) -> int:
            self._strike(self._uri)
            read = pa.py_buffer(target[: found(target)].tobytes())
            given = np.frombuffer(self._alter(self._uri, read), np.uint8)
            target[: len(given)] = given
            return len(given)

        return struck_into if name == "readinto" else struck


@contextmanager
def reads(strike: Strike = lambda uri: None, alter: Alter = lambda uri, found: found) -> Iterator[None]:
    """Pass every read of every Parquet file through `strike` and `alter`. Both must be safe for threads."""
    original = reading.open_input
    reading.open_input = lambda uri: Watched(uri, original(uri), strike, alter)
    try:
        yield
    finally:
        reading.open_input = original


class Dice:
    """Random hits: with a chance, and limited to a number of calls in a row. Safe for threads."""

    def __init__(self, rng: random.Random, chance: float, most_in_a_row: int = 1 << 30) -> None:
        self._rng = random.Random(rng.random())
        self._chance, self._most = chance, most_in_a_row
        self._lock = threading.Lock()
        self._in_a_row = 0

    def hit(self) -> bool:
        with self._lock:
            struck = self._in_a_row < self._most and self._rng.random() < self._chance
            self._in_a_row = self._in_a_row + 1 if struck else 0
            return struck


class Hang:
    """Reads that wait until the end of the block: a stuck read cannot be interrupted, only abandoned."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self.stuck = threading.Event()

    def wait(self) -> None:
        self.stuck.set()
        self._released.wait(120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
