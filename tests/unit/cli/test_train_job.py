from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import JOB, TRAINING, Said
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


@pytest.mark.parametrize("takes_name", [True, False])
def test_the_command_that_continues_is_one_that_the_job_takes(
    forebay: Callable[..., Said], job_words: Callable[..., list[str]], takes_name: bool
) -> None:
    words = job_words()
    head, _, _ = TRAINING.partition("def train(")
    job = JOB if takes_name else JOB.replace(', name: str = "small"', "").replace("name=name", 'name="small"')
    stopped = "def train(worker, evaluate=None):\n    next(iter(worker.loader()))\n    raise KeyboardInterrupt\n"
    Path(words[0]).write_text(head + stopped + job)
    said = forebay("run", "--driver", "local", *words)
    assert said.code == 130
    assert ("forebay run --driver local" in said.err) == takes_name
    assert takes_name or "run the same job with name=small" in said.err
