"""The log of a SLURM job gives the reason of its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import InvalidOption
from forebay.fleet.client.slurm_backend import SlurmBackend
from forebay.fleet.client.submission import Submission
from forebay.fleet.slurm import commands
from forebay.fleet.slurm.commands import QueuedJob


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\ntwo\n", "two"),
        (b"\xff no text\n\n", "\ufffd no text"),
        (b"x" * 9000 + b"\nlast", "last"),
        (b"x" * 9000, "x" * 4096),
    ],
)
def test_last_line_of_a_log(content: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_bytes(content)
    assert QueuedJob(job="7", state="FAILED", folder=str(tmp_path)).last_line() == line


@pytest.mark.parametrize("case", ["missing", "pipe", "folder", "unknown folder", "of another user"])
def test_what_is_no_log_of_this_user_is_not_read(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "slurm-7.out"
    if case == "pipe":
        os.mkfifo(path)
    elif case == "folder":
        path.mkdir()
    elif case != "missing":
        path.write_text("words")
    if case == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    folder = "" if case == "unknown folder" else str(tmp_path)
    assert QueuedJob(job="7", state="FAILED", folder=folder).last_line() == ""


def test_jobs_of_others_hide_none(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "8|RUNNING|None|/tmp/two\nlines|fb-ctr-2\n"
    said = f"7|FAILED|NonZeroExitCode|/home/a|b|fb-ctr-1\n{broken}9|PENDING|Resources|/c|\n"
    monkeypatch.setattr(commands, "ask", lambda _: said)
    found = commands.jobs_named("ctr")
    assert found is not None
    assert [(job.job, job.state, job.reason, job.folder, job.comment) for job in found] == [
        ("7", "FAILED", "NonZeroExitCode", "/home/a|b", "fb-ctr-1"),
        ("9", "PENDING", "Resources", "/c", ""),
    ]
    monkeypatch.setattr(commands, "ask", lambda _: "7|CANCELLED by 1000|/home/a|fb-ctr-1\n")
    (job,) = commands.earlier_jobs("ctr")
    assert job == QueuedJob(job="7", state="CANCELLED by 1000", folder="/home/a", comment="fb-ctr-1")
    assert job.has_ended


def test_a_job_that_was_cancelled_long_ago_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the accounting still knows it."""
    task = fb.fleet.Task(command=("true",))
    spec = fb.JobSpec(name="ctr", storage="/shared/runs", task=(task,))
    submission = Submission(spec=spec, number=1, backend="slurm", token="", address="west")

    def ask(words: list[str]) -> str:
        said = {"scontrol": "ClusterName = west\n", "sacct": f"7|CANCELLED by 1000|/home/a|{submission.id}\n"}
        return said.get(words[0], "")

    monkeypatch.setattr(commands, "ask", ask)
    assert SlurmBackend("west").standing(submission).why == "SLURM: CANCELLED by 1000, job 7"


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("sbatch: error: invalid partition specified: gpus", "Correct .launch.slurm. of the job file"),
        ("sbatch: fatal: Could not establish a configuration source", "SLURM gives no answer: .* `scontrol ping`"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller", "SLURM gives no answer"),
    ],
)
def test_a_silent_controller_is_no_fault_of_the_job_file(said: str, fault: str) -> None:
    with pytest.raises(InvalidOption, match=fault):
        commands.tell(["sh", "-c", f"echo '{said}' >&2; exit 1"])
