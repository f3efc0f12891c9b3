from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.waiting import until

from forebay.cli.train_job import _StopAtTerm, tracker_named
from forebay.errors import InvalidOption
from forebay.events import Started
from forebay.training.callbacks.tensorboard import TensorBoard
from forebay.training.runs.control import Control


def test_trackers_are_named_with_their_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # the writer's library sets it
    assert isinstance(tracker_named("tensorboard"), TensorBoard)
    board = tracker_named(f"tensorboard:{tmp_path}/mine")
    assert isinstance(board, TensorBoard) and str(board._folder) == f"{tmp_path}/mine"
    with pytest.raises(InvalidOption, match=r"--track='weightsandbiases' is unknown. Choose one of comet, mlflow"):
        tracker_named("weightsandbiases")
    with pytest.raises(InvalidOption, match=r"--track='commet://x' is unknown. Did you mean 'comet'\?"):
        tracker_named("commet://x")


def test_sigterm_is_answered_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    control, stop = Control(), _StopAtTerm()
    with stop:
        stop(Started(name="a", world_size=1, epochs=1, num_batches=1), control)
        signal.raise_signal(signal.SIGTERM)
        until(lambda: control.stop_reason is not None)
        until(lambda: "asked to end (SIGTERM): the run ends after its next checkpoint.\n" in capfd.readouterr().err)
    assert control.how_ended(control.stop_reason) == "interrupted"
