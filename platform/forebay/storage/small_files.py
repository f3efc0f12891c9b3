"""Small files, read whole."""

from __future__ import annotations

from forebay.storage.filesystem import Location


def read_small(location: Location) -> bytes:
    """Return the whole content of a file. Raises `OSError`.

    As stored: pyarrow would otherwise decompress a file whose name ends in `.gz` or alike.
    """
    with location.fs.open_input_stream(location.path, compression=None) as stream:
        return bytes(stream.read())


def find_small(location: Location) -> bytes | None:
    """Return the whole content of a file, or None if there is none.

    Raises `OSError`.
    """
    try:
        return read_small(location)
    except (FileNotFoundError, NotADirectoryError):
        return None
