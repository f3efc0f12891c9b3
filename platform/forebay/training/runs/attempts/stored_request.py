"""Request to a run in its storage.

For callers without a route to its driver. It is made to one attempt: a later attempt of the same name does not obey it.
The driver reads it with the fence.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Any

from forebay.errors import InvalidOption
from forebay.events import Request
from forebay.runtime.declared_types import require_types
from forebay.storage.filesystem import resolve
from forebay.storage.json_file import to_json
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.control import Control
from forebay.training.runs.run_folder import RunFolder

FILE_NAME = "request.json"
VERSION = 1

log = logging.getLogger(__name__)


class RequestReader:
    """Passes stored requests on to a run's control."""

    def __init__(self, run: str | RunFolder, attempt: int | None, control: Control) -> None:
        self._run, self._attempt, self._control = RunFolder.at(run), 0 if attempt is None else attempt, control
        self._known = Request()
        self._is_damaged = False

    def obey(self) -> None:
        """Read the file, and request what is new.

        A damaged file is reported once, and requests nothing. Raises `OSError` if storage does not answer.
        """
        try:
            request = load_request(self._run, self._attempt)
        except InvalidOption as error:
            if not self._is_damaged:
                log.warning("The request to this run cannot be obeyed: %s", error)
            self._is_damaged = True
            return
        self._is_damaged = False
        if request.stop is not None and self._known.stop is None:
            self._control.stop(request.stop)
        if request.target not in (None, self._known.target) and self._control.is_elastic:
            self._control.resize(request.target)
        self._known = request


def load_request(run: str | RunFolder, attempt: int) -> Request:
    """Return the stored request to `attempt`.

    Empty if there is none. Raises `OSError`, and `InvalidOption` for a file that is not a request.
    """
    found = RunFolder.at(run).load(FILE_NAME, _stored, VERSION)
    return found[1] if found is not None and found[0] == attempt else Request()


def _stored(facts: dict[str, Any]) -> tuple[int, Request]:
    return facts["attempt"], require_types(Request(**facts["request"]))


def send_request(storage: str, name: str, *, stop: str | None = None, target: int | None = None) -> tuple[int, Request]:
    """Add to the stored request to a run.

    It is made to the newest attempt of run `name` below `storage`. Returns the number of the attempt, and all that is
    requested of it. Raises `InvalidOption` if no attempt is running there, and `WriteFailed`.
    """
    run = RunFolder.below(storage, name)
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
    run.save(FILE_NAME, to_json(facts), f"the request to run {name!r}")
    return newest.number, request
