"""Submitted jobs on full disks: exit codes, numbers of tries, and what `forebay jobs` shows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
from tests.soak import mounts

import forebay as fb
from forebay.cli.app import main
from forebay.errors import ExitCode, WriteFailed
from forebay.fleet.client import runner
from forebay.fleet.client.job_rows import JobRows
from forebay.fleet.client.submission import VARIABLE, JobFiles, Submission
from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.ray_cluster import local_start
from forebay.storage.atomic import LEAST_BYTES

NOT_PERMITTED = 77
MOUNT = Path("/mnt")
"""A short path: sockets of Ray lie below it."""
FILL = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        print(f"StorageFull: {error}", flush=True)
open(sys.argv[2], "a").write("x")
sys.exit(int(sys.argv[3]))
"""


@pytest.mark.parametrize("case", ["ends", "no_room", "ray"])
def test_on_a_full_disk(case: str, tmp_path: Path) -> None:
    """In a process that may mount a small one."""
    words = [sys.executable, "-m", "tests.unit.fleet.client.test_full_disk", case, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[4])
    if done.returncode == NOT_PERMITTED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def run_job(folder: Path, code: int, *, is_full: bool = False) -> SubmittedJob:
    """Run a job that fills its storage and ends with `code`. Returns it.

    `is_full`: its storage has had no room since it was submitted.
    """
    storage = str(folder / "disk")
    command = (sys.executable, "-c", FILL, f"{storage}/filler", str(folder / "tries"), str(code))
    spec = fb.JobSpec(name="words", storage=storage, task=(fb.fleet.Task(command=command, retries=1),))
    submission = Submission(spec=spec, number=1, backend="local", token="")
    files = JobFiles(storage=storage, name="words")
    assert files.create(submission)
    if is_full:
        fill(folder / "disk" / "other")
    else:
        files.launch(1, os.getpid())
    os.environ[VARIABLE] = submission.to_json()
    runner.PAUSES_S = (0.1,)
    assert runner.main() == ExitCode.FAILED
    return SubmittedJob(storage, "words")


def ends(folder: Path) -> None:
    """The end is recorded in the room of the records of the start: one try for shared storage, two for a machine."""
    for code, tries in ((ExitCode.UNUSABLE_STORAGE, "x"), (ExitCode.MACHINE, "xx")):
        mounts.mount_tmpfs(folder / "disk", 1 << 20)
        job = run_job(folder, code)
        status = job.status()
        assert (status.state, status.code) == ("failed", code)
        assert status.why.startswith(f"the task 'main' ended with code {code}: StorageFull: [Errno 28]"), status.why
        assert (folder / "tries").read_text() == tries
        (row,) = JobRows([job.submission.spec.storage]).read().rows
        assert row.why == status.why
        assert main_says(["jobs", "--storage", job.submission.spec.storage], "words failed: the task 'main' ended with")
        (folder / "tries").unlink()
        mounts.unmount_below(folder)


def no_room(folder: Path) -> None:
    """Nothing can be recorded, and `forebay jobs` names the full disk."""
    mounts.mount_tmpfs(folder / "disk", 4 * LEAST_BYTES)
    job = run_job(folder, 0, is_full=True)
    assert not (folder / "tries").exists(), "nothing begins without a record"
    first = Path(JobFiles(storage=str(folder / "disk"), name="words").uri(1))
    os.utime(first, (first.stat().st_mtime - 3600,) * 2)
    status = job.status()
    assert (status.state, status.why) == ("lost", f"{folder}/disk has 0 bytes free: make room there")
    assert main_says(["jobs", "--storage", str(folder / "disk")], "words is lost: ")
    (folder / "disk" / "other").unlink()
    assert job.status().why == ""


def ray(_: Path) -> None:
    """Ray itself waits for a minute, and names no disk."""
    mounts.mount_tmpfs(MOUNT, LEAST_BYTES // 2)
    os.environ["RAY_TMPDIR"] = str(MOUNT)
    with pytest.raises(WriteFailed, match=r"its folder RAY_TMPDIR='.*' cannot be written \(.*No space left") as full:
        local_start._check_folder()
    assert full.value.exit_status == ExitCode.MACHINE
    mounts.unmount_below(MOUNT)
    local_start._check_folder()


def fill(path: Path) -> None:
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass


def main_says(words: list[str], text: str) -> bool:
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        main(words)
    return text in " ".join(out.getvalue().split())


if __name__ == "__main__":
    mounts.make_private()
    if problem := mounts.problem():
        print(problem)
        sys.exit(NOT_PERMITTED)
    {"ends": ends, "no_room": no_room, "ray": ray}[sys.argv[1]](Path(sys.argv[2]))
