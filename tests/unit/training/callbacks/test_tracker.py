"""Laws of all experiment trackers, read back from the files that each of them writes."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.training.callbacks.trackers import TrackerKind, read_comet, read_mlflow, read_tensorboard, read_wandb
from tests.waiting import until

from forebay.errors import Fenced, InvalidOption
from forebay.events import EpochEnded, Event, Failed, Finished, Reported, RolledBack, Started, Warned
from forebay.storage.credentials import without_credentials
from forebay.training.callbacks import tracker as tracker_module
from forebay.training.callbacks.comet import Comet
from forebay.training.callbacks.mlflow import MLflow
from forebay.training.callbacks.tensorboard import TensorBoard
from forebay.training.callbacks.tracker import EndState, Entry, Note, StepMetrics, TrackedRun, Tracker
from forebay.training.callbacks.wandb import WandB
from forebay.training.runs.control import Control

SECRET = "sesame-42-open"
TENSORBOARD = TrackerKind(
    name="tensorboard",
    make=lambda folder, **options: TensorBoard(folder / "mine", **options),
    read=read_tensorboard,
)
MLFLOW = TrackerKind(
    name="mlflow",
    make=lambda folder, **options: MLflow("clicks", (folder / "mlruns").as_uri(), **options),
    read=read_mlflow,
    environment={"MLFLOW_ALLOW_FILE_STORE": "true"},  # MLflow prefers a server or a database
)
WANDB = TrackerKind(
    name="wandb",
    make=lambda folder, **options: WandB("clicks", mode="offline", folder=folder, **options),
    read=read_wandb,
    end=lambda: sys.modules["wandb"].teardown(),  # noqa: PLW0108 - it is not imported yet
)
COMET = TrackerKind(
    name="comet",
    make=lambda folder, **options: Comet("clicks", online=False, folder=folder, **options),
    read=read_comet,
)
KINDS = [TENSORBOARD, MLFLOW, WANDB, COMET]
ONE_KIND = [TENSORBOARD, *(pytest.param(kind, marks=pytest.mark.variation) for kind in KINDS[1:])]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):  # for a tracker's own process
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("COMET_API_KEY", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", SECRET * 4)


def started(name: str = "mine", workers: int = 2) -> Started:
    return Started(name=name, world_size=workers, epochs=1, num_batches=3)


def reported(step: int, loss: float) -> Reported:
    return Reported(step=step, epoch=0, position=step, metrics={"loss": loss}, rows=step, global_batch=64)


STOPPED = "the sweep has stopped this trial"
ENDED = EpochEnded(epoch=0, step=3, metrics={"auc": 0.75}, rows=9, seconds=3, wait_s=0, eval_s=0, checkpoint_s=0)
FINISHED = Finished(name="mine", path="runs/mine")


def play(
    kind: TrackerKind,
    folder: Path,
    events: Sequence[Event],
    facts: Any = None,
    asked: str | None = None,
    **options: Any,
) -> None:
    """Call a new callback with all events of one process of a run, which somebody `asked` to stop."""
    callback, control = kind.make(folder, **options), Control(workers=2, facts=facts)
    if asked is not None:
        control.obey_stop(asked)
    for event in events:
        callback(event, control)
    kind.end()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for the files of the tracker `kind`."""
    for name, value in request.getfixturevalue("kind").environment.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_an_attempt_that_was_taken_over_sends_no_end() -> None:
    sent: list[str] = []

    class SilentTracker(Tracker):
        def open(self, run: TrackedRun) -> None:
            sent.append(run.name)

        def write(self, entries: Sequence[Entry]) -> None:
            """Ignore entries."""

        def close(self, state: EndState, reason: str) -> None:
            sent.append(state)

    for error, wanted in ((f"{Fenced.__name__}: attempt 2 has taken over", ["mine"]), ("killed", ["mine", "failed"])):
        sent.clear()
        callback = SilentTracker()
        callback(started(), Control())
        sender = callback._sender
        assert sender is not None
        until(lambda: bool(sent))
        callback(Failed(error=error, failures=1, will_retry=False), Control())
        sender._thread.join(30.0)
        assert (sent, sender._thread.is_alive()) == (wanted, False)


@pytest.mark.parametrize("refuses", ["some", "all"])
def test_what_a_tracker_refuses_holds_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refuses: str
) -> None:
    monkeypatch.setattr(tracker_module, "SEND_EVERY_S", 0.01)
    monkeypatch.setattr(tracker_module, "RETRY_S", 0.01)
    steps, ends, calls = list[int](), list[str](), 0

    class StrictTracker(Tracker):
        def open(self, run: TrackedRun) -> None:
            """Take any run."""

        def write(self, entries: Sequence[Entry]) -> None:
            nonlocal calls
            calls += 1
            if refuses == "all" and calls < 20:
                raise TimeoutError("no answer")
            if any(isinstance(each, Note) for each in entries):
                raise ValueError("a note is too long")
            steps.extend(each.step for each in entries if isinstance(each, StepMetrics))

        def close(self, state: EndState, reason: str) -> None:
            ends.append(state)

    callback = StrictTracker()
    callback(started(), Control())
    for step in range(1, 7):
        callback(Warned(reason="odd", step=step), Control())
        callback(reported(step, 0.5), Control())
    until(lambda: {*steps} == {1, 2, 3, 4, 5, 6})
    callback(FINISHED, Control())
    assert (sorted(steps), ends) == ([1, 2, 3, 4, 5, 6], ["finished"])
    said = [each.message for each in caplog.records if "refuses a part" in each.message]
    assert len(said) == 1 and "Note(name='warned'" in said[0] and "a note is too long" in said[0], said


@pytest.mark.parametrize("kind", [MLFLOW], ids=lambda kind: kind.name)
def test_a_metric_of_any_name_is_recorded(kind: TrackerKind, place: Path) -> None:
    metrics = {"loss": 0.5, "recall@10": 0.25, "p[0] (web)": 0.75}
    told = Reported(step=1, epoch=0, position=1, metrics=metrics, rows=1, global_batch=64)
    play(kind, place, [started(), told, FINISHED], {"lr": 0.1})
    (run,) = kind.read(place).values()
    assert run.state == "finished"
    wanted = {"step/loss": 0.5, "step/recall_10": 0.25, "step/p_0_ _web_": 0.75}
    assert {name: run.metrics[name] for name in wanted} == {name: [(1, value)] for name, value in wanted.items()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_run_and_the_one_that_continues_it_are_one_run_of_the_tracker(kind: TrackerKind, place: Path) -> None:
    lost = Failed(error="killed", failures=1, will_retry=True)
    failed = Failed(error="out of memory", failures=2, will_retry=False)
    first = [started(), reported(1, 0.5), Warned(reason="a row is too long", step=1), lost, started(workers=1)]
    play(kind, place, [*first, reported(2, 0.4), failed], {"lr": 0.1, "job.epochs": 1})
    (run,) = kind.read(place).values()
    assert run.state == "failed: out of memory"
    if kind is WANDB:
        time.sleep(1.1)  # its offline folders are named after the second
    again = [started(workers=4), reported(3, 0.25), RolledBack(reason="NaN", from_step=3, to_step=2), reported(3, 0.2)]
    play(kind, place, [*again, ENDED, FINISHED], {"lr": 0.1, "job.epochs": 1})

    (name,) = kind.read(place)
    run = kind.read(place)[name]
    assert (name, run.state.partition(":")[0], run.group) == ("mine", "finished", None)
    assert {name: run.facts[name] for name in ("lr", "job.epochs")} == {"lr": "0.1", "job.epochs": "1"}
    losses = [(step, pytest.approx(loss)) for step, loss in ((1, 0.5), (2, 0.4), (3, 0.25), (3, 0.2))]
    # TensorBoard shows a step that was trained again once.
    assert run.metrics["step/loss"] == [each for each in losses if kind is not TENSORBOARD or each[1] != 0.25]
    assert [workers for _, workers in run.metrics["run/workers"]][:3] == [2, 1, 4]
    assert run.metrics["epoch/auc"] == [(3, 0.75)]
    assert run.metrics["epoch/rows_per_s"] == [(3, 3.0)]
    texts = {
        "warned": "a row is too long",
        "lost_workers": "killed",
        "rolled_back": "NaN; back to step 2, 0 rows skipped",
    }
    assert {name: run.texts.get(name) for name in texts} == texts


@pytest.mark.parametrize("asked", [None, "of another reason"])
@pytest.mark.parametrize("kind", ONE_KIND, ids=lambda kind: kind.name)
def test_a_run_that_its_own_rule_ended_is_finished(kind: TrackerKind, place: Path, asked: str | None) -> None:
    end = Finished(name="mine", path="", stopped="auc has not improved for 3 evaluations")
    play(kind, place, [started(), reported(1, 0.5), end], asked=asked)
    (run,) = kind.read(place).values()
    assert run.state == "finished: auc has not improved for 3 evaluations"


@pytest.mark.parametrize("kind", ONE_KIND, ids=lambda kind: kind.name)
def test_trials_are_runs_of_one_group_and_end_as_stopped(kind: TrackerKind, place: Path) -> None:
    for number in range(2):
        name = f"ctr.1a2b_{number}"
        end = Finished(name=name, path="", stopped=STOPPED)
        play(kind, place, [started(name), reported(1, 0.5), end], {"sweep.name": "ctr"}, STOPPED)
    found = kind.read(place)
    assert sorted(found) == ["ctr.1a2b_0", "ctr.1a2b_1"]
    for run in found.values():
        assert run.state == f"stopped: {STOPPED}"
        assert run.group == (None if kind is TENSORBOARD else "ctr")  # there, a group is a folder


@pytest.mark.parametrize("kind", ONE_KIND, ids=lambda kind: kind.name)
def test_no_secret_is_written(kind: TrackerKind, place: Path) -> None:
    without_credentials(f"s3://AKIA:{SECRET}@lake/chats")
    found = f"s3://lake?token={SECRET} refused"
    events = [
        started(),
        reported(1, 0.5),
        Warned(reason=found, step=1),
        Failed(error=found, failures=1, will_retry=True),
    ]
    play(kind, place, [*events, reported(2, 0.5), Failed(error=found, failures=2, will_retry=False)])
    files = [path for path in place.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    (run,) = kind.read(place).values()
    assert run.state == "failed: s3://lake?token=*** refused"


class AbsentTracker(Tracker):
    """Tracker that cannot be reached until `is_up`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_up = False
        self.opened = 0
        self.written: list[Entry] = []
        self.ended: EndState | None = None

    def open(self, run: TrackedRun) -> None:
        self.opened += 1
        if not self.is_up:
            raise ConnectionRefusedError(f"no answer with {SECRET}")

    def write(self, entries: Sequence[Entry]) -> None:
        self.written += entries

    def close(self, state: EndState, reason: str) -> None:
        self.ended = state


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_tracker_that_cannot_be_reached_is_warned_about_once(
    comes_back: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "RETRY_S", 0.01)
    without_credentials(f"s3://AKIA:{SECRET}@lake/chats")
    callback, control = AbsentTracker(), Control()
    with caplog.at_level(logging.WARNING):
        for event in (started(), reported(1, 0.5), reported(2, 0.25)):
            callback(event, control)
        while callback.opened < 3:
            time.sleep(0.001)
        callback.is_up = comes_back
        callback(FINISHED, control)
    (warning,) = caplog.messages
    assert "AbsentTracker cannot be reached (ConnectionRefusedError: no answer with ***). Run mine continues" in warning
    assert [entry.step for entry in callback.written if isinstance(entry, StepMetrics)] == (
        [1, 2] if comes_back else []
    )
    assert callback.ended == ("finished" if comes_back else None)


def test_what_is_reported_while_a_full_queue_is_sent_is_sent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "MOST_UNSENT", 3)
    monkeypatch.setattr(tracker_module, "SEND_EVERY_S", 0.01)
    is_sending, is_reported = threading.Event(), threading.Event()

    class SlowTracker(AbsentTracker):
        def write(self, entries: Sequence[Entry]) -> None:
            super().write(entries)
            is_sending.set()
            assert is_reported.wait(60)

    callback, control = SlowTracker(), Control()
    callback.is_up = True
    callback(started(), control)
    callback(reported(1, 0.5), control)
    assert is_sending.wait(60)
    for step in range(2, 5):  # the queue is full, and drops step 1
        callback(reported(step, 0.5), control)
    is_reported.set()
    callback(FINISHED, control)
    assert [entry.step for entry in callback.written if isinstance(entry, StepMetrics)] == [1, 2, 3, 4]


def test_a_server_that_is_away_and_one_that_hangs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(tracker_module, "CLOSE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING):
        for port in (9, silent.getsockname()[1]):
            callback = MLflow("clicks", f"http://127.0.0.1:{port}")
            for event in (started(), reported(1, 0.5), FINISHED):
                callback(event, Control())
    assert "MLflow cannot be reached" in caplog.text
    assert "MLflow did not answer within 0.1 s" in caplog.text
    while any(thread.name == "forebay-tracker" for thread in threading.enumerate()):
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("make", "package"), [(MLflow, "mlflow"), (WandB, "wandb"), (Comet, "comet_ml")], ids=["mlflow", "wandb", "comet"]
)
def test_a_missing_package_comes_with_the_install_line(
    make: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidOption, match=rf"Run: pip install 'forebay\[{package.partition('_')[0]}\]'"):
        make()


@pytest.mark.parametrize(("kind", "remedy"), [(WandB, "wandb login"), (Comet, "comet login")], ids=["wandb", "comet"])
def test_a_missing_key_is_found_before_the_run(
    kind: Any, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("COMET_API_KEY", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidOption, match=remedy):
        kind()
    if kind is WandB:
        sys.modules["wandb"].teardown()
