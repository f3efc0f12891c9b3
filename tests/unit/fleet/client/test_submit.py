"""Jobs on the local backend, from submission to result.

Submitted twice they are one job, and their logs and results are in storage.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path

import pytest
from tests.waiting import until

import forebay as fb
from forebay.cli.app import main
from forebay.errors import ExitCode, InvalidJobSpec, InvalidOption, RunFailed, SpecChanged, UnderWay
from forebay.events import EpochEnded
from forebay.fleet.client import runner
from forebay.fleet.client.backend import LocalBackend, backend_of
from forebay.fleet.client.job_rows import JobRows
from forebay.fleet.client.submission import How, JobFiles, Standing, Submission, SubmissionEnd
from forebay.fleet.client.submitted_job import SubmittedJob, request_of
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.testing.data.click_log import write_click_log
from forebay.training.job.duration import seconds_of
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, AttemptHeartbeat
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.attempts.stored_request import load_request
from forebay.training.runs.result import Result, save_result
from forebay.training.runs.timeline.cost import GPUS, PRICE
from forebay.training.runs.timeline.timeline import RunStart, StartOrigin, Timeline, save_timeline

ROOT = Path(__file__).parents[4]

JOB = """
name = "{name}"
storage = "{storage}"
[[task]]
name = "first"
command = ["python", "-c", "print('one', flush=True)"]
[[task]]
name = "second"
after = ["first"]
command = {command}
retries = 1
"""


@pytest.fixture
def write_job(tmp_path: Path) -> Callable[..., str]:
    def write(code: str = "print('\\x1b[31mtwo')", name: str = "words") -> str:
        path = tmp_path / "job.toml"
        command = json.dumps(["python", "-c", code])
        path.write_text(JOB.format(name=name, storage=tmp_path / "runs", command=command))
        return str(path)

    return write


class Quiet(LocalBackend):
    """Local backend that runs tasks in this process, on request."""

    def __init__(self) -> None:
        self.begun: list[Submission] = []

    def start(self, submission: Submission) -> None:
        self.begun.append(submission)

    def run(self) -> SubmissionEnd:
        submission = self.begun[-1]
        files = JobFiles(storage=submission.spec.storage, name=submission.spec.name)
        files.start(submission.number)
        end = runner.run_tasks(submission)
        files.end(submission.number, end)
        return end


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Quiet:
    backend = Quiet()
    monkeypatch.setattr("forebay.fleet.client.submit.backend_of", lambda *_: backend)
    return backend


def test_a_folder_that_is_not_there_is_refused_and_nothing_is_recorded(tmp_path: Path) -> None:
    spec = fb.JobSpec(name="words", storage=str(tmp_path / "runs"), task=(fb.fleet.Task(command=("true",)),))
    with pytest.raises(InvalidOption, match="nothing is not a folder. Give the folder with the code"):
        fb.submit(spec, folder=tmp_path / "nothing")
    assert JobFiles(storage=spec.storage, name="words").newest() is None


def test_a_process_that_cannot_be_started_is_no_fault_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = fb.JobSpec(name="words", storage=str(tmp_path / "runs"), task=(fb.fleet.Task(command=("true",)),))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(InvalidOption, match="its process could not be started on this machine .* submit again"):
        fb.submit(spec, folder=tmp_path)
    monkeypatch.undo()
    job = fb.submit(spec, folder=tmp_path)
    job.wait(60)
    assert (job.status().state, job.submission.number) == ("succeeded", 2)


@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_a_job_that_no_process_can_be_given_is_refused_and_not_recorded(tmp_path: Path, backend: str) -> None:
    task = fb.fleet.Task(command=("true", *map(str, range(20_000))))
    spec = fb.JobSpec(name="long", storage=str(tmp_path / "runs"), task=(task,))
    with pytest.raises(InvalidJobSpec, match="can be given 100,000. Put long lists of args into a file"):
        fb.submit(spec, backend, folder=ROOT / "jobs")
    assert JobFiles(storage=spec.storage, name="long").newest() is None


def test_submitted_twice_is_one_job(
    write_job: Callable[..., str], quiet: Quiet, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = fb.submit(write_job())
    assert first.status().state == "starting"
    again = fb.submit(write_job())
    assert quiet.run().how == "succeeded"
    assert fb.submit(write_job()).status().state == "succeeded"
    assert len(quiet.begun) == 1 and again.submission == first.submission
    assert list(first.logs(follow=True)) == ["one", "\x1b[31mtwo"]
    assert first.wait() is None, "commands have no result"
    assert "succeeded" in first._repr_html_()
    with pytest.raises(SpecChanged, match=r"task\[1\].command"):
        fb.submit(write_job("print(3)"))
    capfd.readouterr()
    storage = str(tmp_path / "runs")
    with pytest.raises(SystemExit) as ended:
        main(["logs", "words", "--storage", storage])
    assert ended.value.code == 0
    assert capfd.readouterr().out == "one\n\\x1b[31mtwo\n", "a job steers the terminal"
    with pytest.raises(SystemExit) as ended:
        main(["logs", "words", "-f", "--storage", storage, "--json"])
    *lines, last = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert lines == [{"part": first.submission.id, "line": line} for line in ("one", "\x1b[31mtwo")]
    assert (last["status"]["name"], last["status"]["state"], ended.value.code) == ("words", "succeeded", 0)
    with pytest.raises(SystemExit):
        main(["jobs", "--storage", storage])
    table = capfd.readouterr().out
    assert "words" in table and "succeeded" in table and all(len(line) <= 80 for line in table.splitlines())


def test_another_specification_replaces_one_that_has_ended_and_none_that_runs(
    write_job: Callable[..., str], quiet: Quiet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def job(word: str) -> str:
        return write_job(f"open({str(out)!r}, 'a').write({word!r})")

    first = fb.submit(job("a"))
    for state in ("starting", "running"):
        assert first.status().state == state
        with pytest.raises(UnderWay, match=rf"'words' is {state}.* nothing was changed"):
            fb.submit(job("b"), replace_spec=True)
        assert fb.submit(job("a"), replace_spec=True).submission == first.submission, "the same one is no change"
        JobFiles(storage=first.submission.spec.storage, name="words").start(1)
    quiet.run()
    for word, number in (("a", 1), ("b", 2), ("b", 2), ("a", 3)):
        replaced = fb.submit(job(word), replace_spec=True)
        assert replaced.submission.number == number and word in replaced.submission.spec.task[1].command[2]
        if replaced.status().state == "starting":
            assert quiet.run().how == "succeeded"
    assert out.read_text() == "aba"
    run = AttemptFiles(f"{first.submission.spec.storage}/words.second")
    files = JobFiles(storage=first.submission.spec.storage, name="words")
    files.end(3, SubmissionEnd(how="fenced"))
    claim = create_attempt(run.run, 1)
    assert claim is not None
    with pytest.raises(UnderWay, match="'words' is fenced: attempt 1 trains it"):
        fb.submit(job("c"), replace_spec=True)
    run.end(1, AttemptEnd(how="finished"))
    assert fb.submit(job("c"), replace_spec=True).submission.number == 4


PREPARES = """
import sys
import time
from pathlib import Path
from forebay.data.preparation.progress import tell
from forebay.errors import InvalidOption

def job(folder: str):
    Path(folder, "called").touch()
    tell("clicks: 1,200 rows in 3 files")
    while not Path(folder, "go").exists():
        time.sleep(0.05)
    raise InvalidOption("enough")
"""


def test_the_job_function_is_called_where_the_run_starts_and_shows_what_it_prepares(
    tmp_path: Path, quiet: Quiet, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prepares.py").write_text(PREPARES)
    task = fb.fleet.Task(name="train", run="prepares.py", args={"folder": str(tmp_path)})
    job = fb.submit(fb.JobSpec(name="demo", storage=str(tmp_path / "runs"), task=(task,)), folder=tmp_path)
    assert not (tmp_path / "called").exists(), "submit calls the job function"
    with ThreadPoolExecutor() as pool, chdir(tmp_path):
        end = pool.submit(quiet.run)
        try:
            deadline = time.monotonic() + 120
            while job.status().state != "preparing" and time.monotonic() < deadline and not end.done():
                time.sleep(0.1)
            while job.status().why != "clicks: 1,200 rows in 3 files" and time.monotonic() < deadline:
                time.sleep(0.1)
            status = job.status()
            with pytest.raises(SystemExit):
                main(["jobs", "--storage", str(tmp_path / "runs")])
        finally:
            (tmp_path / "go").touch()
        assert end.result().how == "failed"
    assert (status.state, status.why) == ("preparing", "clicks: 1,200 rows in 3 files")
    assert "demo prepares clicks: 1,200 rows in 3 files" in capfd.readouterr().out
    assert job.status().state == "failed" and not list(tmp_path.glob("runs/**/preparing.json"))


def test_a_job_that_ended_between_two_signs_of_life_shows_its_last_step(
    write_job: Callable[..., str], quiet: Quiet, tmp_path: Path
) -> None:
    job = fb.submit(write_job())
    quiet.run()
    assert job.status().step == 0, "commands have no steps"
    spec = job.submission.spec
    epoch = EpochEnded(epoch=0, step=12, metrics={}, rows=96, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)
    path = str(tmp_path / "runs" / spec.run_name(spec.task[-1]))
    save_result(Result(name="words", path=path, plan_id="", num_epochs=1, epochs=(epoch,)))
    assert job.status().step == 12


@pytest.mark.parametrize("how", ["succeeded", "stopped", "failed"])
def test_a_job_that_has_ended_shows_the_epoch_that_it_trained(
    write_job: Callable[..., str], quiet: Quiet, tmp_path: Path, how: How
) -> None:
    """Its last heartbeat is from before."""
    job = fb.submit(write_job())
    files, run = JobFiles(storage=str(tmp_path / "runs"), name="words"), tmp_path / "runs" / "words.second"
    attempts = AttemptFiles(str(run))
    assert create_attempt(str(run), 1) is not None
    attempts.beat(1, AttemptHeartbeat(number=1, epoch=0, epochs=2, step=4, world_size=1))
    done = [
        EpochEnded(epoch=n, step=12 * n, metrics={}, rows=96, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)
        for n in range(2)
    ]
    save_result(Result(name="words", path=str(run), plan_id="", num_epochs=2, epochs=tuple(done)))
    assert job.status().epoch == 0
    files.end(1, SubmissionEnd(how=how))
    status = job.status()
    assert (status.state, status.epoch, status.epochs, status.step) == (how, 1, 2, 12)


def test_the_table_of_jobs_has_the_cost_of_each_attempt(
    quiet: Quiet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the facts that a fleet gives to its runs. A price that is not known shows as unknown."""
    (tmp_path / "train.py").write_text("def job(): ...")
    storage = str(tmp_path / "runs")
    for name, prices in (("priced", [2.0, 4.0]), ("unpriced", [2.0, None]), ("waiting", [])):
        spec = fb.JobSpec(name=name, storage=storage, task=(fb.fleet.Task(run="train.py"),))
        fb.submit(spec, folder=tmp_path)
        JobFiles(storage=storage, name=name).end(1, SubmissionEnd(how="failed", why="x"))
        starts = [
            RunStart(
                at=0.0,
                attempt=number,
                origin=StartOrigin(config={"job.min_workers": 2, GPUS: 8, **({} if price is None else {PRICE: price})}),
                last_s=1800.0,
            )
            for number, price in enumerate(prices)
        ]
        if starts:
            save_timeline(Timeline(starts=tuple(starts)), f"{storage}/{name}")
    with pytest.raises(SystemExit):
        main(["jobs", "--storage", storage, "--json"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["jobs"]}
    costs = {name: (each["gpu_hours"], each["cost"]) for name, each in found.items()}
    assert costs == {"priced": (16.0, 6.0), "unpriced": (16.0, None), "waiting": (None, None)}
    Path(storage, "priced", "timeline.json").write_text("{")
    with pytest.raises(SystemExit):
        main(["jobs", "--storage", storage])
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[-2:] for line in lines if line.split()}
    assert (rows["priced"], rows["unpriced"]) == (["-", "-"], ["16.0", "-"])
    assert max(map(len, lines)) <= 80


TRAINS = """
import os, pathlib
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.result import Result, save_result

pathlib.Path({marker!r}).open("a").write("x")
name, storage = os.environ["FOREBAY_RUN_NAME"], os.environ["FOREBAY_RUN_STORAGE"]
save_result(Result(name=name, path=storage + "/" + name, plan_id="", num_epochs=2, stopped={stopped!r}))
files = AttemptFiles(storage + "/" + name)
assert files.newest() or create_attempt(files.run, 1)
files.end(1, AttemptEnd(how={how!r}, why={stopped!r} or ""))
"""


@pytest.mark.parametrize(
    ("stopped", "asked", "how", "ran"),
    [
        (None, None, "succeeded", True),
        ("no better", None, "succeeded", True),
        ("enough", "attempt", "stopped", False),
        ("enough", "awaited", "stopped", False),
    ],
)
def test_a_stop_is_recorded_as_one_and_later_tasks_do_not_begin(
    quiet: Quiet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopped: str | None,
    asked: str | None,
    how: str,
    ran: bool,
) -> None:
    """Also before the first step: a request to a job without an attempt. A run's own early end is a success."""
    ended = "stopped" if asked else "finished"
    text = TRAINS.format(marker=str(tmp_path / "trained"), stopped=stopped, how=ended)
    trains = [sys.executable, "-c", text]
    words = runner._words
    monkeypatch.setattr(runner, "_words", lambda made, each: trains if each.task.run else words(made, each))
    (tmp_path / "train.py").write_text("def job(): ...")
    after = fb.fleet.Task(name="after", after=("train",), command=("touch", str(tmp_path / "after")))
    spec = fb.JobSpec(
        name="demo", storage=str(tmp_path / "runs"), task=(fb.fleet.Task(name="train", run="train.py"), after)
    )
    job = fb.submit(spec, folder=tmp_path)
    run = AttemptFiles(f"{tmp_path}/runs/demo.train")
    if asked == "attempt":
        assert create_attempt(run.run, 1) is not None
    if asked is not None:
        job.stop("enough")
    end = quiet.run()
    assert (end.how, (tmp_path / "after").exists()) == (how, ran)
    assert (tmp_path / "trained").exists() == (asked != "awaited")
    assert (job.status().state, job.status().why) == (how, "" if stopped is None else stopped)
    again = fb.submit(spec, folder=tmp_path)
    assert again.submission.number == (1 if how == "succeeded" else 2)
    if asked == "awaited":
        assert load_request(run.run, 1).stop is None, "the next submission obeys the stop of this one"


@pytest.mark.parametrize(("how", "code"), [("succeeded", 0), ("stopped", 0), ("fenced", 75), ("failed", 1)])
def test_exit_code_of_the_runner_is_that_of_the_end(
    write_job: Callable[..., str], quiet: Quiet, monkeypatch: pytest.MonkeyPatch, how: How, code: int
) -> None:
    """SLURM and Ray show a job that its user stopped as completed, not as failed."""
    job = fb.submit(write_job())
    monkeypatch.setenv(runner.VARIABLE, quiet.begun[-1].to_json())
    monkeypatch.setattr(runner, "run_tasks", lambda _: SubmissionEnd(how=how, why="enough"))
    monkeypatch.chdir(Path.cwd())
    assert runner.main() == code
    assert job.status().state == how


def test_commands_obey_no_request(write_job: Callable[..., str], quiet: Quiet) -> None:
    job = fb.submit(write_job())
    with pytest.raises(InvalidOption, match=r"commands, which obey no request.*stop\(now=True\)"):
        job.stop()


@pytest.mark.parametrize(
    ("most", "target", "says"),
    [
        (4, 9, "9 workers .* 'ctr', whose job allows 1 to 4"),
        (4, 0, "0 workers"),
        (1, 2, "fixed"),
    ],
)
def test_a_target_out_of_bounds_is_refused_in_storage_too(tmp_path: Path, most: int, target: int, says: str) -> None:
    run, storage = str(tmp_path / "ctr"), str(tmp_path)
    create_attempt(run, 1)
    assert request_of(storage, "ctr", target=9)[0] == 1, "bounds that are not recorded yet are the driver's matter"
    origin = StartOrigin(config={"job.min_workers": 1, "job.max_workers": most})
    save_timeline(Timeline(starts=(RunStart(at=0.0, attempt=1, origin=origin),)), run)
    with pytest.raises(InvalidOption, match=says):
        request_of(storage, "ctr", target=target)
    assert load_request(run, 1).target == 9, "nothing was changed"
    assert request_of(storage, "ctr", stop="enough")[1].stop == "enough"
    AttemptFiles(run).end(1, AttemptEnd(how="finished"))
    with pytest.raises(InvalidOption, match="has ended"):
        request_of(storage, "ctr", target=target)
    create_attempt(run, 2)
    assert request_of(storage, "ctr", target=9)[0] == 2, "the bounds of another attempt do not count"


def test_submit_ends_with_the_line_to_type_next(
    write_job: Callable[..., str],
    quiet: Quiet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def last_line() -> str:
        with pytest.raises(SystemExit):
            main(["submit", write_job()])
        return capsys.readouterr().out.splitlines()[-1]

    storage = str(tmp_path / "runs")
    monkeypatch.delenv("FOREBAY_STORAGE", raising=False)
    assert last_line() == f"next: forebay logs words --follow --storage {storage}"
    monkeypatch.setenv("FOREBAY_STORAGE", f"{storage}/")
    assert last_line() == "next: forebay logs words --follow"
    quiet.run()
    with pytest.raises(SystemExit) as ended:
        main(last_line().split()[2:])
    assert ended.value.code == 0 and "words: succeeded" in capsys.readouterr().out


@pytest.mark.parametrize("ended", [3, ExitCode.MACHINE])
def test_failed_job_is_tried_again_and_continues_when_it_is_submitted_again(
    write_job: Callable[..., str], quiet: Quiet, tmp_path: Path, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PAUSES_S", (0.25,))
    marker = tmp_path / "tries"
    code = f"import pathlib, sys; p = pathlib.Path({str(marker)!r}); p.open('a').write('x'); sys.exit({ended})"
    job = fb.submit(write_job(code))
    end = quiet.run()
    assert end == SubmissionEnd(how="failed", why=f"the task 'second' ended with code {ended}", code=ended)
    assert marker.read_text() == "xx", "retries = 1"
    assert ("Next try in 0.25 s." in "".join(job.logs())) == (ended == ExitCode.MACHINE)
    with pytest.raises(RunFailed, match=rf"job 'words': failed: the task 'second' ended with code {ended}"):
        job.wait()
    assert fb.submit(write_job(code)).submission.number == 2


@pytest.mark.parametrize("limit", ["", '[scheduling]\nfinish_within = "2h"\n'])
def test_a_limit_that_only_a_fleet_keeps_is_named(
    write_job: Callable[..., str], quiet: Quiet, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    path = Path(write_job())
    path.write_text(path.read_text() + limit)
    fb.submit(str(path))
    assert quiet.begun
    assert ("scheduling.finish_within holds in a fleet: nothing ends job 'words' here" in caplog.text) == bool(limit)


@pytest.mark.parametrize("why", ["forebay stop", None])
def test_a_stop_of_its_user_holds_for_a_job_that_is_then_asked_to_end(
    write_job: Callable[..., str], quiet: Quiet, monkeypatch: pytest.MonkeyPatch, why: str | None
) -> None:
    monkeypatch.setattr(runner, "_run", lambda *_: ExitCode.TERMINATED)
    monkeypatch.setattr(runner, "_stop_reason", lambda *_: why)
    fb.submit(write_job())
    stopped = SubmissionEnd(how="stopped", why="forebay stop")
    assert runner.run_tasks(quiet.begun[-1]) == (stopped if why == "forebay stop" else runner.ASKED)


@pytest.mark.parametrize("why", ["forebay stop", None])
def test_the_end_of_a_task_is_read_again_where_storage_does_not_answer(
    write_job: Callable[..., str], quiet: Quiet, monkeypatch: pytest.MonkeyPatch, why: str | None
) -> None:
    answers = iter([OSError("away"), TimeoutError("away"), why, why])

    def stop_reason(*_: object) -> str | None:
        if isinstance(answer := next(answers), OSError):
            raise answer
        return answer

    monkeypatch.setattr(runner, "PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(runner, "_stop_reason", stop_reason)
    job = fb.submit(write_job())
    end = SubmissionEnd(how="succeeded") if why is None else SubmissionEnd(how="stopped", why=why)
    assert runner.run_tasks(quiet.begun[-1]) == end
    assert "How the task 'first' ended cannot be read (away). Next try in 0.01 s." in "".join(job.logs())


def test_a_job_that_waits_for_its_next_try_ends_when_it_is_asked(
    write_job: Callable[..., str], quiet: Quiet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PAUSES_S", (600.0,))
    marker = tmp_path / "tries"
    code = f"import pathlib, sys; pathlib.Path({str(marker)!r}).open('a').write('x'); sys.exit({ExitCode.MACHINE})"
    job = fb.submit(write_job(code))

    def ask() -> None:
        until(lambda: "Next try in 600 s." in "".join(job.logs()))
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    assert runner.run_tasks(quiet.begun[-1]) == runner.ASKED
    asking.join()
    assert marker.read_text() == "x"


@pytest.mark.parametrize(("code", "tries"), [(1, 2), (2, 1), (3, 1), (74, 2), (78, 1), (137, 2)])
def test_a_job_file_is_tried_again_unless_its_code_is_final(
    write_job: Callable[..., str], quiet: Quiet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tries: int
) -> None:
    path, marker = Path(write_job()), tmp_path / "tries"
    (tmp_path / "ctr.py").write_text("def job(): ...\n")
    path.write_text(re.sub(r"(?s)command = .*?\n.*command = .*?\n", 'run = "ctr.py"\n', path.read_text()))
    words = [sys.executable, "-c", f"import sys; open({str(marker)!r}, 'a').write('x'); sys.exit({code})"]
    monkeypatch.setattr(runner, "_words", lambda *_: words)
    fb.submit(str(path))
    assert quiet.run() == SubmissionEnd(how="failed", why=f"the task 'first' ended with code {code}", code=code)
    assert marker.read_text() == "x" * tries


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("exit 3", "setup 'exit 3' ended with code 3"),
        ("sleep 600", "setup 'sleep 600' did not end within scheduling.start_within"),
    ],
)
def test_a_setup_that_fails_or_hangs_ends_the_job(
    write_job: Callable[..., str], quiet: Quiet, monkeypatch: pytest.MonkeyPatch, line: str, why: str
) -> None:
    path = Path(write_job())
    path.write_text(f"{path.read_text()}\n[launch]\nsetup = [{json.dumps(line)}]\n")
    spec = fb.JobSpec.load(path)
    # The shortest time that a file may give is 10 s. A busy machine starts a shell in more than 0.2.
    if line.startswith("sleep"):
        object.__setattr__(spec.scheduling, "start_within", 0.2)
    fb.submit(spec)
    assert quiet.run() == SubmissionEnd(how="failed", why=why, code=3 if line == "exit 3" else None)


def test_a_setup_that_writes_without_an_end_fills_no_memory(
    write_job: Callable[..., str], quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: list[int] = []
    monkeypatch.setattr(runner.LogTee, "append", lambda _, line: longest.append(len(line)))
    path = Path(write_job())
    path.write_text(f"{path.read_text()}\n[launch]\nsetup = ['head -c 1000000 /dev/zero']\n")
    fb.submit(str(path))
    assert quiet.run().how == "succeeded"
    assert max(longest) == runner.LONGEST_LINE and sum(longest) > 1_000_000


def test_fenced_task_is_not_tried_again(write_job: Callable[..., str], quiet: Quiet) -> None:
    job = fb.submit(write_job("import sys; sys.exit(75)"))
    assert quiet.run().how == "fenced"
    assert list(job.logs()) == ["one"]


def test_job_of_another_machine_says_nothing_of_its_end(write_job: Callable[..., str], quiet: Quiet) -> None:
    job = fb.submit(write_job())
    files = JobFiles(storage=job.submission.spec.storage, name="words")
    files.start(1)
    assert job.status().state == "running"
    claim = json.loads(Path(files.folder, "submissions", "000001.started.json").read_text())
    for facts, state, number in (({"kernel": "another"}, "unreachable", 1), ({"started": 1}, "lost", 2)):
        Path(files.folder, "submissions", "000001.started.json").write_text(json.dumps(claim | facts))
        assert job.status().state == state
        assert fb.submit(write_job()).submission.number == number, "a lost job is started again, a silent one may run"


def test_a_process_that_dies_before_it_says_so_is_lost(
    write_job: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as dies:
        dies.setattr(sys, "executable", shutil.which("false"))
        job = fb.submit(write_job())
    until_lost = time.monotonic() + 60
    while (state := job.status().state) != "lost":
        assert state == "starting" and time.monotonic() < until_lost
        time.sleep(0.05)
    files, rows = JobFiles(storage=str(tmp_path / "runs"), name="words"), JobRows([str(tmp_path / "runs")])
    assert [each.state for each in rows.read().rows] == ["lost"]
    listed = files.listed()
    assert listed is not None and listed.has_ended, "nobody looks at it again"
    assert [each.state for each in rows.read().rows] == ["lost"]
    files.start(1)
    assert files.ended(1) is None and job.status().state == "running", "it was late, and not lost"


def test_what_a_job_waits_for_is_shown(
    write_job: Callable[..., str],
    quiet: Quiet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "SLURM: PENDING (Resources), job 17"
    monkeypatch.setattr(quiet, "standing", lambda _: Standing(is_waiting=True, why=why))
    monkeypatch.setattr("forebay.fleet.client.submitted_job.backend_of", lambda *_: quiet)
    for words, says in (
        (["submit", write_job()], why),
        (["jobs", "-s", str(tmp_path / "runs")], f"words waits: {why}"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert says in capsys.readouterr().out.splitlines()


def test_a_submission_whose_submitter_was_killed_is_lost(write_job: Callable[..., str], quiet: Quiet) -> None:
    job = fb.submit(write_job())
    assert job.status().state == "starting"
    path = Path(JobFiles(storage=job.submission.spec.storage, name="words").uri(1))
    os.utime(path, (time.time() - 61, time.time() - 61))
    assert job.status().state == "lost"
    assert fb.submit(write_job()).submission.number == 2


@pytest.mark.parametrize("rule", ['after = "20d"', 'then = "wait"', "after = 30.25", 'after = "366d"'])
def test_the_time_of_a_takeover_reaches_the_run(write_job: Callable[..., str], tmp_path: Path, rule: str) -> None:
    path = Path(write_job())
    (tmp_path / "ctr.py").write_text("def job(): ...\n")
    text = re.sub(r"(?s)command = .*?\n.*command = .*?\n", 'run = "ctr.py"\n', path.read_text())
    spec = fb.JobSpec.load(_written(path, f"{text}\n[scheduling.unreachable]\n{rule}\n"))
    made = Submission(spec=spec, number=1, backend="local", token="")
    attempt = PlacedAttempt(spec=spec, task=spec.task[0], number=1, sku="")
    *_, option, given = runner._words(made, attempt)
    wanted = runner.FOREVER_S if "wait" in rule else spec.scheduling.unreachable.after
    assert (option, seconds_of(given)) == ("--takeover-after", wanted)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_silent_job_starts_at_another_place(write_job: Callable[..., str], quiet: Quiet) -> None:
    job = fb.submit(write_job())
    files = JobFiles(storage=job.submission.spec.storage, name="words")
    files.start(1)
    started = Path(files.folder, "submissions", "000001.started.json")
    started.write_text(json.dumps(json.loads(started.read_text()) | {"kernel": "another"}))
    quiet.address = "elsewhere"
    assert fb.submit(write_job()).submission.address == "elsewhere"


def test_job_that_its_place_did_not_take_is_started_there(
    write_job: Callable[..., str], quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.name = "ray"
    monkeypatch.setattr(quiet, "is_alive", lambda _: None)
    first, again = fb.submit(write_job()), fb.submit(write_job())
    assert first.status().state == "unreachable"
    assert [each.id for each in quiet.begun] == [again.submission.id] * 2


@pytest.mark.parametrize(
    ("is_placed", "says"),
    [(True, "words was placed and goes on.\nforebay logs words --follow --storage"), (False, "not placed")],
)
def test_ctrl_c_says_whether_the_job_was_placed(
    write_job: Callable[..., str],
    quiet: Quiet,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_placed: bool,
    says: str,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*((quiet, "start") if is_placed else (JobFiles, "create")), interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["submit", write_job()])
    assert ended.value.code == 130
    assert says in capsys.readouterr().err


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="backend='k9s' is unknown"):
        backend_of("k9s")
    with pytest.raises(InvalidOption, match="address='head' is not the address of a dashboard"):
        backend_of("ray", "head")
    with pytest.raises(InvalidOption, match="no job 'x' was submitted with the storage"):
        SubmittedJob(str(tmp_path), "x").status()


@pytest.mark.variation("a process of its own; the tests above run tasks in theirs")
def test_local_backend_trains_and_stops_by_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forebay stop` leaves a request in storage.

    The same job, submitted again, continues to its end.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_click_log(tmp_path / "clicks", rows=40_000)
    args: dict[str, str | int] = {
        "epochs": 2,
        "data": str(tmp_path / "clicks"),
        "global_batch": 256,
        "checkpoint_every": 5,
    }
    train = fb.fleet.Task(name="train", run="train_ctr.py", args=args | {"cache": str(tmp_path / "cache")})
    spec = fb.JobSpec(name="demo", storage=str(tmp_path / "runs"), task=(train,))
    job = fb.submit(spec, folder=ROOT / "jobs")
    while job.status().attempt == 0:
        time.sleep(0.2)
    job.stop("enough")
    stopped = job.wait(600)
    assert stopped is not None and stopped.stopped == "enough" and job.status().state == "stopped"
    result = fb.submit(spec, folder=ROOT / "jobs").wait(600)
    assert result is not None and result.is_finished
    assert job.status().attempt == 2
    assert any("finished" in line for line in job.logs())
