"""Generations of a trial that forks from other trials."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.sweep.trial import generations
from forebay.sweep.trial.fork import Origin
from forebay.sweep.trial.generations import start_generation


def of_process(text: str) -> Any:
    """Object that repr() shows as `text`."""
    return type("Shown", (SimpleNamespace,), {"__repr__": lambda _: text})()


@pytest.mark.parametrize(
    ("shown", "number"), [("<function relu at 0x7fff>", 1), ("<function tanh at 0x7f00>", 2)], ids=["same", "other"]
)
def test_a_fork_is_continued_by_the_next_process_of_its_trial(
    shown: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = {"run": "runs/donor", "step": 4}
    monkeypatch.setattr(generations, "fork", lambda run, step, path: Path(path).mkdir())
    monkeypatch.setattr(generations, "origin_of", lambda path: Origin(**donor))  # type: ignore[arg-type]

    def start(text: str) -> int:
        config = {"activation": of_process(text)}
        return start_generation(donor, str(tmp_path), sweep="s", trial_id="1a2b3_00000", config=config)

    assert start("<function relu at 0x7f00>") == 1
    assert start(shown) == number
