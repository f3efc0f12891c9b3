"""Actions of the Ray Train driver at the end of a run."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RaySystemError

from forebay.training.checkpoint import ray_store
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.driver.ray_train import driver as ray_driver
from forebay.training.driver.ray_train.driver import _clear_away


def test_what_cannot_be_removed_hides_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def unanswered(_: Any) -> None:
        raise RaySystemError("no answer from Ray")

    def unreachable(_: Any) -> None:
        raise OSError("no answer from storage")

    run: Any = SimpleNamespace(name="a", path=str(tmp_path), has_successor=lambda: False)
    monkeypatch.setattr(ray_driver, "remove_placements", unanswered)
    monkeypatch.setattr(ray_driver, "_remove_ray_folder", unreachable)
    with caplog.at_level(logging.WARNING):
        _clear_away(run)
    assert "no answer from Ray" in caplog.text and "no answer from storage" in caplog.text


def test_a_run_that_was_taken_over_removes_nothing_of_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one cluster, groups, stores and folders have one name: it removed the workers of the later attempt."""
    run: Any = SimpleNamespace(name="a", path="a", has_successor=lambda: True)
    for name in ("remove_placements", "_remove_ray_folder"):
        monkeypatch.setattr(ray_driver, name, lambda _: pytest.fail("it is the successor's"))
    monkeypatch.setattr(ray_store, "end_stores", lambda *_: ended.append("before"))
    ended: list[str] = []
    _clear_away(run)
    with ray_store.checkpoint_stores("a", CheckpointConfig(uri="a"), run.has_successor):
        pass
    assert ended == ["before"]
