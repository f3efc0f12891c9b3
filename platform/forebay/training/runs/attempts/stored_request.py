"""Request to a run in its storage.

For callers without a route to its driver. It is made to one attempt: a later attempt of the same name does not obey it.
The driver reads it with the fence. It is made to one attempt. A later attempt of the same name does not obey it. The
driver reads it with the fence.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from forebay.errors import InvalidOption
from forebay.events import Request
from forebay.storage.atomic import write_failed
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import below, resolve
from forebay.storage.json_file import from_json, read_json_file, to_json, write_json_file
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.control import Control

FILE_NAME = "request.json"
VERSION = 1


class RequestReader:
    """Passes stored requests on to a run's control."""

    def __init__(self, run: str, attempt: int | None, control: Control) -> None:
        self._run, self._attempt, self._control = run, 0 if attempt is None else attempt, control
        self._known = Request()

    def obey(self) -> None:
        """Read the file, and request what is new.

        Raises `OSError` if storage does not answer.
        """
        request = load_request(self._run, self._attempt)
        if request.stop is not None and self._known.stop is None:
            self._control.stop(request.stop)
        if request.target not in (None, self._known.target) and self._control.is_elastic:
            self._control.resize(request.target)
        self._known = request


def load_request(run: str, attempt: int) -> Request:
    """Return the stored request to `attempt`.

    Empty if there is none.
    """
    content = read_json_file(run, FILE_NAME, "run")
    if content is None:
        return Request()
    number, request = from_json(
        content,
        lambda facts: (facts["attempt"], Request(**facts["request"])),
        version=VERSION,
        owner="run",
        file_name=FILE_NAME,
    )
    return request if number == attempt else Request()


def send_request(storage: str, name: str, *, stop: str | None = None, target: int | None = None) -> tuple[int, Request]:
    """Add to the stored request to a run.

    It is made to the newest attempt of run `name` below `storage`. Returns the number of the attempt, and all that is
    requested of it. Raises `InvalidOption` if no attempt is running there, and `WriteFailed`.
    """
    run = below(resolve(storage).uri, name)
    files = AttemptFiles(run)
    newest = files.newest()
    if newest is None:
        raise InvalidOption(
            f"there is no run {name!r} in {resolve(storage).uri}: nothing was changed. Check the name and the storage.",
            name=name,
        )
    if (end := files.ended(newest.number)) is not None:
        raise InvalidOption(
            f"run {name!r} has ended ({end.how}{': ' + end.why if end.why else ''}): nothing was changed.", name=name
        )
    request = load_request(run, newest.number)
    request = replace(request, stop=request.stop if stop is None else stop)
    request = replace(request, target=request.target if target is None else target)
    facts = {"version": VERSION, "attempt": newest.number, "request": asdict(request)}
    try:
        write_json_file(run, FILE_NAME, to_json(facts))
    except OSError as error:
        raise write_failed(f"the request to run {name!r}", run, error, name=name) from redacted(error)
    return newest.number, request
