"""TensorBoard shows each step once: steps that are trained again replace those before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.training.callbacks.trackers import scalars

from forebay.errors import InvalidOption
from forebay.events import Failed, Finished, Reported, RolledBack, Started
from forebay.training.callbacks.tensorboard import TensorBoard
from forebay.training.runs.control import Control

STARTED = Started(name="mine", world_size=1, epochs=1, num_batches=2)


def reported(step: int, loss: float) -> Reported:
    return Reported(step=step, epoch=0, position=step, metrics={"loss": loss}, rows=step, global_batch=64)


def test_folder_of_its_own_by_the_name_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    board, control = TensorBoard(), Control()
    for loss in (0.5, 0.25):
        board(STARTED, control)
        board(reported(1, loss), control)
        board(Failed(error="killed", failures=1, will_retry=False), control)
    folder = tmp_path / "tensorboard" / "mine"
    assert len(list(folder.iterdir())) == 2
    assert scalars(folder)["step/loss"] == [(1, 0.25)]


@pytest.mark.parametrize(
    ("event", "first"),
    [
        (RolledBack(reason="NaN", from_step=4, to_step=1), 3),  # not every step is reported
        (Failed(error="killed", failures=1, will_retry=True), 2),
    ],
)
def test_steps_trained_again_replace_those_before(tmp_path: Path, event: Any, first: int) -> None:
    board, control = TensorBoard(tmp_path), Control()
    board(STARTED, control)
    for step in (1, 2, 3, 4):
        board(reported(step, 0.5), control)
    board(event, control)
    for step in range(first, 6):
        board(reported(step, 0.25), control)
    board(Finished(name="run", path="runs/run"), control)
    shown = scalars(tmp_path)
    assert shown["step/loss"] == [(1, 0.5), *((step, 0.25) for step in range(first, 6))]
    texts = shown.get("monitors/rolled_back/text_summary", [])
    assert texts == ([(4, "NaN; back to step 1, 0 rows skipped")] if isinstance(event, RolledBack) else [])


def test_a_resumed_run_that_ends_before_its_first_report_keeps_the_steps_before(tmp_path: Path) -> None:
    control = Control()
    for steps in ((1, 2, 3), ()):
        board = TensorBoard(tmp_path)
        board(STARTED, control)
        for step in steps:
            board(reported(step, 0.5), control)
        board(Failed(error=f"failed after {len(steps)} steps", failures=1, will_retry=False), control)
    shown = scalars(tmp_path)
    assert shown["step/loss"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert [text for _, text in shown["run/state/text_summary"]][-1] == "failed: failed after 0 steps"


def test_without_a_writer_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidOption, match=r"without tensorboardX needs.*pip install 'forebay\[tensorboard\]'"):
        TensorBoard()
