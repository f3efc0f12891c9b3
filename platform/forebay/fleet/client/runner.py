"""Runner of a submission: `python -m forebay.fleet.client.runner`.

Tasks run one after the other, each in a process of its own. What they write goes to this process's output and into the
job's storage.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from forebay.errors import ExitCode, ForebayError
from forebay.fleet.client.stored_log import StoredLog
from forebay.fleet.client.submission import LONGEST_TEXT, SLURM, VARIABLE, JobFiles, Submission, SubmissionEnd
from forebay.fleet.code import fetch_code
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.spec.job_spec import Task, ordered
from forebay.runtime.foreign_code import begin
from forebay.runtime.formatting import printable
from forebay.runtime.termination import Termination
from forebay.storage.atomic import NO_ROOM, find_small
from forebay.storage.credentials import redact
from forebay.storage.filesystem import resolve_source
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.attempts.stored_request import awaited_stop
from forebay.training.runs.result import load_result
from forebay.training.runs.run_folder import RunFolder

FINAL_CODES = frozenset({ExitCode.FENCED, ExitCode.TERMINATED})
"""Exit codes that are not tried again here, beside `Task.final_codes`."""
STORAGE_CODES = frozenset({ExitCode.MACHINE, ExitCode.UNUSABLE_STORAGE})
PAUSES_S = (10.0, 20.0, 40.0, 60.0)
"""Pauses after `ExitCode.MACHINE`, the last one for all that follow. All tries may be over before a share is back."""
ASKED = SubmissionEnd(how="stopped", why="asked to end (SIGTERM)")
"""End of a process that is started again, and continues. It is not recorded."""
LATE_CODE = -256
"""Code of a command that did not end in its time. No process has it."""
LONGEST_LINE = 1 << 16
"""Bytes of a line of a log. A longer one is cut into several: a command may write a gigabyte without a line break."""
REQUEUED_S = 60.0
"""Silence after which a requeued job takes over from its attempt on a lost node: four heartbeats."""
FOREVER_S = 10 * 365 * 86_400


class LogTee(StoredLog):
    """Copies lines to this process's output, too.

    `last_line` is of the newest command.
    """

    last_line = b""

    def append(self, line: bytes) -> None:
        self.last_line = line.strip() or self.last_line
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
        super().append(line)


def run_tasks(submission: Submission) -> SubmissionEnd:
    """Run all tasks of a submission in this folder.

    Returns how the last one ended, or `ASKED`.
    """
    log_uri = JobFiles(storage=submission.spec.storage, name=submission.spec.name).log_uri(submission)
    # A job that SLURM requeues starts the same submission again.
    tee = LogTee(log_uri, find_small(resolve_source(log_uri)) or b"")
    try:
        return _set_up(submission, tee) or _run_all(submission, tee)
    finally:
        tee.flush()


def _set_up(submission: Submission, tee: LogTee) -> SubmissionEnd | None:
    """Run the lines of `launch.setup`. Returns the end of a job whose setup fails."""
    for line in submission.spec.launch.setup:
        code = _run(["sh", "-c", line], {}, tee, limit_s=submission.spec.scheduling.start_within)
        if code == ExitCode.TERMINATED:
            return ASKED
        if code == LATE_CODE:
            return SubmissionEnd(how="failed", why=f"setup {line!r} did not end within scheduling.start_within")
        if code != 0:
            return SubmissionEnd(how="failed", why=f"setup {line!r} ended with code {code}", code=code)
    return None


def _run_all(submission: Submission, tee: LogTee) -> SubmissionEnd:
    for task in ordered(submission.spec.task):
        if (why := _awaited_stop(submission, task)) is not None:
            return SubmissionEnd(how="stopped", why=why)
        code = _run_task(submission, task, tee)
        if code == ExitCode.TERMINATED:
            return _asked_or_stopped(submission, task)
        if code == ExitCode.FENCED:
            return SubmissionEnd(how="fenced", why=f"another attempt has taken over the task {task.name!r}")
        if code != 0:
            why = f"the task {task.name!r} ended with code {code}"
            if code in STORAGE_CODES and tee.last_line:  # the log may have no room for it
                why += f": {printable(tee.last_line.decode(errors='replace'))[:LONGEST_TEXT]}"
            return SubmissionEnd(how="failed", why=why, code=code)
        if (end := _end_after(submission, task, tee)) is not None:
            return end
    return SubmissionEnd(how="succeeded")


def _end_after(submission: Submission, task: Task, tee: LogTee) -> SubmissionEnd | None:
    """End of a submission whose task has returned. None if the next task follows."""
    why = None
    for pause_s in (*PAUSES_S, 0.0):
        try:
            why = _stop_reason(submission, task)
            break
        except OSError as error:  # what is trained is not lost with one read
            if not pause_s:
                raise
            if _is_ended_in(pause_s, tee, f"How the task {task.name!r} ended cannot be read ({redact(str(error))})."):
                return ASKED
    return None if why is None else SubmissionEnd(how="stopped", why=why)


def _asked_or_stopped(submission: Submission, task: Task) -> SubmissionEnd:
    """End of a task that got SIGTERM: it continues, unless its user has stopped it before."""
    why = None
    with suppress(OSError, ForebayError):  # storage does not answer: the next start asks again
        why = _stop_reason(submission, task)
    return ASKED if why is None else SubmissionEnd(how="stopped", why=why)


def _awaited_stop(submission: Submission, task: Task) -> str | None:
    """Return the reason to stop of a task that has not begun, or None."""
    return None if task.run is None else awaited_stop(_run_folder(submission, task))


def _stop_reason(submission: Submission, task: Task) -> str | None:
    """Return why somebody has stopped a task that has returned, or None.

    A run that its own rule ended early, such as a patience, has succeeded: the next task follows.
    """
    if task.run is None:
        return None
    files = AttemptFiles(run := _run_folder(submission, task))
    if (newest := files.newest()) is None:  # a store without claims does not know who ended it
        result = load_result(run)
        return None if result is None else result.stopped
    end = files.ended(newest.number)
    return end.why if end is not None and end.how == "stopped" else None


def _run_folder(submission: Submission, task: Task) -> RunFolder:
    return RunFolder.below(submission.spec.storage, submission.spec.run_name(task))


def _run_task(submission: Submission, task: Task, tee: LogTee) -> int:
    """Exit code of a task, after its retries."""
    attempt = PlacedAttempt(spec=submission.spec, task=task, number=submission.number, sku="")
    environment = attempt.environment
    environment.pop("FOREBAY_RUN_ATTEMPT")  # the run claims its own attempts
    if submission.backend == "local":
        # All workers share this machine, and its user works on it. `forebay scale` adds some.
        environment["FOREBAY_RUN_START"] = str(task.workers.min)
    code = 0
    for tries in range(task.retries + 1):
        failed = f"A machine or its storage failed (code {ExitCode.MACHINE})."
        if code == ExitCode.MACHINE and _is_ended_in(PAUSES_S[:tries][-1], tee, failed):
            return ExitCode.TERMINATED
        code = _run(_words(submission, attempt), environment, tee)
        if code == 0 or code in FINAL_CODES | task.final_codes:
            break
    return code


def _is_ended_in(pause_s: float, tee: LogTee, why: str) -> bool:
    """Wait, and say why. Returns whether this process is asked to end meanwhile."""
    ended = threading.Event()
    with Termination(ended.set) as term:
        tee.append(f"{why} Next try in {pause_s:g} s.\n".encode())
        tee.flush()
        ended.wait(pause_s)
    return term.is_asked


def _words(submission: Submission, attempt: PlacedAttempt) -> list[str]:
    if attempt.task.run is None:
        return list(attempt.words)
    unreachable = submission.spec.scheduling.unreachable
    silent_s = unreachable.after if unreachable.then == "fence" else FOREVER_S
    if submission.backend == SLURM:
        # SLURM starts a job again after the end of its processes, or of its node: no other process is expected.
        silent_s = min(silent_s, REQUEUED_S) if unreachable.then == "fence" else silent_s
    driver = ["--driver", "local"] if submission.backend == "local" else []
    # Not by `g`, which writes 20 days as 1.728e+06.
    words = [*attempt.words[1:], *driver, "--takeover-after", f"{silent_s:f}s"]
    return [sys.executable, "-m", "forebay", *words]


def _run(words: list[str], environment: Mapping[str, str], tee: LogTee, *, limit_s: float | None = None) -> int:
    """Run a command and return its exit code.

    It is `LATE_CODE` after `limit_s`, and its processes are ended then. It is `ExitCode.TERMINATED` after a SIGTERM to
    this process, which the command gets, too.
    """
    is_late = threading.Event()
    tee.last_line = b""
    with subprocess.Popen(  # noqa: S603 - the user's own command, as words
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        # An end of the runner ends the whole group of a task, so only a command with a limit has its own.
        start_new_session=limit_s is not None,
    ) as process:

        def end_late() -> None:
            is_late.set()
            with suppress(ProcessLookupError):  # it ended in this moment
                os.killpg(process.pid, signal.SIGKILL)

        limit = threading.Timer(limit_s or 0.0, end_late)
        limit.daemon = True  # an interrupted runner does not wait for it
        if limit_s is not None:
            begin(limit)
        assert process.stdout is not None
        with Termination(process.terminate) as term:
            while line := process.stdout.readline(LONGEST_LINE):
                tee.append(line)
            code = process.wait()
        limit.cancel()
        return ExitCode.TERMINATED if term.is_asked else LATE_CODE if is_late.is_set() else code


def main() -> int:
    """Run the submission of `FOREBAY_SUBMISSION`.

    Returns the exit code: 0, also for one that its user stopped, 75 for a fenced one, 143 for one that was asked to end
    and continues, else 1.
    """
    submission = Submission.from_json(os.environ.pop(VARIABLE))
    files = JobFiles(storage=submission.spec.storage, name=submission.spec.name)
    os.environ.update(submission.spec.launch.env)
    try:
        end = _run_here(submission, files)
    except (ForebayError, OSError) as error:
        end = SubmissionEnd(how="failed", why=redact(f"{type(error).__name__}: {error}"), code=_code_of(error))
    if end is ASKED:
        return ExitCode.TERMINATED
    try:
        files.end(submission.number, end)
    except OSError as error:
        why = f"{end.how}{': ' + end.why if end.why else ''}"
        print(f"The end of the job could not be recorded ({redact(str(error))}): {why}", file=sys.stderr)
    return {"succeeded": 0, "stopped": 0, "fenced": ExitCode.FENCED}.get(end.how, ExitCode.FAILED)


def _run_here(submission: Submission, files: JobFiles) -> SubmissionEnd:
    """Run the tasks in the folder of their code."""
    files.start(submission.number)
    if submission.code is None:
        return run_tasks(submission)
    with tempfile.TemporaryDirectory(prefix="forebay-code-") as folder:
        fetch_code(submission.spec.storage, submission.code, folder)
        os.chdir(folder)
        try:
            return run_tasks(submission)
        finally:
            os.chdir(Path.home())


def _code_of(error: ForebayError | OSError) -> int | None:
    if isinstance(error, ForebayError):
        return error.exit_status
    return ExitCode.MACHINE if error.errno in NO_ROOM else None


if __name__ == "__main__":
    sys.exit(main())
