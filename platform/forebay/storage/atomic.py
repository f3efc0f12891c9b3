"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from forebay.storage.credentials import redacting
from forebay.storage.filesystem import resolve


def write_atomically(uri: str | os.PathLike[str], content: bytes) -> None:
    """Write or replace one file: a local one through a temporary neighbour, an object by closing it."""
    location = resolve(uri)
    if not location.is_local:
        with redacting(), location.fs.open_output_stream(location.path) as stream:
            stream.write(content)
        return
    target = Path(location.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            # fsync before the rename: after a crash a torn file must never look complete.
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
