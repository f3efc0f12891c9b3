"""A coordinator that does not answer does not delay the sweep and keeps its workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.sweep.deadline import trial_workers
from forebay.sweep.deadline.trial_workers import ANSWER_S, SILENT_S, RayTrialWorkers
from forebay.training.runs.status import RunStatus


class SteeredRuns:
    """Coordinators by name. Those in `silent` do not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.silent: set[str] = set()
        self.waits: list[float] = []
        self._there = {
            name: RunStatus(
                name=name,
                driver="ray",
                target=1,
                world_size=1,
                min_workers=1,
                max_workers=8,
                epochs=3,
                started_at=0.0,
                node="here",
                path=name,
            )
            for name in names
        }
        for name in ("names", "runs", "request_target"):
            monkeypatch.setattr(trial_workers, name, getattr(self, name))

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._there if name.startswith(prefix)]

    def runs(self, prefix: str, wait_s: float) -> list[RunStatus]:
        self.waits.append(wait_s)
        return [self._there[name] for name in self.names(prefix) if name not in self.silent]

    def request_target(self, name: str, workers: int) -> None:
        self.change(name, target=workers)

    def change(self, name: str, **facts: int) -> None:
        self._there[name] = replace(self._there[name], **facts)


def test_silence_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, workers = SteeredRuns(monkeypatch, "ctr.a", "ctr.b"), RayTrialWorkers("ctr")
    workers.allocations()
    runs.silent = {"ctr.a"}
    assert set(workers.allocations()) == {"a", "b"}
    workers.allocations()
    runs.silent = set()
    workers.allocations()
    workers.allocations()
    assert runs.waits == [ANSWER_S, ANSWER_S, SILENT_S, SILENT_S, ANSWER_S]


def test_who_only_looks_on_asks_nobody_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, workers = SteeredRuns(monkeypatch, "ctr.a"), RayTrialWorkers("ctr")
    assert workers.recent_allocations() == workers.recent_allocations() == workers.allocations()
    assert len(runs.waits) == 2


def test_silent_runs_hold_what_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, workers = SteeredRuns(monkeypatch, "ctr.a"), RayTrialWorkers("ctr")
    workers.allocations()
    workers.resize("a", 4)
    runs.silent = {"ctr.a"}
    assert workers.allocations()["a"].target == 4
    # Until it reports so itself, it may still have all of them.
    workers.resize("a", 2)
    assert workers.allocations()["a"].target == 4
    runs.silent = set()
    assert workers.allocations()["a"].target == 2


def test_what_a_trials_own_callbacks_ask_for_is_the_most_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, workers = SteeredRuns(monkeypatch, "ctr.a"), RayTrialWorkers("ctr")
    assert workers.allocations()["a"].max_workers == 8
    runs.change("ctr.a", callback_target=2)
    assert workers.allocations()["a"].max_workers == 2
