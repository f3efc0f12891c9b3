from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.train_job import tracker_named
from forebay.errors import InvalidOption
from forebay.training.callbacks.tensorboard import TensorBoard


def test_trackers_are_named_with_their_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # the writer's library sets it
    assert isinstance(tracker_named("tensorboard"), TensorBoard)
    board = tracker_named(f"tensorboard:{tmp_path}/mine")
    assert isinstance(board, TensorBoard) and str(board._folder) == f"{tmp_path}/mine"
    with pytest.raises(InvalidOption, match=r"--track='weightsandbiases' is unknown. Choose one of comet, mlflow"):
        tracker_named("weightsandbiases")
    with pytest.raises(InvalidOption, match=r"--track='commet://x' is unknown. Did you mean 'comet'\?"):
        tracker_named("commet://x")
