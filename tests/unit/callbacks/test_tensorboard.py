"""TensorBoard reads what a run reports."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog  # of Ray Train, sets a variable at import

from forebay.callbacks.tensorboard import TensorBoard
from forebay.errors import InvalidOption
from forebay.events import EpochEnded, Failed, Finished, Reported, RolledBack, Started, Warned
from forebay.runs.control import Control


def reported(step: int, loss: float) -> Reported:
    return Reported(step=step, epoch=0, position=step, metrics={"loss": loss}, rows=step, global_batch=64)


ENDED = EpochEnded(
    epoch=0, step=2, metrics={"auc": 0.75}, rows=200, seconds=2.0, wait_s=0.5, eval_s=0.0, checkpoint_s=0.0
)


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars and texts that TensorBoard shows. At the start of a session it drops later steps that it has.

    A file is a sequence of records: a length, its checksum, an event, and its checksum.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.session_log.status == SessionLog.START:
                for kept in found.values():
                    kept[:] = [shown for shown in kept if shown[0] < event.step]
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                found[value.tag].append(
                    (event.step, value.simple_value if kind == "simple_value" else value.tensor.string_val[0].decode())
                )
    return dict(found)


def test_scalars_and_findings(tmp_path: Path) -> None:
    board, control = TensorBoard(tmp_path), Control(workers=2)
    board(Started(name="run", world_size=2, epochs=1, num_batches=2), control)
    board(reported(1, 0.5), control)
    board(Warned(reason="a row is too long", step=1), control)
    board(Started(name="run", world_size=4, epochs=1, num_batches=2), control)
    board(reported(2, 0.25), control)
    board(RolledBack(reason="NaN", from_step=2, to_step=1, skipped_rows=64), control)
    board(ENDED, control)
    board(Finished(name="run", path="runs/run"), control)
    assert read(tmp_path) == {
        "step/loss": [(1, 0.5)],
        "run/workers": [(1, 2.0)],
        "run/global_batch": [(1, 64.0)],
        "monitors/text_summary": [(1, "a row is too long"), (2, "NaN; back to step 1, 64 rows skipped")],
        "epoch/auc": [(2, 0.75)],
        "epoch/rows_per_s": [(2, 100.0)],
        "epoch/wait_share": [(2, 0.25)],
    }


def test_folder_of_its_own_by_the_name_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    board, control = TensorBoard(), Control()
    for loss in (0.5, 0.25):
        board(Started(name="mine", world_size=1, epochs=1, num_batches=2), control)
        board(reported(1, loss), control)
        board(Failed(error="killed", failures=1, will_retry=False), control)
    folder = tmp_path / "tensorboard" / "mine"
    assert len(list(folder.iterdir())) == 2
    assert read(folder)["step/loss"] == [(1, 0.25)]


@pytest.mark.parametrize(
    ("event", "first"),
    [
        (RolledBack(reason="NaN", from_step=4, to_step=1), 3),  # not every step is reported
        (Failed(error="killed", failures=1, will_retry=True), 2),
    ],
)
def test_steps_trained_again_replace_those_before(tmp_path: Path, event: Any, first: int) -> None:
    board, control = TensorBoard(tmp_path), Control()
    for step in (1, 2, 3, 4):
        board(reported(step, 0.5), control)
    board(event, control)
    for step in range(first, 6):
        board(reported(step, 0.25), control)
    board(Finished(name="run", path="runs/run"), control)
    shown = read(tmp_path)
    assert shown["step/loss"] == [(1, 0.5), *((step, 0.25) for step in range(first, 6))]
    texts = shown.get("monitors/text_summary", [])
    assert texts == ([(4, "NaN; back to step 1, 0 rows skipped")] if isinstance(event, RolledBack) else [])


def test_without_a_writer_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboardX", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidOption, match=r"neither is installed.*pip install 'forebay\[tensorboard\]'"):
        TensorBoard()
