"""Requests of callbacks reach the coordinator, whenever they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.events import Request
from forebay.training.driver.elastic import event_loop as ray_following
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.driver.elastic.event_loop import follow
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control
from forebay.training.runs.status import RunStatus


class Actor:
    """A coordinator with the interface of Ray's handle, but in this process."""

    def __init__(self, loop: asyncio.Runner, workers: int) -> None:
        self._loop = loop
        self._coordinator = Coordinator(
            RunStatus(
                name="a",
                driver="ray",
                target=workers,
                min_workers=1,
                max_workers=6,
                epochs=1,
                started_at=0.0,
                node="n",
                path="/runs/a",
            )
        )

    def __getattr__(self, method: str) -> Any:
        def remote(*args: Any) -> Any:
            return self._loop.run(getattr(self._coordinator, method)(*args))

        return SimpleNamespace(remote=remote)


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Actor]:
    monkeypatch.setattr(ray_following, "ray", SimpleNamespace(get=lambda answer: answer))
    with asyncio.Runner() as loop:
        yield Actor(loop, workers=2)


def follow_to_the_end(control: Control, actor: Any) -> None:
    job = SimpleNamespace(start_workers=2, hang_timeout_s=120.0)
    run: Any = SimpleNamespace(name="a", control=control, job=job, check_fence=lambda: None, tell=lambda _: None)
    polls = iter([True, False])
    follow(run, actor, lambda: next(polls))


def make_control() -> Control:
    return Control(elastic=Elastic(min_workers=1, max_workers=6, start=2), global_batch=64)


def test_what_was_asked_before_there_were_workers_is_passed_on(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_following, "POLL_S", 0.0)
    control = make_control()
    control.resize(4)
    control.global_batch(128)
    control.stop("enough")
    follow_to_the_end(control, actor)
    assert actor.target.remote() == 4
    assert actor.request.remote() == Request(stop="enough", global_batch=128)
    assert control.request == Request(stop="enough", target=4, global_batch=128), "a request was overwritten"


def test_what_callbacks_ask_is_known_also_where_it_is_so_already(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_following, "POLL_S", 0.0)
    control = make_control()
    follow_to_the_end(control, actor)
    assert actor.status.remote().callback_target is None
    control.resize(2)
    follow_to_the_end(control, actor)
    actor.set_target.remote(5, "cli")
    follow_to_the_end(control, actor)
    status = actor.status.remote()
    assert (status.callback_target, status.target, control.target) == (2, 5, 5)


def test_what_others_ask_is_followed(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_following, "POLL_S", 0.0)
    control = make_control()
    actor.set_target.remote(5, "cli")
    actor.request_stop.remote("from afar", "cli")
    follow_to_the_end(control, actor)
    assert actor.target.remote() == control.target == 5
    assert control.request.stop == "from afar"


def test_fixed_job_asks_for_no_size(actor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_following, "POLL_S", 0.0)
    control = Control(workers=2)
    follow_to_the_end(control, actor)
    assert control.request == Request() and actor.target.remote() == 2
