"""Pickling for other processes of the same program."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import pytest

from forebay.runtime.pickling import pickled


def own(value: int) -> int:
    return value + 1


def test_threads_that_pickle_at_once_leave_each_other_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of modules that go by value is one for all threads."""
    listed = cloudpickle.list_registry_pickle_by_value

    def slowly() -> Any:
        found = listed()
        time.sleep(0.02)
        return found

    before = listed()
    monkeypatch.setattr(cloudpickle, "list_registry_pickle_by_value", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(pickled, [own] * 8))
    assert [cloudpickle.loads(each)(1) for each in found] == [2] * 8
    assert len({len(each) for each in found}) == 1 and listed() == before
