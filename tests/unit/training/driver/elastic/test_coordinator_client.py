"""Events that several threads of a worker report, and the number that its training thread waits for."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from forebay.events import Event, Finished, Request, Warned
from forebay.training.driver.elastic import coordinator_client
from forebay.training.driver.elastic.coordinator_client import CoordinatorReporter


class SlowLine:
    """Line to a coordinator, on which another thread is held after its report has arrived."""

    def __init__(self) -> None:
        self._here = threading.get_ident()
        self.arrived, self.goes_on = threading.Event(), threading.Event()
        self.reported, self.asked = list[Event](), list[int]()
        self.report = SimpleNamespace(remote=self._report)
        self.synced_request = SimpleNamespace(remote=self._synced_request)
        self.changed = SimpleNamespace(remote=lambda _: SimpleNamespace(future=Future[None]))

    def _report(self, event: Event) -> int:
        self.reported.append(event)
        number = len(self.reported)
        if threading.get_ident() != self._here:
            self.arrived.set()
            self.goes_on.wait()
        return number

    def _synced_request(self, number: int) -> Request:
        self.asked.append(number)
        return Request()


def test_an_epoch_waits_for_the_event_of_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch of stalls reports before the epoch ends, and notes its number after that."""
    monkeypatch.setattr(coordinator_client.ray, "get", lambda answer: answer)
    line: Any = SlowLine()
    reporter = CoordinatorReporter(line)
    watch = threading.Thread(target=reporter.report, args=[Warned(reason="no step", step=1)])
    watch.start()
    line.arrived.wait()
    reporter.report(Finished(name="a", path="/runs"))
    line.goes_on.set()
    watch.join()
    assert reporter.synced_request() == Request()
    assert line.asked == [2]


def test_without_events_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_client.ray, "get", lambda answer: answer)
    line: Any = SlowLine()
    CoordinatorReporter(line).synced_request()
    assert line.asked == [0]


@pytest.mark.parametrize("is_lost", [False, True], ids=["answer late", "no answer to the event"])
def test_a_coordinator_that_stood_still_is_asked_again(monkeypatch: pytest.MonkeyPatch, is_lost: bool) -> None:
    """Ray may give up a call to one that lives, as on a machine that is migrated: all ranks ended for it."""
    unsure = ActorUnavailableError("no answer", b"0" * 16)
    answers = iter([unsure, unsure, None] if is_lost else [None, unsure, None])

    def get(answer: object) -> object:
        if (error := next(answers, None)) is not None:
            raise error
        return answer

    monkeypatch.setattr(coordinator_client.ray, "get", get)
    monkeypatch.setattr(coordinator_client, "_UNAVAILABLE_S", 0.0)
    line: Any = SlowLine()
    reporter = CoordinatorReporter(line)
    reporter.report(Finished(name="a", path="/runs"))
    assert reporter.synced_request() == Request()
    assert [*answers] == []
    assert len(line.reported) == (3 if is_lost else 1)
    assert line.asked[-1] == len(line.reported)
