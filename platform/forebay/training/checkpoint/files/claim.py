"""Claim of a process on a run, and its file.

A claim makes the process the run's next attempt. It says which checkpoints of earlier attempts may be restored, and
holds facts by which the end of the process is known.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from forebay.errors import Fenced, InvalidOption
from forebay.runtime.declared_types import require_types
from forebay.storage.atomic import read_small
from forebay.storage.filesystem import Location, resolve_source
from forebay.storage.globs import children
from forebay.storage.json_file import read_json_content
from forebay.training.checkpoint.files.names import checkpoint_names

ATTEMPTS = "attempts"
"""Folder of the claims in the folder of a run."""
REMEDY = "Mount the share or put the folder back, and run the same name again to continue."
"""Remedy where the own claim is missing."""
GONE_S = 60.0
"""Time for which the own claim may be missing, in seconds. Then the attempt ends.

Another start may train the run already. A share that is mounted again within this time is no failure.
"""
_CLAIM_FORM = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One attempt at a run.

    `token` is unique, so that a process recognizes its own.

    `restorable` names the complete checkpoints of earlier attempts, as they were found just before the claim. What
    those attempts write later is not restored. None for the first attempt, and in claims of earlier releases.

    `key` and `cluster` are set by the submitter, if there is one. `kernel`, `namespace`, `pid` and `started` name the
    process: its end is known at once to processes of the same kernel. `time` is for people: no decision compares the
    clocks of two machines.
    """

    number: int
    token: str
    host: str
    kernel: str = ""
    namespace: str = ""
    pid: int = 0
    started: int = 0
    key: str = ""
    cluster: str = ""
    time: float = 0.0
    restorable: tuple[str, ...] | None = None

    @classmethod
    def of_this_process(
        cls,
        number: int,
        *,
        key: str = "",
        cluster: str = "",
        restorable: tuple[str, ...] | None = None,
        pid: int | None = None,
    ) -> Claim:
        """Claim on attempt `number` by this process, or by its child `pid`."""
        pid = os.getpid() if pid is None else pid
        return cls(
            number=number,
            token=secrets.token_hex(8),
            host=socket.gethostname(),
            kernel=_kernel(),
            namespace=_pid_namespace(),
            pid=pid,
            started=_started(pid) or 0,
            key=key,
            cluster=cluster,
            time=time.time(),
            restorable=restorable,
        )

    def to_json(self) -> bytes:
        """Content of the file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes, uri: str) -> Claim:
        """Decode a file.

        Raises `InvalidOption` for anything that `to_json` did not write.
        """
        try:
            facts = json.loads(content)
            if facts.get("restorable") is not None:
                facts["restorable"] = checkpoint_names(facts["restorable"])
            return require_types(cls(**facts))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidOption(
                f"{uri} is not a claim of a Forebay run ({error}). Copy the run's folder again, or remove the file if "
                "no process trains the run, or give the run another name.",
                uri=uri,
            ) from error

    @property
    def is_of_this_kernel(self) -> bool:
        """Whether the process ran under this machine's kernel.

        In any container, since the last boot.
        """
        return self.kernel != "" and self.kernel == _kernel()

    def is_dead(self) -> bool | None:
        """Whether the process has ended.

        None if that cannot be known here.
        """
        if not self.is_of_this_kernel or not self.pid or self.namespace != _pid_namespace():
            return None
        return _started(self.pid) != self.started

    def is_suspended(self) -> bool:
        """Whether the process is suspended (SIGSTOP) on this machine."""
        return self.is_dead() is False and _stat(self.pid)[0] == "T"

    @property
    def title(self) -> str:
        """Name of the process for messages."""
        return f"attempt {self.number} (process {self.pid} on {self.host})" if self.pid else f"attempt {self.number}"


class ClaimGone(OSError):
    """The own claim of an attempt is missing or unreadable."""


def is_gone_too_long(since: float) -> bool:
    """Whether a claim that is missing `since` then ends its attempt."""
    return time.monotonic() - since > GONE_S


def check_own(uri: str, number: int, token: str) -> None:
    """Raise unless the file `uri` is the claim with `token`.

    Raises `Fenced` for another's, `ClaimGone` if it is missing or damaged, and `OSError`.
    """
    location = resolve_source(uri)
    try:
        found = json.loads(read_small(location))["token"]
    except (FileNotFoundError, NotADirectoryError):
        raise ClaimGone(
            f"{uri} is not there: the folder of the run was removed or renamed, or its share is not mounted"
        ) from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ClaimGone(f"{uri} is damaged") from None
    if found != token:
        raise fenced_error(uri, number)


def fenced_error(claim_uri: str, attempt: int) -> Fenced:
    """Error for `attempt`, which a later one has fenced.

    The later attempt has claimed the run with the file `claim_uri`.
    """
    return Fenced(
        f"a later attempt has taken over this run ({claim_uri}): attempt {attempt} ends and keeps nothing more. It "
        "sent no heartbeat for too long, was replaced, or its folder was removed. The later attempt continues; nothing "
        "has to be started.",
        attempt=attempt,
        claim=claim_uri,
    )


def newest_number(attempts: Location) -> int | None:
    """Number of the newest claim in the folder `attempts`.

    None without one. Raises `OSError`.
    """
    try:
        names = [_CLAIM_FORM.fullmatch(info.base_name) for info in children(attempts.fs, attempts.path)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return max((int(name[1]) for name in names if name), default=None)


def read_claim(attempts: Location, number: int) -> Claim | None:
    """Return the claim on attempt `number`, or None.

    Raises `OSError`, and `InvalidOption` for a file that is not a claim.
    """
    file = attempts.child(claim_name(number))
    try:
        return Claim.from_json(read_json_content(file), file.uri)
    except (FileNotFoundError, NotADirectoryError):
        return None


def claim_name(number: int) -> str:
    """Return the file name of the claim on attempt `number`."""
    return f"{number:06d}.json"


@cache
def _kernel() -> str:
    """Identity of the running kernel since its last boot.

    Empty where the system does not tell.
    """
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if sys.platform == "linux" and path.exists() else ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Start time of a process in ticks since boot.

    It tells apart two processes with one number. None if the process has ended.
    """
    fields = _stat(pid)
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _stat(pid: int) -> list[str]:
    """State and further facts of a process, from Linux.

    The state of one that has ended is X.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]
