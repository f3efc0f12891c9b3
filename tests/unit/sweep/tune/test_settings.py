"""Settings of Ray Tune during a sweep."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.execution import tune_controller
from ray.tune.execution.tune_controller import TuneController
from ray.tune.impl.placeholder import create_resolvers_map, inject_placeholders, resolve_placeholders

from forebay.errors import InvalidOption
from forebay.sweep.tune.settings import SilentReporter, tune_settings


class Committing:
    """Actors of Tune's actor manager: each turn takes a second, and they need `seconds` to end."""

    def __init__(self, controller: Any, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.killed = 0.0, deque[str]()
        self._controller, self._seconds = controller, seconds
        monkeypatch.setattr(tune_controller.time, "monotonic", lambda: self.now)

    def is_actor_started(self, tracked_actor: str) -> bool:
        return self.now < self._seconds

    def next(self, timeout: float) -> None:
        self.now += timeout
        if self.now >= self._seconds:
            self._controller._stopping_actors.clear()

    def remove_actor(self, tracked_actor: str, kill: bool) -> None:
        self.killed.append(tracked_actor)


def test_the_last_trials_have_time_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    controller: Any = TuneController.__new__(TuneController)
    with tune_settings():
        controller._actor_force_cleanup_timeout = 10
        controller._actor_cleanup_timeout = 600
        controller._stopping_actors, controller._earliest_stopping_actor = {"actor": 0.0}, 0.0
        controller._actor_manager = actors = Committing(controller, 45, monkeypatch)
        controller._cleanup_stopping_actors(force_all=True)
    assert not actors.killed and actors.now == 45
    assert "_actor_force_cleanup_timeout" not in vars(TuneController)


def test_one_sweep_runs_at_a_time_in_a_process() -> None:
    with (
        tune_settings(),
        pytest.raises(InvalidOption, match="another sweep is running in this process"),
        tune_settings(),
    ):
        pass
    with tune_settings():
        pass


@pytest.mark.parametrize("value", [5, 0.5, "a", "adam", (1, 2), Path("a"), Path, None, True])
def test_a_value_of_a_resumed_trial_stays_as_it_is(value: Any) -> None:
    space = {"x": tune.grid_search([Path("a"), Path, value]), "y": tune.sample_from(lambda spec: [spec.config.x])}
    resolvers = create_resolvers_map()
    drawn = inject_placeholders(space, resolvers)
    config = {"x": value, "y": value}
    with tune_settings():
        resolve_placeholders(config, resolvers)
        assert config == {"x": value, "y": value}
        for number, one in enumerate([Path("a"), Path, value]):
            config = {"x": drawn["x"]["grid_search"][number], "y": drawn["y"]}
            resolve_placeholders(config, resolvers)
            assert config["x"] == one and config["y"] != drawn["y"]


@pytest.mark.parametrize("value", [(), (1, 2), [1, 2], {"b": 1}, (np.ones(2), 3), 5])
def test_values_of_another_form_stand_beside_objects_within_values(value: Any) -> None:
    resolvers = create_resolvers_map()
    inject_placeholders({"x": tune.choice([{"a": Path("a")}, (Path("b"), 1), value])}, resolvers)
    config = {"x": value}
    with tune_settings():
        resolve_placeholders(config, resolvers)
    assert config["x"] is value


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_process_that_is_kept_for_a_later_trial_lets_go_of_its_own(
    is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[str] = []
    actor = SimpleNamespace(cleanup=SimpleNamespace(remote=lambda: cleaned.append("actor")))

    def cache(controller: Any, trial: Any) -> bool:
        # As Tune does for an actor that it keeps: the trial no longer refers to it.
        if is_kept:
            trial.temporary_state.ray_actor = None
        return is_kept

    monkeypatch.setattr(TuneController, "_maybe_cache_trial_actor", cache)
    controller: Any = TuneController.__new__(TuneController)
    with tune_settings():
        trial: Any = SimpleNamespace(temporary_state=SimpleNamespace(ray_actor=actor))
        assert controller._maybe_cache_trial_actor(trial) is is_kept
    assert cleaned == (["actor"] if is_kept else [])
    assert TuneController._maybe_cache_trial_actor is cache


def test_nothing_is_printed_of_a_trial_that_ends_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    trial: Any = type("Ended", (), {"last_result": {}})()
    SilentReporter().on_trial_complete(iteration=0, trials=[], trial=trial)
    assert capsys.readouterr().out == ""
