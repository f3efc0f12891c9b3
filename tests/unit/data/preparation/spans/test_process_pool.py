from __future__ import annotations

import os
import sys
import time

import pytest

from forebay.data.preparation.spans import process_pool
from forebay.data.preparation.spans.process_pool import map_unordered
from forebay.errors import PreparationFailed
from forebay.runtime.pickling import pickled


def test_one_process_is_this_one() -> None:
    assert list(map_unordered(lambda _: os.getpid(), [1, 2], processes=1)) == [os.getpid()] * 2


def test_death_of_a_process_is_named() -> None:
    def die(task: int) -> int:
        if task == 1:
            os._exit(7)
        return task

    with pytest.raises(PreparationFailed, match="ended with exit code 7 in the middle of a span"):
        list(map_unordered(die, [0, 1, 2], processes=2))


def end_or_wait(number: int) -> None:
    if number == 0:
        raise ValueError("no such file")
    time.sleep(60)


def test_an_error_waits_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "_END_S", 3.0)
    began = time.monotonic()
    with pytest.raises(PreparationFailed, match="no such file"):
        list(map_unordered(end_or_wait, range(6), processes=6))
    assert time.monotonic() - began < 12


def test_a_process_that_never_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(process_pool, "pickled", lambda function: time.sleep(0.5) or pickled(function))
    with pytest.raises(PreparationFailed, match="process 0 .* ended with exit code 1"):
        list(map_unordered(abs, range(2), processes=2))
