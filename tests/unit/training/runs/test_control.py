"""Requests of callbacks, and their delivery to workers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from forebay.errors import BatchTooSmall, InvalidOption, RunFailed
from forebay.events import Event, Finished, Request
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control, notify, optional_callback


def make_control(start: int = 2) -> Control:
    elastic = Elastic(min_workers=2, max_workers=6, start=start)
    return Control(elastic=elastic, global_batch=64, epochs=3)


def test_first_reason_to_stop_is_kept() -> None:
    control = Control()
    assert control.stop_reason is None
    control.stop("loss is low enough")
    control.stop("later")
    assert control.stop_reason == "loss is low enough"
    assert control.request == Request(stop="loss is low enough")


@pytest.mark.parametrize("reason", ["", " ", None])
def test_a_stop_has_a_reason(reason: str) -> None:
    """Without one, the end of an attempt counted as finished, and its follower trained on."""
    control = Control()
    with pytest.raises(InvalidOption, match="gives no reason"):
        control.stop(reason)
    assert control.stop_reason is None


@pytest.mark.parametrize(("asked", "wanted"), [(4, 4), (1, 2), (-3, 2), (99, 6)])
def test_resize_is_kept_within_the_bounds(asked: int, wanted: int) -> None:
    control = make_control()
    assert control.resize(asked) == wanted
    assert control.target == control.request.target == wanted
    assert control.world_size == 2, "asked for, not done yet"


def test_the_last_size_that_was_asked_for_counts() -> None:
    control = make_control()
    control.resize(6)
    control.resize(3)
    assert control.request == Request(target=3)


def test_fixed_job_cannot_be_resized_and_orders_no_size() -> None:
    control = Control(workers=3)
    assert (control.target, control.min_workers, control.max_workers, control.is_elastic) == (3, 3, 3, False)
    with pytest.raises(InvalidOption, match=r"resize\(2\).*fixed number of workers \(3\).*elastic=Elastic\("):
        control.resize(2)
    assert control.request == Request()


def test_global_batch_needs_a_row_for_every_worker() -> None:
    control = make_control()
    assert control.request.global_batch is None
    with pytest.raises(BatchTooSmall, match=r"global_batch\(5\) .* workers \(6\)"):
        control.global_batch(5)
    with pytest.raises(InvalidOption):
        control.global_batch(0)
    control.global_batch(128)
    assert control.request.global_batch == 128
    assert control.batch == 64, "asked for, not done yet"


def test_drivers_tell_what_is_so() -> None:
    control = make_control(start=3)
    assert (control.min_workers, control.max_workers, control.job_epochs) == (2, 6, 3)
    control.follow(target=5, world_size=4, batch=32)
    assert (control.target, control.world_size, control.batch) == (5, 4, 32)
    assert control.request == Request(target=5)


EVENT = Finished(name="run", path="/runs/run")


def raising(event: Event, control: Control) -> None:
    raise KeyError("no such metric")


def test_raising_callback_is_named_after_the_others_were_told() -> None:
    heard: list[Event] = []
    with pytest.raises(RunFailed, match=r"callback raising raised KeyError.*on Finished") as failure:
        notify([raising, lambda event, control: heard.append(event)], EVENT, Control())
    assert heard == [EVENT]
    assert isinstance(failure.value.__cause__, KeyError)
    assert failure.value.callback == "raising"


def test_optional_callback_is_logged_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Event] = []

    def sometimes(event: Event, control: Control) -> None:
        calls.append(event)
        raise OSError("the tracking server is away")

    callback = optional_callback(sometimes)
    with caplog.at_level(logging.WARNING):
        notify([callback], EVENT, Control())
        notify([callback], EVENT, Control())
    assert len(calls) == 1
    assert len(caplog.records) == 1
    assert "sometimes" in caplog.text and "tracking server is away" in caplog.text


@pytest.mark.parametrize(
    ("own", "asked", "stopped", "how"),
    [
        (None, {}, None, "finished"),
        ("no better", {}, "no better", "finished"),
        ("no better", {"enough": "stopped"}, "no better", "finished"),
        (None, {"enough": "stopped"}, None, "finished"),
        (None, {"enough": "stopped"}, "enough", "stopped"),
        (None, {"SIGTERM": "interrupted"}, "SIGTERM", "interrupted"),
        (None, {"SIGTERM": "interrupted", "enough": "stopped"}, "SIGTERM", "stopped"),
        (None, {"SIGTERM": "interrupted", "enough": "stopped"}, "enough", "stopped"),
        (None, {"enough": "stopped", "SIGTERM": "interrupted"}, "enough", "stopped"),
    ],
)
def test_how_a_run_has_ended(own: str | None, asked: dict[str, Any], stopped: str | None, how: str) -> None:
    control = Control()
    if own is not None:
        control.stop(own)
    for reason, kind in asked.items():
        control.obey_stop(reason, kind)
    assert control.how_ended(stopped) == how
    assert control.stop_reason == (own or next(iter(asked), None)), "the first reason is kept"
