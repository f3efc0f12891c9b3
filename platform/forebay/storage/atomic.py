"""Files that are there whole or not at all, and the error for storage that refuses them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from forebay.errors import WriteFailed
from forebay.storage.credentials import redact, redacting
from forebay.storage.filesystem import resolve

ADVICE = "Check that the storage answers, has room, and that this user may write to it."
_UMASK = os.umask(0)
"""Read once: it cannot be read without setting it, for all threads."""
os.umask(_UMASK)


def write_atomically(uri: str | os.PathLike[str], content: bytes) -> None:
    """Write or replace one file: a local one through a temporary neighbour, an object by closing it."""
    location = resolve(uri)
    if not location.is_local:
        with redacting(), location.fs.open_output_stream(location.path) as stream:
            stream.write(content)
        return
    draft = Draft(Path(location.path))
    try:
        draft.write(content)
        draft.keep()
    finally:
        draft.give_up()


class Draft:
    """A local file under way: a temporary neighbour of `target`, whose place it takes at `keep`."""

    def __init__(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self._target = target
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        self._path: Path | None = Path(name)
        self._file = os.fdopen(descriptor, "wb")

    def write(self, content: bytes) -> None:
        """Add `content`; storage that is full says so now. Raises `OSError`."""
        self._file.write(content)
        self._file.flush()

    def keep(self) -> None:
        """Put it in its place. Raises `OSError`."""
        assert self._path is not None
        # fsync before the rename: after a crash a torn file must never look complete.
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.chmod(0o666 & ~_UMASK)
        self._path.replace(self._target)
        self._path = None

    def give_up(self) -> None:
        """Leave nothing behind, unless it was kept."""
        if self._path is None:
            return
        with suppress(OSError):  # what did not fit before
            self._file.close()
        with suppress(OSError):  # why it is given up is known already
            self._path.unlink(missing_ok=True)
        self._path = None


def write_failed(what: str, uri: str, error: BaseException, advice: str = ADVICE, **facts: object) -> WriteFailed:
    """Build the error for `what` (e.g. "the result of run 'a'"), which `error` kept from being written to `uri`.

    It names the first line of `error`, without secrets. `facts` are added to `uri` as attributes of the error.
    """
    reason = redact(f"{type(error).__name__}: {error}".partition("\n")[0])
    return WriteFailed(f"{what} could not be written to {uri} ({reason}). {advice}", uri=uri, **facts)
