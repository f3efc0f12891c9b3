"""Audit of a controller: who had what done, where and when.

A line is stored before the request that it tells of: what changed in a cluster has a line, whenever the controller
ends.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from forebay.runtime.formatting import printable
from forebay.storage.atomic import make_folder, write_atomically, write_failed
from forebay.storage.credentials import redact, redacted
from forebay.storage.filesystem import below, resolve

LONGEST_TEXT = 2000
Action = Literal[
    "accepted", "refused", "replaced", "started", "scaled", "stopped", "deleted", "taken over", "succeeded", "failed"
]
IN_CLUSTER: tuple[Action, ...] = ("started", "deleted")
"""Actions that change something in a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One action on a job.

    `object` is the RayJob, `by` vouches for the submitter, and `says` is what the submission says of itself.
    """

    action: Action
    job: str = ""
    storage: str = ""
    submitter: str = ""
    by: str = ""
    says: str = ""
    submission: int = 0
    run: str = ""
    attempt: int = 0
    cluster: str = ""
    object: str = ""
    why: str = ""


NoteLine: TypeAlias = Callable[[AuditLine], None]
"""Stores a line, or raises `WriteFailed`: then its action is not carried out."""


class AuditLog:
    """Lines of one controller, in `folder` by day.

    On a file system they are appended to `<day>/<controller>.jsonl`. An object store appends nothing: each line is an
    object `<day>/<controller>/000001.json` that is never written again. The same request made again has no further
    line.

    Args:
        folder: Where the lines are kept.
        log: Called with each line, as JSON.
        now: Time in seconds since 1970.
    """

    def __init__(self, folder: str, log: Callable[[str], None], now: Callable[[], float]) -> None:
        self._folder, self._log, self._now = resolve(folder), log, now
        self.controller = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._number = 0
        self._noted: set[AuditLine] = set()

    def note(self, line: AuditLine) -> None:
        """Store a line, unless it is stored. Raises `WriteFailed`."""
        same = AuditLine(action=line.action, cluster=line.cluster, object=line.object)
        if line.action in IN_CLUSTER and same in self._noted:
            return
        at = datetime.fromtimestamp(self._now(), UTC)
        facts = {"at": at.isoformat(timespec="milliseconds"), "controller": self.controller, **asdict(line)}
        text = json.dumps({name: _safe(value) for name, value in facts.items() if value not in ("", 0)})
        try:
            self._store(f"{at:%Y-%m-%d}", f"{text}\n".encode())
        except OSError as error:
            raise write_failed("a line of the audit", self._folder.uri, error) from redacted(error)
        if line.action in IN_CLUSTER:
            self._noted.add(same)
        self._log(text)

    def _store(self, day: str, content: bytes) -> None:
        if not self._folder.is_local:
            self._number += 1
            # The controller's name is its own: no other process writes this object.
            write_atomically(below(self._folder.uri, f"{day}/{self.controller}/{self._number:06d}.json"), content)
            return
        path = Path(self._folder.path) / day / f"{self.controller}.jsonl"
        make_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError(f"{path} took a part of a line")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _safe(value: object) -> object:
    if not isinstance(value, str):
        return value
    return printable(redact(value).replace("\n", " | ").replace("\t", " "))[:LONGEST_TEXT]


def no_audit(_: AuditLine) -> None:
    """Keep no line."""
