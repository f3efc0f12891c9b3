"""A rank that takes no step says where it is, once. Of ranks that wait for others, only rank 0 does."""

from __future__ import annotations

import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import until

from forebay.events import Event, Warned
from forebay.training.driver import stall_watch
from forebay.training.driver.stall_watch import stall_told


def stand_still(heard: list[Event]) -> None:
    until(lambda: bool(heard))
    time.sleep(0.1)


def told(rank: int, seconds: float, wait: Any) -> list[Event]:
    heard: list[Event] = []
    worker: Any = SimpleNamespace(step=7, world=SimpleNamespace(rank=rank))
    reporter: Any = SimpleNamespace(report=heard.append)
    with stall_told(worker, reporter, seconds, "ctr"):
        wait(heard)
    assert not [each for each in threading.enumerate() if each.name == "forebay-stall"]
    return heard


def test_a_rank_that_stands_still_says_where_and_once() -> None:
    (event,) = told(1, 0.05, stand_still)
    assert isinstance(event, Warned) and event.step == 7
    assert event.reason.startswith("rank 1 has taken no step for 0 s and is in ")
    assert re.search(r"waiting\.py:\d+ in until", event.reason)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_waits_for_others_is_told_of_the_first_only(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_watch, "_WAITS", re.compile(r"test_stall_watch\.py"))
    heard = told(rank, 0.05, (lambda _: time.sleep(0.3)) if rank else stand_still)
    reasons = [each.reason for each in heard if isinstance(each, Warned)]
    assert len(reasons) == (rank == 0) and all("waits for other ranks in" in each for each in reasons)
