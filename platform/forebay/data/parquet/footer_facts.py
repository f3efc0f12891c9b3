"""The facts of a footer that a scan needs.

With their form in a `FooterStore`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow.parquet as pq

from forebay.data.manifest.manifest import Field
from forebay.data.parquet.schemas import leaves_of
from forebay.errors import CorruptFile

_LENGTH_BYTES = 4
_CHUNK_BYTES = 16


@dataclass(frozen=True, eq=False)
class FileLayout:
    """Columns of a file, and the paths of its chunks.

    Stored files of one layout share one object.
    """

    fields: tuple[Field, ...]
    paths: tuple[str, ...]

    @property
    def chunks_bytes(self) -> int:
        """Bytes of `FooterFacts.chunks` for each row group."""
        return _CHUNK_BYTES * len(self.paths)

    def to_json(self) -> bytes:
        """Return the text that `_layout` parses."""
        fields = [[field.name, field.type, field.nullable] for field in self.fields]
        return json.dumps([fields, self.paths]).encode()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FooterFacts:
    """Facts of one footer.

    `groups` has the rows, bytes and compressed bytes of each row group, `chunks` both bytes of each column chunk, as
    int64 [row groups, column chunks, 2].
    """

    etag: str
    num_rows: int
    layout: FileLayout
    groups: tuple[tuple[int, int, int], ...]
    chunks: bytes

    def measure(self, columns: Sequence[str] | None) -> list[tuple[int, ...]]:
        """Measure each row group that has rows.

        Returns its index, rows, bytes, source bytes and first row.

        The bytes are of `columns`, or of all for None.
        """
        sizes = [group[1:] for group in self.groups] if columns is None else self._sizes(tuple(columns))
        found: list[tuple[int, ...]] = []
        first = 0
        for index, ((rows, *_), (plain, compressed)) in enumerate(zip(self.groups, sizes, strict=True)):
            if rows:
                found.append((index, rows, plain, compressed, first))
            first += rows
        return found

    def to_bytes(self) -> bytes:
        """Return the form that `stored_facts` reads."""
        layout = self.layout.to_json()
        head = json.dumps([self.etag, self.num_rows, self.groups]).encode()
        lengths = len(layout).to_bytes(_LENGTH_BYTES) + len(head).to_bytes(_LENGTH_BYTES)
        return lengths + layout + head + self.chunks

    def _sizes(self, columns: tuple[str, ...]) -> list[tuple[int, int]]:
        chunks = np.frombuffer(self.chunks, "<i8").reshape(len(self.groups), len(self.layout.paths), 2)
        chosen = chunks[:, list(_leaves(self.layout, columns))].tolist()
        # Integers of Python: sums of what a damaged footer states may exceed int64.
        return [(sum(plain for plain, _ in group), sum(compressed for _, compressed in group)) for group in chosen]


def read_facts(uri: str, footer: pq.FileMetaData, fields: tuple[Field, ...], etag: str) -> FooterFacts:
    """Read the facts of a checked footer.

    It has passed `check_chunks`. Raises `CorruptFile` if its counts contradict each other.
    """
    columns = [footer.schema.column(leaf) for leaf in range(footer.num_columns)]
    paths = tuple(column.path for column in columns)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    num_rows = sum(group.num_rows for group in groups)
    # Some writers state no rows in total (apache/parquet-testing has such a file). All other totals were counted.
    if footer.num_rows not in (0, num_rows):
        raise _contradiction(uri, f"{footer.num_rows} rows in total, and {num_rows} in its row groups")
    is_flat = [not column.max_repetition_level for column in columns]
    chunks: list[list[tuple[int, int]]] = []
    for number, group in enumerate(groups):
        found = [group.column(leaf) for leaf in range(len(paths))]
        rows = group.num_rows
        for leaf, chunk in enumerate(found):
            entries, path = chunk.num_values, _path_of(chunk)
            if path != paths[leaf] and (path is None or path in paths):
                raise _contradiction(
                    uri, f"{path or 'no text'!r} as the name of column {paths[leaf]!r} of row group {number}"
                )
            if entries != rows and (is_flat[leaf] or entries < rows):
                raise _contradiction(
                    uri, f"{rows} rows of row group {number}, and {entries} values of its column {paths[leaf]!r}"
                )
        chunks.append([(chunk.total_uncompressed_size, chunk.total_compressed_size) for chunk in found])
    return FooterFacts(
        etag=etag,
        num_rows=num_rows,
        layout=FileLayout(fields, paths),
        groups=tuple(
            (group.num_rows, sum(plain for plain, _ in sizes), sum(compressed for _, compressed in sizes))
            for group, sizes in zip(groups, chunks, strict=True)
        ),
        chunks=np.array(chunks, "<i8").tobytes(),
    )


def _path_of(chunk: pq.ColumnChunkMetaData) -> str | None:
    """Path that a footer states for a column chunk.

    None if it is not UTF-8.
    """
    try:
        return str(chunk.path_in_schema)
    except UnicodeDecodeError:
        return None


def _contradiction(uri: str, found: str) -> CorruptFile:
    return CorruptFile(
        f"{uri} is corrupt: its footer states {found}. Write or copy the file again, or leave it out.", uri=uri
    )


def stored_facts(content: bytes) -> FooterFacts | None:
    """Parse the result of `FooterFacts.to_bytes`.

    None for any other bytes.
    """
    first = 2 * _LENGTH_BYTES
    layout_end = first + int.from_bytes(content[:_LENGTH_BYTES])
    head_end = layout_end + int.from_bytes(content[_LENGTH_BYTES:first])
    try:
        layout = _layout(content[first:layout_end])
        etag, num_rows, groups = json.loads(content[layout_end:head_end])
        groups = tuple((int(rows), int(plain), int(compressed)) for rows, plain, compressed in groups)
    except (ValueError, TypeError, RecursionError):
        return None
    chunks = content[head_end:]
    if not (isinstance(etag, str) and isinstance(num_rows, int)) or len(chunks) != len(groups) * layout.chunks_bytes:
        return None
    return FooterFacts(etag=etag, num_rows=num_rows, layout=layout, groups=groups, chunks=chunks)


@lru_cache(maxsize=256)
def _layout(text: bytes) -> FileLayout:
    fields, paths = json.loads(text)
    return FileLayout(
        tuple(Field(name=str(name), type=str(kind), nullable=bool(nullable)) for name, kind, nullable in fields),
        tuple(str(path) for path in paths),
    )


@lru_cache(maxsize=256)
def _leaves(layout: FileLayout, columns: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(leaves_of(layout.paths, columns))
