"""GPUs of a run, decided before its workers start."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.errors import ExitCode, Hung, InvalidOption, ReadFailed, RunFailed
from forebay.events import EpochEnded, Event, Failed, Preparing, Reported, Warned
from forebay.runtime.gpus import GpuSupply
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.elastic import Elastic
from forebay.training.job.resources import Resources
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import start
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.run import Run
from forebay.training.runs.timeline.timeline import load_timeline

HERE = GpuSupply(place="this machine", nodes=(2.0,))
CLUSTER = GpuSupply(place="the cluster", nodes=(0.0, 2.0), grows=True)


@pytest.mark.parametrize(
    ("supply", "elastic", "most", "target"),
    [
        (HERE, {"min_workers": 1, "max_workers": 4}, 2, 2),
        (HERE, {"min_workers": 1, "max_workers": 4, "start": 1}, 2, 1),
        (HERE, {"min_workers": 2, "max_workers": 2}, 2, 2),
        (CLUSTER, {"min_workers": 1, "max_workers": 4}, 4, 4),
        (CLUSTER, {"min_workers": 3, "max_workers": 4}, 4, 4),
    ],
)
def test_target_stays_within_gpus_that_cannot_become_more(
    tmp_path: Path, supply: GpuSupply, elastic: dict[str, Any], most: int, target: int
) -> None:
    heard: list[Event] = []
    job = DriverBench(tmp_path).job("gpus", elastic=Elastic(**elastic), resources=Resources())
    with Run(job, [lambda event, control: heard.append(event)]) as run:
        run.settle(supply)
        assert (run.job.max_workers, run.job.start_workers, run.control.target) == (most, target, target)
        assert run.control.resize(9) == most
        assert run.worker_spec.resources == Resources(gpus=1)
        run.finish("enough")
    said = [event.what for event in heard if isinstance(event, Preparing)]
    assert len(said) == 1
    assert said[0].endswith(", room for 2 workers") == (elastic["max_workers"] > 2), said
    timeline = load_timeline(run.folder)
    assert timeline is not None
    assert timeline.starts[-1].origin.config["job.gpus"] == 1


def test_smallest_world_needs_its_gpus(tmp_path: Path) -> None:
    job = DriverBench(tmp_path).job("a", elastic=Elastic(min_workers=3, max_workers=4), resources=Resources())
    with Run(job) as run, pytest.raises(InvalidOption, match="3 workers need a GPU each"):
        run.settle(HERE)


def test_of_many_ranks_that_stand_still_the_first_are_told(tmp_path: Path) -> None:
    heard: list[Event] = []
    with Run(DriverBench(tmp_path).job("a"), [lambda event, control: heard.append(event)]) as run:
        for rank in range(100):
            run.tell(Warned(reason=f"rank {rank} has taken no step", step=7))
        run.tell(Warned(reason="rank 3 has taken no step", step=8))
        run.finish("enough")
    said = [event.reason for event in heard if isinstance(event, Warned)]
    assert said[:2] == ["rank 0 has taken no step", "rank 1 has taken no step"]
    assert said[-2:] == [
        "rank 7 has taken no step; further warnings of this step are left out",
        "rank 3 has taken no step",
    ]
    assert len(said) == 9


@pytest.mark.parametrize(
    ("silent", "begin"),
    [
        ([], "one hangs"),
        ([3], r"rank 3 is in a.py. one hangs"),
        ([3, 1], r"rank 3 is in a.py; rank 1 is in a.py. one hangs"),
        ([3, 1, 2], r"rank 3 is in a.py; rank 1 is in a.py, and 1 other stand still. one hangs"),
    ],
)
def test_the_error_of_a_run_that_hung_begins_with_the_silent_ranks(
    tmp_path: Path, silent: list[int], begin: str
) -> None:
    hung, heard = Hung("one hangs", rank=0), list[Event]()
    job = DriverBench(tmp_path).job("a")
    run = Run(job, [lambda event, control: heard.append(event)])

    def hang() -> None:
        run.tell(Warned(reason="rank 7 was in b.py", step=6, rank=7))
        run.tell(Reported(step=7, epoch=0, position=112, metrics={}, rows=112))
        run.tell(Warned(reason="a loss is odd", step=7))
        for rank in silent:
            run.tell(Warned(reason=f"rank {rank} is in a.py", step=7, rank=rank))
        raise hung

    with pytest.raises(Hung) as end, run:
        hang()
    assert str(end.value) == begin
    assert end.value.facts.get("silent", []) == sorted(silent)
    assert heard[-1] == Failed(error=f"Hung: {begin}", failures=1, will_retry=False)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(ExitCode.TERMINATED), "interrupted"),
        (SystemExit(1), "SystemExit: 1"),
    ],
)
def test_a_run_that_was_asked_to_end_was_interrupted(tmp_path: Path, end: BaseException, said: str) -> None:
    heard: list[Event] = []
    run = Run(DriverBench(tmp_path).job("a"), [lambda event, control: heard.append(event)])
    with pytest.raises(type(end)), run:
        raise end
    assert heard[-1] == Failed(error=said, failures=1, will_retry=False)


@pytest.mark.parametrize("why", ["it broke. Run 'a' again: it continues.", "it broke", "it broke."])
def test_a_follower_says_once_what_to_do_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(start, "POLL_S", 0.01)
    job, is_following = DriverBench(tmp_path).job("a"), threading.Event()

    def follow() -> None:
        with Run(replace(job, start=StartPolicy(follow=True)), [lambda *_: is_following.set()]):
            pass

    def fail() -> None:
        with Run(job):
            followers.append(pool.submit(follow))
            assert is_following.wait(60)
            raise RunFailed(why, name="a")

    followers: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(RunFailed):
            fail()
        error = followers[0].exception(60)
    assert isinstance(error, RunFailed)
    text = str(error)
    assert text.count("Run 'a' again") == 1 and ".." not in text and text.endswith("."), text


def end_by_user(run: Run) -> None:
    run.control.obey_stop("enough")
    run.finish("enough")


def end_by_term(run: Run) -> None:
    run.control.obey_stop("asked to end", "interrupted")
    run.finish("asked to end")


def end_by_early_term(run: Run) -> None:
    raise SystemExit(ExitCode.TERMINATED)


def end_after_all_epochs(run: Run) -> None:
    none = dict.fromkeys(("seconds", "wait_s", "eval_s", "checkpoint_s"), 0.0)
    for epoch in range(run.job.epochs):
        run.tell(EpochEnded(epoch=epoch, step=7 * (epoch + 1), metrics={}, rows=112, **none))
    run.finish(None)


@pytest.mark.parametrize(
    ("end", "more_epochs", "stopped", "attempt"),
    [
        (end_by_user, 0, "enough", None),
        (lambda run: run.finish("no better"), 0, "no better", None),
        (end_after_all_epochs, 0, None, None),
        (end_after_all_epochs, 1, None, 2),
        (end_by_term, 0, None, 2),
        (end_by_early_term, 0, None, 2),
    ],
    ids=["stopped", "patience", "finished", "more epochs", "SIGTERM", "SIGTERM before its workers"],
)
def test_a_follower_returns_what_is_over_and_trains_what_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Run], object],
    more_epochs: int,
    stopped: str | None,
    attempt: int | None,
) -> None:
    monkeypatch.setattr(start, "POLL_S", 0.01)
    job, is_following = replace(DriverBench(tmp_path).job("a"), parameters={"rate": 1}), threading.Event()

    def follow() -> tuple[bool, str | None, int | None]:
        again = replace(job, epochs=job.epochs + more_epochs, start=StartPolicy(follow=True), parameters={"rate": 2})
        with Run(again, [lambda *_: is_following.set()]) as run:
            return run.is_finished, run.result.stopped, run.attempt

    with ThreadPoolExecutor(1) as pool:
        with suppress(SystemExit), Run(job) as first:
            follower = pool.submit(follow)
            assert is_following.wait(60)
            end(first)
        assert follower.result(60) == (attempt is None, stopped, attempt)
    facts = json.loads((Path(first.path) / "job.json").read_text())
    assert facts["parameters"]["rate"] == (1 if attempt is None else 2), "a start that only followed wrote its facts"


@pytest.mark.parametrize("inputs", [["a", "b", "c"], ["c", "b", "a"]])
def test_another_transform_of_a_continued_run_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, inputs: list[str]
) -> None:
    job = DriverBench(tmp_path).job("a")
    with Run(job) as run:
        run.finish("enough")
    transform = Transform(row=Dense("id"), inputs=Dense(inputs), label=Label("target"))
    caplog.clear()
    with Run(replace(job, data=replace(job.data, transform=transform))) as run:
        run.finish("enough")
    assert ("goes on with another transform than at its last start" in caplog.text) == (inputs != ["a", "b", "c"])


def test_a_start_that_fails_leaves_the_end_of_its_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RunFailed("no room")

    monkeypatch.setattr("forebay.training.runs.run.record_order", refuse)
    job = DriverBench(tmp_path).job("a")
    with pytest.raises(RunFailed):
        Run(job)
    assert AttemptFiles(str(tmp_path / "runs" / "a")).ended(1) == AttemptEnd(how="failed", why="RunFailed: no room")


def test_records_that_cannot_be_read_are_the_fault_of_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*_: object) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr("forebay.training.runs.run.load_result", time_out)
    with pytest.raises(ReadFailed, match=r"the records of run 'a' in .* could not be read \(no answer\)") as failed:
        Run(DriverBench(tmp_path).job("a"))
    assert failed.value.exit_status == ExitCode.MACHINE


def test_a_run_knows_its_successor(tmp_path: Path) -> None:
    with Run(DriverBench(tmp_path).job("a")) as run:
        assert not run.has_successor()
        create_attempt(run.path, 2)
        assert run.has_successor()
