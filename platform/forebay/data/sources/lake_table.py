"""One version of a lake table.

Its files, columns and deleted rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Field
from forebay.data.sources.field_ids import FieldIds
from forebay.data.sources.partitions import Values
from forebay.errors import InvalidOption
from forebay.runtime.threads import each_in_threads
from forebay.storage.retry import ReadPolicy, read
from forebay.storage.versions import FoundFile, stat

_MOST_THREADS = 16


@dataclass(frozen=True, slots=True, eq=False)
class LakeFile:
    """Data file of a table.

    With its columns by partition, and spans of deleted rows, int64 [n, 2].
    """

    file: FoundFile
    constants: Values
    deleted: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LakeTable:
    """Version of a table, named by `snapshot`.

    `partitions` are the `fields` that files may not hold.

    With `ids`, columns of files are found by id, and constants count only for files that do not hold the column.
    """

    files: tuple[LakeFile, ...]
    fields: tuple[Field, ...]
    partitions: tuple[Field, ...]
    snapshot: str
    root: str
    ids: FieldIds | None = None


@contextmanager
def errors_of_content() -> Iterator[None]:
    """Raise a `ValueError` for an `OSError`: Arrow raises it for damaged content in memory, too."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{error}") from error


def refuse_twice(uris: Sequence[str], table: str) -> None:
    """Raise `InvalidOption` for a table that names a file more than once."""
    if twice := [uri for uri, count in Counter(uris).items() if count > 1]:
        raise InvalidOption(
            f"{table} names {len(twice)} files more than once, such as {twice[0]}. A scan takes each file once, and "
            "the table has its rows several times. Remove the repeated entries, or choose another version.",
            uri=twice[0],
        )


def stat_files(uris: Sequence[str], table: str, policy: ReadPolicy) -> list[FoundFile]:
    """Present versions of the data files of a table.

    Raises:
        InvalidOption: A file does not exist, as after a vacuum.
        ReadFailed: Storage kept failing.
    """

    def found(uri: str) -> FoundFile:
        try:
            return read(uri, partial(stat, uri), policy)
        except FileNotFoundError as error:
            raise InvalidOption(
                f"{table} needs the file {uri}, which is gone: the table was cleaned up since (VACUUM, or expired "
                "snapshots). Choose a newer version.",
                uri=uri,
            ) from error

    made = dict(each_in_threads(found, uris, most=_MOST_THREADS, name="forebay-stat"))
    return [made[number] for number in range(len(uris))]
