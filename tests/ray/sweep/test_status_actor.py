"""A running sweep is found, shown with its trials, and stopped from the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from tests.ray.ending import await_end
from tests.unit.sweep.made import record, trial

from forebay.errors import InvalidOption
from forebay.ray_cluster.actors import find
from forebay.sweep.record import status_actor as board
from forebay.sweep.record.record import Record
from forebay.sweep.record.status_actor import SweepStatusClient, list_sweeps, publish_status, stop_sweep

Call = Callable[..., Any]


def made() -> Record:
    return record(trial("a", 0.6, 0.7), trial("b", 0.65, state="stopped"), slots=4, deadline_at_s=100.0)


def until_told(board: SweepStatusClient, made: Record) -> str | None:
    """Publish as a sweep does, until there is a reason to stop. Returns the reason."""
    for _ in range(1200):
        board.publish(made)
        if board.stop_reason is not None:
            break
        time.sleep(0.05)
    return board.stop_reason


@contextmanager
def opened() -> Iterator[SweepStatusClient]:
    """A status client that answers."""
    with publish_status(made(), "runs/ctr") as there:
        ray.get(find(board.PREFIX, "ctr").read.remote())
        yield there


def test_ps_shows_a_sweep_with_its_trials(forebay: Call, under_way: Call) -> None:
    under_way("ctr.a", epoch=2)
    with opened():
        code, shown, _ = forebay("jobs", "--ray")
        assert code == 0
        assert "sweep ctr: best auc 0.7000 (a), 1 of 4 slots in use, 0:40 until the deadline" in shown
        lines = [line.split() for line in shown.splitlines()]
        assert [line for line in lines if line and line[0] in ("a", "b")] == [
            ["a", "running", "1", "->", "2", "2", "of", "40", "0.7000", "0.7000", "0", "1:00"],
            ["b", "stopped", "-", "1", "0.6500", "0.6500", "-", "0:11"],
        ]
        facts = json.loads(forebay("jobs", "--ray", "--json")[1])
        assert [run["name"] for run in facts["runs"]] == ["ctr.a"]
        sweep = facts["sweeps"][0]
        assert (sweep["name"], sweep["best"], sweep["deadline_left_s"], sweep["stopping"]) == ("ctr", 0.7, 40.0, None)
        assert [each["state"] for each in sweep["trials"]] == ["running", "stopped"]
    deadline = time.monotonic() + 60.0
    while list_sweeps() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list_sweeps() == []


def test_stop_ends_a_sweep_by_its_name(forebay: Call) -> None:
    shown = made()
    with opened() as board:
        board.publish(shown)
        assert board.stop_reason is None
        code, told, _ = forebay("stop", "ctr", "--reason", "seen enough")
        assert (code, told) == (0, "ctr: its trials end at their next checkpoints. It stays in runs/ctr.\n")
        assert until_told(board, shown) == "seen enough"
        assert "stopping: seen enough" in forebay("jobs", "--ray")[1]
        assert json.loads(forebay("stop", "ctr", "--json")[1])["sweep"] == "ctr"
        assert until_told(board, shown) == "seen enough"
        code, _, error = forebay("stop", "ct")
        assert code == 3 and "no run named 'ct' is under way" in error


def test_one_sweep_of_a_name_at_a_time(ray_session: None) -> None:
    again = publish_status(made(), "runs/ctr")
    with (
        publish_status(made(), "runs/ctr"),
        pytest.raises(InvalidOption, match="sweep named 'ctr' is already running"),
        again,
    ):
        pass


def test_a_sweep_that_ends_while_it_is_asked_to(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened():
        there = find(board.PREFIX, "ctr")
    await_end(there)
    monkeypatch.setattr(board, "find_or_refuse", lambda prefix, name, kind: there)
    with pytest.raises(InvalidOption, match="'ctr' has just ended"):
        stop_sweep("ctr", "enough")
