"""Ray's job submission as a backend: whom its client shows a token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import forebay as fb
from forebay.errors import InvalidOption
from forebay.fleet.client.backend import backend_of
from forebay.fleet.client.job_rows import JobRows
from forebay.fleet.client.submission import JobFiles, Submission
from forebay.fleet.client.submitted_job import SubmittedJob

ASK = """
import sys
from pathlib import Path
from forebay.fleet.client.submitted_job import SubmittedJob
file, storage = Path(sys.argv[1]), sys.argv[2]
for mode in sys.argv[3:]:
    file.chmod(int(mode, 8))
    print(SubmittedJob(storage, "words").status().state)
"""


@contextmanager
def dashboard(answers: Mapping[str, object] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Address of a server, and the header `Authorization` of each of its requests.

    It answers JSON by path, and else 404.
    """
    shown: list[str] = []
    known = answers or {}

    class HeaderRecorder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            if self.path not in known:
                self.send_error(404)
                return
            content = json.dumps(known[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), HeaderRecorder) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", shown
        finally:
            server.shutdown()
            thread.join()


def submitted(storage: Path, address: str) -> Path:
    """File of a submission to the Ray cluster at `address`."""
    spec = fb.JobSpec(name="words", storage=str(storage), task=(fb.fleet.Task(command=("true",)),))
    JobFiles(storage=str(storage), name="words").create(
        Submission(spec=spec, number=1, backend="ray", token="", address=address)
    )
    return storage / "words" / "submissions" / "000001.json"


TOKEN = "5" * 64


def states(file: Path, storage: Path, *modes: str) -> list[str]:
    """States of the job in a process that has a token, with each mode of the submission's file."""
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    words = [sys.executable, "-c", ASK, str(file), str(storage), *modes]
    return subprocess.run(
        words, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()


def test_an_address_that_others_may_have_written_is_shown_no_token(tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    with dashboard() as (address, shown):
        file = submitted(storage, address)
        assert states(file, storage, "666") == ["unreachable"] and shown == []
        assert states(file, storage, "600") == ["unreachable"] and set(shown) == {f"Bearer {TOKEN}"}


def test_the_user_says_which_cluster_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    submitted(tmp_path / "runs", "http://10.9.8.7:8265").chmod(0o666)
    status = SubmittedJob(str(tmp_path / "runs"), "words").status()
    assert status.state == "unreachable" and "set RAY_API_SERVER_ADDRESS=http://10.9.8.7:8265" in status.why
    with pytest.raises(InvalidOption, match="job 'words' cannot be ended here"):
        SubmittedJob(str(tmp_path / "runs"), "words").stop(now=True)
    monkeypatch.setenv("RAY_ADDRESS", "10.9.8.8:6379")
    submission = SubmittedJob(str(tmp_path / "runs"), "words").submission
    other = backend_of("ray", "http://10.9.8.7:8265")
    assert other.is_alive(submission) is None, "the other cluster would say that it has no such job"
    with pytest.raises(InvalidOption, match="RAY_ADDRESS=10.9.8.8:6379 lets Ray's client ask that cluster instead of"):
        other.start(submission)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://10.9.8.7:8265")
    assert not backend_of("ray", "http://10.9.8.7:8265", False).standing(submission).why


VERSION = {"ray_version": "2.60.0", "version": "4", "ray_commit": "x"}
FAILED = {
    "type": "SUBMISSION",
    "status": "FAILED",
    "entrypoint": "python",
    "message": "Job entrypoint command failed with exit code 1, last available logs (...):\nstep 1\nno room left\n",
}


def test_a_lost_job_has_the_words_of_its_cluster(tmp_path: Path) -> None:
    answers = {"/api/version": VERSION}
    with dashboard(answers) as (address, shown):
        submitted(tmp_path, address).chmod(0o600)
        job = SubmittedJob(str(tmp_path), "words")
        submission, backend = job.submission, backend_of("ray", address)
        assert (backend.is_alive(submission), backend.has_ended(submission)) == (False, False), "it may come to know it"
        assert job.status().why == ""
        path = f"/api/jobs/{submission.id}"
        answers[path] = FAILED
        assert (backend.is_alive(submission), backend.has_ended(submission)) == (False, True)
        assert job.status().why == "Ray: Job entrypoint command failed with exit code 1: no room left"
        asked = len(shown)
        for _ in range(3):
            (row,) = JobRows([str(tmp_path)]).read().rows
            assert (row.state, row.why) == ("lost", "Ray: Job entrypoint command failed with exit code 1: no room left")
            asked, before = len(shown), asked
        assert asked == before, "it was noted once"
        answers[path] = {**FAILED, "status": "RUNNING"}
        assert (backend.is_alive(submission), backend.has_ended(submission)) == (True, False)


def test_a_job_whose_folder_was_removed_is_another_one_to_ray(tmp_path: Path) -> None:
    answers: dict[str, object] = {"/api/version": VERSION}
    with dashboard(answers) as (address, _):
        submitted(tmp_path, address)
        backend = backend_of("ray", address)
        before = replace(SubmittedJob(str(tmp_path), "words").submission, token="a1")
        answers[f"/api/jobs/{before.id}-a1"] = FAILED
        assert (backend.is_alive(before), backend.has_ended(before)) == (False, True)
        assert (backend.is_alive(replace(before, token="b2")), backend.has_ended(before)) == (False, False)
