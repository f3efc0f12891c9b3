"""Check of a run's storage on the machine that trains.

It must answer, accept writes, and create files exclusively.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress

from forebay.errors import InvalidOption, ReadFailed, UnusableStorage
from forebay.storage.atomic import ADVICE
from forebay.storage.credentials import redact
from forebay.storage.deadline import call_with_deadline
from forebay.storage.exclusive import create_exclusively
from forebay.storage.filesystem import below, resolve

PROBES = ".probes"
"""Folder below the storage. The name of a run cannot begin with a dot."""
ANSWER_S = 30.0
WITHIN_S = 60.0
"""Time for which a storage without an answer is asked again. A refusal is not repeated."""
AGAIN_S = 2.0


def require_usable_storage(storage: str, within_s: float | None = None) -> None:
    """Check that `storage` can be used.

    Writes a small file below it and deletes it. Raises `UnusableStorage`. Credentials, networks and packages of the
    machines that train are not those of the submitter.
    """
    deadline = time.monotonic() + (WITHIN_S if within_s is None else within_s)
    while True:
        try:
            return call_with_deadline(lambda: _probe(storage), ANSWER_S)
        except InvalidOption as error:
            raise _unusable(storage, error) from None
        except (OSError, ReadFailed) as error:
            if isinstance(error, PermissionError) or time.monotonic() + AGAIN_S > deadline:
                raise _unusable(storage, error) from None
            time.sleep(AGAIN_S)


def _probe(storage: str) -> None:
    uri = below(below(resolve(storage).uri, PROBES), secrets.token_hex(8))
    create_exclusively(uri, b"one")
    try:
        if create_exclusively(uri, b"two"):
            raise InvalidOption("a file was created twice, though the second request said not to replace it")
    finally:
        location = resolve(uri)
        # A store that forbids deletion is no fault: runs delete old checkpoints alone.
        with suppress(OSError):
            location.fs.delete_file(location.path)


def _unusable(storage: str, error: Exception) -> UnusableStorage:
    return UnusableStorage(
        f"the storage {redact(storage)} cannot be used from here ({redact(str(error))}). {ADVICE}",
        storage=redact(storage),
    )
