"""Fence of a running attempt: later attempts, storage that does not answer, requests, and the first result."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.waiting import until

from forebay.errors import Fenced, InvalidOption, WriteFailed
from forebay.events import Request
from forebay.training.job.elastic import Elastic
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import fence as fence_module
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.attempts.start import create_attempt, start_attempt
from forebay.training.runs.attempts.stored_request import load_request, send_request
from forebay.training.runs.control import Control, RequestReader
from forebay.training.runs.result import Result, load_result, save_result


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(tmp_path / "ctr")


@pytest.fixture
def held(run: str) -> Fence:
    fence = start_attempt(run, StartPolicy(), print)
    assert isinstance(fence, Fence)
    return fence


def is_fenced(fence: Fence) -> bool:
    try:
        fence.check()
    except Fenced:
        return True
    return False


def test_thread_beats_and_finds_the_later_attempt(run: str, held: Fence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "ASK_S", 0.01)
    rounds: list[int] = []
    held.show(step=7, epochs=2)
    held.watch(lambda: rounds.append(1))
    files = AttemptFiles(run)
    until(lambda: (beat := files.heartbeat(1)) is not None and beat.step == 7 and rounds)
    held.check()
    create_attempt(run, 2)
    until(lambda: is_fenced(held))
    held.release(AttemptEnd(how="finished"))
    assert files.ended(1) is None


def test_refused_heartbeats_are_told_once_and_delay_no_request(
    held: Fence, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fence_module, "ASK_S", 0.01)
    monkeypatch.setattr(AttemptFiles, "beat", refuse)
    rounds: list[int] = []
    held.watch(lambda: rounds.append(1))
    until(lambda: len(rounds) > 3)
    held.check()
    held.release(AttemptEnd(how="finished"))
    assert caplog.text.count("Storage refuses the heartbeats of this run ([Errno 28] No space left on device)") == 1


def test_result_waits_until_storage_answers(run: str, held: Fence, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OSError("no answer"), OSError("no answer"), False])

    def has(_self: AttemptFiles, _number: int) -> bool:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(AttemptFiles, "has", has)
    monkeypatch.setattr(fence_module, "AGAIN_S", 0.0)
    held.confirm()
    assert list(answers) == []
    answers = iter([OSError("silent")])
    monkeypatch.setattr(fence_module, "CONFIRM_S", -1.0)
    with pytest.raises(WriteFailed, match=r"the result could not be written to .* \(OSError: silent\)"):
        held.confirm()
    held.release(None)


def result(run: str, *, failures: int = 0, num_epochs: int = 0) -> Result:
    return Result(name="ctr", path=run, plan_id="p", num_epochs=num_epochs, failures=failures)


def test_first_result_of_all_epochs_stays(run: str, held: Fence) -> None:
    first, late = result(run, failures=1), result(run, failures=2)
    assert held.finish(0, first.to_json()) is None
    kept = held.finish(0, late.to_json())
    assert kept is not None and Result.from_json(kept) == first
    held.release(None)


def test_late_write_of_an_older_attempt_does_not_hide_the_result(run: str, held: Fence) -> None:
    """`result.json` shows progress, so it is replaced. The result of all epochs is in a file that is never replaced."""
    done = result(run, failures=1)
    held.finish(2, done.to_json())
    save_result(result(run, num_epochs=2))
    assert load_result(run) == done
    held.release(None)


def test_requests_reach_their_attempt_and_no_later_one(run: str, held: Fence) -> None:
    storage = str(Path(run).parent)
    control = Control(elastic=Elastic(min_workers=1, max_workers=4))
    reader = RequestReader(run, held.number, control)
    reader.obey()
    assert send_request(storage, "ctr", target=2) == (1, Request(target=2))
    reader.obey()
    assert control.target == 2 and control.stop_reason is None
    control.resize(3)
    reader.obey()
    assert control.target == 3, "a request was obeyed twice"
    assert send_request(storage, "ctr", target=2) == (1, Request(target=2))
    reader.obey()
    assert control.target == 2, "the same target was requested again"
    control.resize(3)
    assert send_request(storage, "ctr", stop="enough") == (1, Request(target=2, stop="enough"))
    reader.obey()
    assert control.stop_reason == "enough" and control.target == 3
    later = Control()
    RequestReader(run, 2, later).obey()
    assert later.stop_reason is None and load_request(run, 2) == Request()
    held.release(AttemptEnd(how="stopped", why="enough"))
    with pytest.raises(InvalidOption, match=r"run 'ctr' has ended \(stopped: enough\): nothing was changed"):
        send_request(storage, "ctr", stop="again")
    with pytest.raises(InvalidOption, match="there is no run 'ctx' in"):
        send_request(storage, "ctx", stop="again")


def test_a_second_ctrl_c_at_the_end_leaves_the_run_to_the_next_start(
    run: str, held: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AttemptFiles, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            held.release(AttemptEnd(how="failed"))
    again = start_attempt(run, StartPolicy(), print)
    assert isinstance(again, Fence), "this process has the run no more"
    again.release(AttemptEnd(how="finished"))
