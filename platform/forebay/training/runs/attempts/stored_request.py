"""Request to a run in its storage.

For callers without a route to its driver. It is made to one attempt: a later attempt of the same name does not obey it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from operator import index
from typing import Any

from forebay.errors import InvalidOption
from forebay.events import Request
from forebay.runtime.declared_types import require_types
from forebay.storage.json_file import to_json
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.run_folder import RunFolder

FILE_NAME = "request.json"
VERSION = 1


def load_request(run: str | RunFolder, attempt: int) -> Request:
    """Return the stored request to `attempt`.

    Empty if there is none. Raises `OSError`, and `InvalidOption` for a file that is not a request.
    """
    return load_counted(run, attempt)[1]


def load_counted(run: str | RunFolder, attempt: int) -> tuple[int, Request]:
    """Return the stored request to `attempt`, after how often a target was requested.

    The same target may be requested again. Raises as `load_request`.
    """
    found = RunFolder.at(run).load(FILE_NAME, _stored, VERSION)
    return found[1:] if found is not None and found[0] == attempt else (0, Request())


def _stored(facts: dict[str, Any]) -> tuple[int, int, Request]:
    # A request of an earlier release has no count.
    return facts["attempt"], index(facts.get("targets", 0)), require_types(Request(**facts["request"]))


def send_request(
    storage: str, name: str, *, stop: str | None = None, target: int | None = None, is_awaited: bool = False
) -> tuple[int, Request]:
    """Add to the stored request to a run.

    It is made to the newest attempt of run `name` below `storage`, or with `is_awaited` to the next one, if none is
    running. Returns the number of the attempt, and all that is requested of it. Raises `InvalidOption` if no attempt is
    running there, and `WriteFailed`.
    """
    run = RunFolder.below(storage, name)
    files = AttemptFiles(run)
    newest = files.newest()
    end = None if newest is None else files.ended(newest.number)
    if newest is None and not is_awaited:
        from forebay.training.runs.found_runs import no_run  # noqa: PLC0415 - for an error only

        raise no_run(storage, name)
    if end is not None and not is_awaited:
        raise InvalidOption(
            f"run {name!r} has ended ({end.how}{': ' + end.why if end.why else ''}): nothing was changed.", name=name
        )
    number = 1 if newest is None else newest.number + (end is not None)
    targets, request = load_counted(run, number)
    request = replace(request, stop=request.stop if stop is None else stop)
    request = replace(request, target=request.target if target is None else target)
    targets += target is not None
    facts = {"version": VERSION, "attempt": number, "targets": targets, "request": asdict(request)}
    run.save(FILE_NAME, to_json(facts), f"the request to run {name!r}")
    return number, request


def awaited_stop(run: str | RunFolder) -> str | None:
    """Return the reason to stop that was given to the next attempt of a run.

    None if there is none, or while an attempt is running. Raises `OSError`.
    """
    files = AttemptFiles(run)
    newest = files.newest()
    if newest is not None and files.ended(newest.number) is None:
        return None
    return load_request(run, 1 if newest is None else newest.number + 1).stop


def forget_request(storage: str, name: str) -> None:
    """Delete the stored request to a run, if any. Raises `OSError`."""
    location = RunFolder.below(storage, name).location.child(FILE_NAME)
    with suppress(FileNotFoundError, NotADirectoryError):
        location.fs.delete_file(location.path)
