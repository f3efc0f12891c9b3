"""Callbacks receive every event. One that raises is named, and stops the run unless it is optional."""

from __future__ import annotations

import logging

import pytest

from forebay.errors import RunFailed
from forebay.events import Event, Finished
from forebay.training.runs.callback import notify, optional_callback
from forebay.training.runs.control import Control

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
