"""Commands of SLURM, and what they say."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import InvalidOption
from forebay.storage.atomic import open_regular

ANSWER_S = 30.0
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REVOKED", "TIMEOUT"}
)
"""States of a job that does not run again. A requeued one is `PENDING`."""
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING"})
_QUEUE_FORM = "%i|%T|%r|%Z|%k"
_HISTORY_FORM = "JobID,State,WorkDir,Comment"
_TAIL = 4096
_UNREACHABLE = re.compile(
    "unable to contact slurm controller|could not establish a configuration source|timed out|connection refused"
    "|zero bytes were transmitted",
    re.IGNORECASE,
)
"""Words of SLURM's commands about a controller that they do not reach (22.05)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as SLURM shows it. `comment` is the submission's id, `folder` is where it runs."""

    job: str
    state: str
    reason: str = ""
    folder: str = ""
    comment: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it does not run again. The accounting says `CANCELLED by 1000`."""
        return self.state.partition(" ")[0] in ENDED

    @property
    def text(self) -> str:
        """State for people, such as `PENDING (Resources), job 17`."""
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"SLURM: {self.state}{reason}, job {self.job}"

    def last_line(self) -> str:
        """Return the last line of its log, empty where this user has none here.

        What ended before it recorded anything has left its reason there: Ray that did not start, a missing Python.
        """
        try:
            with open_regular(Path(self.folder) / f"slurm-{self.job}.out") as file:
                found = os.fstat(file.fileno())
                if not self.folder or found.st_uid != os.geteuid():  # anyone may name a folder
                    return ""
                file.seek(max(0, found.st_size - _TAIL))
                lines = file.read(_TAIL).decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def require_command(name: str, error: OSError) -> InvalidOption:
    """Return the error of a command that is not there."""
    return InvalidOption(
        f"{name} cannot be run here ({error.strerror}): it belongs to SLURM. Submit on a login node of the cluster, "
        "load its module, or put its folder into PATH.",
        command=name,
    )


def tell(words: Sequence[str], text: str = "") -> str:
    """Run a command with `text` as its input. Returns its output.

    Raises `InvalidOption` with what SLURM said.
    """
    try:
        done = _run(words, text)
    except OSError as error:
        raise require_command(words[0], error) from error
    except subprocess.TimeoutExpired as error:
        raise InvalidOption(
            f"{words[0]} gave no answer within {ANSWER_S:g} s. Check the cluster with `scontrol ping`, and submit "
            "again: nothing runs twice.",
            command=words[0],
        ) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        if _UNREACHABLE.search(said):
            raise InvalidOption(
                f"SLURM gives no answer: {said}. Check the cluster with `scontrol ping`, and submit again: nothing "
                "runs twice.",
                command=words[0],
                said=said,
            )
        raise InvalidOption(
            f"SLURM refuses the job: {said}. Correct [launch.slurm] of the job file (`sinfo` lists partitions, "
            "`sacctmgr show associations` accounts), and submit again.",
            command=words[0],
            said=said,
        )
    return done.stdout


def ask(words: Sequence[str]) -> str | None:
    """Return a command's output, or None without an answer."""
    try:
        done = _run(words, "")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def jobs_named(name: str) -> tuple[QueuedJob, ...] | None:
    """Return the jobs of a name that SLURM still shows, oldest first.

    None if it gives no answer. Ended jobs leave after `MinJobAge`, 5 minutes by default.
    """
    found = ask(["squeue", "--noheader", "--states=all", "--sort=i", f"--name={name}", f"--format={_QUEUE_FORM}"])
    return None if found is None else tuple(_jobs(found, ("job", "state", "reason")))


def earlier_jobs(name: str) -> tuple[QueuedJob, ...]:
    """Return the jobs of a name in the accounting of the last 30 days.

    None of them where a site has no accounting.
    """
    words = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days", f"--name={name}"]
    found = ask([*words, f"--format={_HISTORY_FORM}"]) or ""
    return tuple(_jobs(found, ("job", "state")))


def cluster_name() -> str:
    """Return the cluster's name, or an empty text without an answer."""
    lines = (ask(["scontrol", "show", "config"]) or "").splitlines()
    named = [value.strip() for key, _, value in (line.partition("=") for line in lines) if key.strip() == "ClusterName"]
    return named[0] if named else ""


def _run(words: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - words of Forebay, never a shell line
        words, input=text, capture_output=True, text=True, check=False, timeout=ANSWER_S
    )


def _jobs(text: str, names: Sequence[str]) -> Iterator[QueuedJob]:
    """Yield a job per line, of fields with these names, its folder and its comment.

    Any user names a folder: it may have the sign between fields. One with a line break has only a part of its line, and
    is left out.
    """
    for line in text.split("\n"):
        *fields, rest = line.strip().split("|", len(names))
        folder, divider, comment = rest.rpartition("|")
        if len(fields) == len(names) and divider:
            yield QueuedJob(**dict(zip(names, fields, strict=True)), folder=folder, comment=comment)
