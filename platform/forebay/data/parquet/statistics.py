"""Check the statistics in a footer.

Some of it needs the footer's bytes, because pyarrow decodes a value before it checks it.

Layout: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift, in the compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.data.parquet.other_formats import MAGIC
from forebay.errors import CorruptFile

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 0}
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_FIXED = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_BOUNDS = (1, 2, 5, 6)
"""Field numbers of max, min, max_value and min_value in the struct of the statistics."""


def check_statistics(uri: str, footer: pa.Buffer, decoded: pq.FileMetaData) -> None:
    """Check the length of each minimum and maximum.

    Raises `CorruptFile` if one is shorter than its column's type.

    pyarrow (seen in 26.0.1) ends the whole process when it decodes such a value, to prune by it or to print it.
    `footer` is the result of `fetch_footer`. Takes about 30 us per column chunk.
    """
    columns = [decoded.schema.column(leaf) for leaf in range(decoded.num_columns)]
    widths = [_WIDTHS.get(column.physical_type, column.length) for column in columns]
    content = footer.to_pybytes()[len(MAGIC) :]
    try:
        problem = next(_short_values(_StructWalk(content), widths), None)
    except (IndexError, RecursionError):
        problem = "it ends too early"
    if problem:
        raise CorruptFile(
            f"{uri} is corrupt: its footer cannot be used to prune ({problem}). Write or copy the file again, leave it "
            "out, or scan without where=.",
            uri=uri,
        )


def untrusted_groups(decoded: pq.FileMetaData, leaves: Sequence[int]) -> set[int]:
    """Row groups whose statistics of some column chunks contradict themselves.

    Arrow would prune by them: a minimum above the maximum keeps no row.
    """
    groups = range(decoded.num_row_groups)
    return {index for index in groups if not all(_is_sound(decoded.row_group(index).column(leaf)) for leaf in leaves)}


def _is_sound(chunk: pq.ColumnChunkMetaData) -> bool:
    found = chunk.statistics
    if found is None:
        return True
    nulls = found.null_count if found.has_null_count else 0
    if not 0 <= nulls <= chunk.num_values:
        return False
    if not found.has_min_max:
        return True
    try:
        # A NaN is not equal to itself.
        return bool(found.min <= found.max) and nulls < chunk.num_values
    except (pa.ArrowException, ValueError, OverflowError, TypeError):  # values that Python cannot hold
        return False


class _StructWalk:
    """Walk through the bytes of a Thrift struct.

    Callers must `skip` each field that they do not read.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct.

        The struct begins here.
        """
        number = 0
        while head := self._next():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            yield number, head & 15

    def items(self) -> Iterator[int]:
        """Type of each item of the list that begins here."""
        head = self._next()
        size = head >> 4 if head >> 4 < 15 else self._varint()
        for _ in range(size):
            yield head & 15

    def binary(self) -> int:
        """Skip the bytes that begin here. Returns their number."""
        size = self._varint()
        self._at += size
        return size

    def skip(self, kind: int) -> None:
        """Skip a value of type `kind`."""
        if kind == _BINARY:
            self.binary()
        elif kind in _FIXED:
            self._at += _FIXED[kind]
        elif kind in {_LIST, _SET}:
            for item in self.items():
                # In a list, a boolean has a byte of its own.
                self.skip(_BYTE if item in {_TRUE, _FALSE} else item)
        elif kind == _STRUCT:
            for _, each in self.fields():
                self.skip(each)
        elif kind == _MAP:
            self._skip_map()
        elif kind not in {_TRUE, _FALSE}:
            self._varint()

    def _skip_map(self) -> None:
        size = self._varint()
        kinds = self._next() if size else 0
        for _ in range(size):
            self.skip(kinds >> 4)
            self.skip(kinds & 15)

    def _next(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._next()) > 127:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _short_values(walk: _StructWalk, widths: Sequence[int]) -> Iterator[str]:
    """Walk through FileMetaData.row_groups."""
    for number, kind in walk.fields():
        if (number, kind) == (4, _LIST):
            for _ in walk.items():
                yield from _in_row_group(walk, widths)
        else:
            walk.skip(kind)


def _in_row_group(walk: _StructWalk, widths: Sequence[int]) -> Iterator[str]:
    """Walk through RowGroup.columns."""
    for number, kind in walk.fields():
        if (number, kind) == (1, _LIST):
            for column, _ in enumerate(walk.items()):
                yield from (f"{found} of column {column}" for found in _in_chunk(walk, widths[column]))
        else:
            walk.skip(kind)


def _in_chunk(walk: _StructWalk, width: int) -> Iterator[str]:
    """Walk through ColumnChunk.meta_data.statistics."""
    for number, kind in walk.fields():
        if (number, kind) == (3, _STRUCT):
            for inner, inner_kind in walk.fields():
                if (inner, inner_kind) == (12, _STRUCT):
                    yield from _in_statistics(walk, width)
                else:
                    walk.skip(inner_kind)
        else:
            walk.skip(kind)


def _in_statistics(walk: _StructWalk, width: int) -> Iterator[str]:
    for number, kind in walk.fields():
        if number in _BOUNDS and kind == _BINARY:
            size = walk.binary()
            if size < width:
                yield f"a bound of {size} bytes instead of {width}"
        else:
            walk.skip(kind)
