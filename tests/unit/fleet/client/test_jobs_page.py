"""Page of all jobs: order, links, and texts that others wrote."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

import forebay as fb
from forebay.cli.app import main
from forebay.fleet.client import job_rows, submitted_job
from forebay.fleet.client.backend import LocalBackend
from forebay.fleet.client.job_rows import BAD_ENDS, JobRow, JobRows
from forebay.fleet.client.jobs_page import ServedJobs, jobs_page, served_link, served_run
from forebay.fleet.client.submission import FLEET, AcceptedBy, JobFiles, Standing, Submission, SubmissionEnd
from forebay.fleet.client.submitted_job import JobStatus
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.training.checkpoint.files.claim import Claim
from forebay.training.runs.attempts.files import AttemptFiles, AttemptHeartbeat
from forebay.training.runs.run_folder import RunFolder

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[31m\u202e&amp;"


def row(name: str, state: str, changed_at: float = 1000.0, **facts: object) -> JobRow:
    status = JobStatus(name=name, state="running", backend=FLEET, address="", submission=1, epochs=3, step=70)
    return JobRow(name=name, storage="/runs", state=state, changed_at=changed_at, **{"status": status, **facts})  # type: ignore[arg-type]


def names(page: str) -> list[str]:
    return re.findall(r'class="name">(?:<[^>]*>)?([^<]*)<', page)


def write_job(storage: str, name: str, how: str | None = None, *, log: str = "") -> JobFiles:
    spec = fb.JobSpec(name=name, storage=storage, task=(fb.fleet.Task(run="train.py"),))
    submission = Submission(spec=spec, number=1, backend=FLEET, token="0a", says="anna@laptop")
    files = JobFiles(storage=storage, name=name)
    assert files.create(submission)
    files.accept(1, AcceptedBy(submitter="recsys"))
    attempts = AttemptFiles(RunFolder.below(storage, name))
    claim = Claim.of_this_process(1, cluster="west/h100/spot/4")
    assert attempts.create(claim)
    attempts.beat(1, AttemptHeartbeat(number=1, epoch=1, epochs=3, step=70, world_size=4))
    files.start(1)
    for number in (1, 2):
        attempt = PlacedAttempt(spec=spec, task=spec.task[0], number=number, sku="")
        path = Path(files.attempt_log_uri(attempt.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"2026-11-27T03:00:00Z {line}\n" for line in f"old\n{log}{number}".splitlines()))
        os.utime(path, (number, number))
    if how is not None:
        files.end(1, SubmissionEnd(how=how, why="its words"))  # type: ignore[arg-type]
    return files


def test_what_needs_a_person_comes_first_and_the_newest_before_the_others() -> None:
    now = 30 * 86_400.0
    rows = [
        row("done", "succeeded", now),
        row("waits", "starting", now),
        row("old", "failed", now - 8 * 86_400),
        row("runs", "running", now - 50),
        row("prepares", "preparing", now - 40),
        row("silent", "unreachable", now - 20 * 86_400),
        *(row(state, state, now - number) for number, state in enumerate(BAD_ENDS)),
    ]
    random.Random(0).shuffle(rows)
    page = jobs_page(rows, now)
    assert names(page) == [*BAD_ENDS, "silent", "prepares", "runs", "waits", "done", "old"]
    assert [int(count) for count in re.findall(r"<dd>(\d+)</dd>", page)] == [5, 2, 1, 2]


def test_texts_of_others_are_escaped_everywhere() -> None:
    status = JobStatus(
        name=EVIL, state="running", backend=EVIL, address="", submission=1, host=EVIL, why=EVIL, submitter=EVIL
    )
    evil = JobRow(name=EVIL, storage=EVIL, state=EVIL, status=status, why=EVIL, runs=(EVIL,), last_lines=(EVIL, EVIL))
    pages = [
        jobs_page([evil, *(row(EVIL, state, why=EVIL, last_lines=(EVIL,)) for state in ("running", "failed"))], 0.0),
        jobs_page([evil], 0.0, link=served_link),
    ]
    for page in pages:
        body = page.partition("<body>")[2].rpartition("<script>")[0]
        assert "<script" not in body
        assert "<img" not in body
        assert "\x1b" not in page
        assert "\u202e" not in page.replace("&", "")
        assert "onerror=alert(1)>" not in body
    assert "default-src 'none'" in pages[0]


def test_a_server_shows_runs_of_its_jobs_and_no_other_folder() -> None:
    rows = [row("ctr", "running", runs=("s3://lake/runs/ctr?region=eu", "/runs/a b"))]
    for run in rows[0].runs:
        assert served_run(served_link(run), rows) == run
    for path in ("/run/", "/run//etc", "/run/%2Fetc%2Fpasswd", "/run/..%2F", "/etc", "", "/run/s3://lake/other"):
        assert served_run(path, rows) is None


def test_rows_are_what_storage_says(tmp_path: Path) -> None:
    storage = str(tmp_path)
    write_job(storage, "runs", log="step 70, 4 ranks\nattempt ")
    write_job(storage, "broke", "failed", log="Traceback\nOSError: attempt ")
    write_job(storage, "done", "succeeded")
    (tmp_path / "damaged" / "submissions").mkdir(parents=True)
    (tmp_path / "damaged" / "submissions" / "000001.json").write_text("{")
    (tmp_path / "data").mkdir()
    reader = JobRows([storage], lambda run: (f"west: no room for {run}",))
    found = {each.name: each for each in reader.read().rows}
    assert {name: each.state for name, each in found.items()} == {
        "runs": "running",
        "broke": "failed",
        "done": "succeeded",
        "damaged": "unreadable",
    }
    assert found["runs"].last_lines == ("old", "step 70, 4 ranks", "attempt 2")
    assert found["runs"].why == "west: no room for runs"
    assert (found["broke"].why, found["done"].last_lines) == ("its words", ())
    assert "is not a submission" in found["damaged"].why
    (tmp_path / "done" / "report.html").touch()
    page = jobs_page(list(found.values()), time.time())
    assert f'href="{(tmp_path / "done" / "report.html").as_uri()}"' in page
    assert page.count("href=") == 1
    for text in ("epoch 2 of 3, step 70", "west/h100/spot/4", "recsys", "OSError: attempt 2"):
        assert text in page


def test_all_live_jobs_and_the_newest_ended_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A listing alone tells about the others, however many there are."""
    times = random.Random(0).sample(range(1000, 2000), 12)
    for number, at in enumerate(times):
        files = write_job(str(tmp_path), f"job-{number:02d}", "failed" if number % 3 else None)
        for path in Path(files.uri(1)).parent.iterdir():
            os.utime(path, (at, at))
    ended = sorted((number for number in range(12) if number % 3), key=lambda number: -times[number])
    read: list[str] = []
    newest = JobFiles.newest_stored
    monkeypatch.setattr(JobFiles, "newest_stored", lambda files: read.append(files.name) or newest(files))
    for most in (0, 3, 8, 100, None):
        read.clear()
        found = JobRows([str(tmp_path)], most_ended=most).read()
        wanted = sorted(f"job-{number:02d}" for number in [0, 3, 6, 9, *ended[:most]])
        assert [each.name for each in found.rows] == wanted == sorted(set(read))
        assert found.num_older == 12 - len(wanted)
    assert "8 jobs that ended earlier are left out" in jobs_page([], 0.0, num_older=8)
    monkeypatch.setattr(job_rows, "MOST_ENDED", 1)
    for words, shown, number in (
        ([], "7 jobs that ended earlier are left out: forebay jobs --all.", 5),
        (["--all"], "job-11", 12),
    ):
        with pytest.raises(SystemExit):
            main(["jobs", "--storage", str(tmp_path), *words])
        text = capsys.readouterr().out
        assert shown in text and text.count("job-") == number


def test_an_ended_job_is_read_again_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_job(str(tmp_path), "done", "failed")
    reader = JobRows([str(tmp_path)])
    (first,) = reader.read().rows
    monkeypatch.setattr(JobFiles, "newest_stored", lambda _: pytest.fail("it was read again"))
    assert reader.read().rows == [first]
    monkeypatch.undo()
    files.end(1, SubmissionEnd(how="stopped", why="by hand"))
    os.utime(files.uri(1), (time.time() + 5,) * 2)
    (second,) = reader.read().rows
    assert (second.state, second.why) == ("stopped", "by hand")


class CountingBackend(LocalBackend):
    """A cluster that does not know the job, or recorded its end. Counts the questions."""

    address = "a"

    def __init__(self, name: str, *, has_record: bool) -> None:
        self.name, self.has_record, self.asked = name, has_record, 0

    def is_alive(self, submission: Submission) -> bool | None:
        self.asked += 1
        return False

    def has_ended(self, submission: Submission) -> bool:
        return self.has_record

    def standing(self, submission: Submission) -> Standing:
        self.asked += 1
        return Standing(why="its words")


@pytest.mark.parametrize(
    ("name", "case", "is_noted"),
    [
        ("ray", "recorded", True),
        ("ray", "unknown", False),
        ("ray", "forgotten", True),
        ("ray", "beats", False),
        ("slurm", "unknown", False),
        ("slurm", "forgotten", True),
        ("slurm", "another's", False),
        ("local", "recorded", True),
    ],
)
def test_a_lost_job_is_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, case: str, is_noted: bool
) -> None:
    """By a backend with a record of its end, or an hour after its last heartbeat. Others are asked at each call."""
    storage = str(tmp_path)
    spec = fb.JobSpec(name="ctr", storage=storage, task=(fb.fleet.Task(run="train.py"),))
    files = JobFiles(storage=storage, name="ctr")
    assert files.create(Submission(spec=spec, number=1, backend=name, token="", address="a"))
    attempts = AttemptFiles(RunFolder.below(storage, "ctr"))
    assert attempts.create(Claim.of_this_process(1))
    if case not in ("unknown", "recorded"):
        for path in (tmp_path / "ctr").rglob("*.json"):
            os.utime(path, (time.time() - 2 * submitted_job.FORGOTTEN_S,) * 2)
    if case == "beats":
        attempts.beat(1, AttemptHeartbeat(number=1))
    Path(files.uri(1)).chmod(0o666 if case == "another's" else 0o600)
    backend = CountingBackend(name, has_record=case == "recorded")
    monkeypatch.setattr(submitted_job, "backend_of", lambda *_: backend)
    for _ in range(4):  # as often as the command is called
        assert [(each.state, each.why) for each in JobRows([storage]).read().rows] == [("lost", "its words")]
    assert backend.asked == (2 if is_noted else 8), "is it alive, and where does it stand"
    assert (files.ended(1) is not None) == is_noted
    files.start(1)
    assert files.ended(1) is None, "a process that starts late removes the note"


def test_a_note_that_may_not_be_written_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fb.JobSpec(name="ctr", storage=str(tmp_path), task=(fb.fleet.Task(run="train.py"),))
    assert JobFiles(storage=str(tmp_path), name="ctr").create(
        Submission(spec=spec, number=1, backend="ray", token="", address="a")
    )
    monkeypatch.setattr(submitted_job, "backend_of", lambda *_: CountingBackend("ray", has_record=True))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(JobFiles, "_write", refuse)
    assert [each.state for each in JobRows([str(tmp_path)]).read().rows] == ["lost"]


def test_a_job_takes_some_hundred_bytes_of_the_page() -> None:
    rows = [row(f"job-{number}", "failed" if number % 10 == 0 else "succeeded", number) for number in range(1000)]
    page = jobs_page(rows, 0.0)
    assert len(page) < 600_000
    assert page.count("<li") - page.count("aria-hidden") == 1000


def test_a_silent_storage_is_a_page_that_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: JobRows) -> list[JobRow]:
        raise OSError("no answer <b>")

    monkeypatch.setattr(JobRows, "read", read)
    served = ServedJobs(JobRows(["/runs"]))
    page = served.page()
    assert page.is_error
    assert "no answer &lt;b&gt;" in page.text
    assert "location.reload" in page.text
    assert served.other("/run/x") is None
