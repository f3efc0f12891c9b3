"""A job from its submission to its end on a real SLURM cluster, without training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.slurm.cluster import until
from tests.slurm.conftest import Jobs

from forebay.cli.app import main
from forebay.errors import InvalidOption
from forebay.fleet.client.submit import submit
from forebay.fleet.client.submitted_job import SubmittedJob

COMMAND = """
name = "{name}"
storage = "{storage}"
[[task]]
command = {command}
[launch]
env = {{GREETING = "it's $HOME; `ls` \\"x\\""}}
[launch.slurm]
time = "10m"
{options}
"""


def write(jobs: Jobs, name: str, code: str, options: str = "") -> Path:
    folder = jobs.folder / f"words-{name}"
    folder.mkdir()
    command = json.dumps(["python", "-c", code])
    text = COMMAND.format(name=name, storage=jobs.storage, command=command, options=options)
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


def test_submitted_twice_runs_once_and_its_words_meet_no_shell(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(jobs, "words", "import os, time; print(os.environ['GREETING'], flush=True); time.sleep(2)")
    job = submit(path, "slurm")
    assert submit(path, "slurm").status().state in ("starting", "running")
    until(lambda: job.status().is_over, "the end", 120)
    assert (status := job.status()).state == "succeeded", status
    assert list(job.logs()) == ['it\'s $HOME; `ls` "x"']
    shown = jobs.cluster.call("squeue", "--noheader", "--states=all", "--format=%j %T").split()
    assert [each for each in shown if each.startswith("fb-words-")] == [shown[0]], "one job of SLURM"
    with pytest.raises(SystemExit, match="0"):
        main(["submit", str(path), "--backend", "slurm", "--dry-run"])
    assert "#SBATCH --signal=B:TERM@90\n" in capfd.readouterr().out


@pytest.mark.variation
def test_a_waiting_job_says_why_and_can_be_stopped(jobs: Jobs) -> None:
    jobs.cluster.call("scontrol", "update", "NodeName=n1,n2", "State=DRAIN", "Reason=test")
    try:
        job = submit(write(jobs, "waits", "print(1)"), "slurm")
        until(lambda: job.status().why.startswith("SLURM: PENDING ("), f"a reason: {job.status()}", 60)
        assert job.status().state == "starting"
        job.stop("not now")
        assert (job.status().state, job.status().why) == ("stopped", "not now")
        until(lambda: jobs.cluster.call("squeue", "--noheader") == "", "an empty queue", 30)
    finally:
        jobs.cluster.call("scontrol", "update", "NodeName=n1,n2", "State=RESUME")


@pytest.mark.variation
def test_a_job_whose_ray_does_not_start_says_why(jobs: Jobs) -> None:
    path = write(jobs, "no-ray", "print(1)")
    path.write_text(path.read_text().replace("env = {", 'env = {TMPDIR = "/proc", '))
    job = submit(path, "slurm")
    until(lambda: job.status().is_over, "the end", 120)
    assert (status := job.status()).state == "lost"
    assert "SLURM: FAILED (NonZeroExitCode), job " in status.why
    assert "Ray has no folder ([Errno 2] No such file or directory" in status.why, status.why


@pytest.mark.variation
def test_what_slurm_refuses_is_said_in_its_words(jobs: Jobs) -> None:
    path = write(jobs, "refused", "print(1)", 'partition = "nowhere"')
    with pytest.raises(InvalidOption, match=r"SLURM refuses the job: .*nvalid partition.*\[launch\.slurm\]"):
        submit(path, "slurm")
    assert SubmittedJob(jobs.storage, "refused").status().state == "lost"
    path.write_text(path.read_text().replace('partition = "nowhere"', ""))
    job = submit(path, "slurm", replace_spec=True)
    until(lambda: job.status().is_over, "the end", 120)
    assert (job.status().state, job.submission.number) == ("succeeded", 2)
