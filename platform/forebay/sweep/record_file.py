"""The file that a sweep's record is kept in, beside the runs of its trials."""

from __future__ import annotations

from forebay.driver.result import below
from forebay.errors import InvalidOption
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import resolve
from forebay.sweep.record import FILE_NAME, Record


def save_record(record: Record, path: str) -> None:
    """Write `sweep.json` into the sweep's folder `path`, replacing an earlier one as a whole."""
    write_atomically(below(path, FILE_NAME), record.to_json().encode())


def load_record(path: str) -> Record | None:
    """The record in the sweep's folder `path`, or None where no sweep has been.

    Raises `InvalidOption` for a file that is no record, and for a `path` that is a file.
    """
    place = resolve(below(path, FILE_NAME))
    try:
        with place.fs.open_input_stream(place.path) as stream:
            return Record.from_json(stream.read())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InvalidOption(
            f"{path} is a file, and a sweep keeps what it makes in a folder of its name. Give the sweep another name, "
            "or another storage.",
            path=path,
        ) from error
