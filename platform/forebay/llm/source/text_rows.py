"""Rows of a span of text data, as dictionaries."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import CorruptFile, InvalidDocument
from forebay.llm.source.text_files import Format, TextSpan
from forebay.runtime.foreign_code import replaced_errors
from forebay.storage.filesystem import resolve, resolve_source
from forebay.storage.retry import read

_BATCH_ROWS = 1024
_DEEPEST = 100
"""Levels of JSON. Python and Arrow walk nested values by recursion."""
_MORE_BYTES = 1 << 16
_VALUES = (ValueError, OverflowError, TypeError, pa.ArrowException)
"""Errors of `as_py`: a `UnicodeDecodeError` is a `ValueError`."""
_CONTENT = (OSError, pa.ArrowException)
_DAMAGE = re.compile(r"zlib|zstd|truncated|end of file|[Ee]xpected to (be able to )?read|[Ii]nvalid", re.IGNORECASE)
_CODECS = {".gz": "gzip", ".zst": "zstd"}


class TextRow(NamedTuple):
    """A row, and a function that returns its address.

    The address is for messages: `chats.jsonl, line 3`.

    `values` is an error for a row that cannot be decoded.
    """

    address: Callable[[], str]
    values: Mapping[str, Any] | InvalidDocument


def rows_of(span: TextSpan, file_format: Format, manifest: Manifest | None) -> Iterator[TextRow]:
    """Read the rows of a span, in order.

    Raises as `RowGroupReader.read`, or the file system's errors.
    """
    if manifest is not None:
        return _parquet_rows(span, manifest)
    readers: Mapping[str, Callable[[TextSpan], Iterator[TextRow]]] = {
        "jsonl": _line_rows,
        "compressed": _compressed_rows,
        "arrow": _arrow_rows,
    }
    return readers[file_format](span)


def count_rows(span: TextSpan, file_format: Format) -> int:
    """Count the rows of a span without decoding them.

    The span is not Parquet. Raises `ReadFailed`.
    """
    counters: Mapping[str, Callable[[TextSpan], int]] = {
        "jsonl": lambda span: _num_lines(io.BytesIO(_lines_from(span)[1])),
        "compressed": lambda span: _num_lines(_compressed_lines(span)),
        "arrow": lambda span: sum(1 for _ in _arrow_rows(span)),
    }
    return read(f"the rows of {span.uri}", partial(counters[file_format], span))


def _parquet_rows(span: TextSpan, manifest: Manifest) -> Iterator[TextRow]:
    reader = RowGroupReader(manifest)
    for index in range(span.start, span.stop or 0):
        group = manifest[index]
        yield from _table_rows(reader.read(index).to_batches(_BATCH_ROWS), f"{group.uri}, row group {group.index}")


def _arrow_rows(span: TextSpan) -> Iterator[TextRow]:
    location = resolve(span.uri)
    with (
        location.fs.open_input_stream(location.path, compression=None) as stream,
        replaced_errors(partial(_corrupt, span.uri), _CONTENT),
    ):
        yield from _table_rows(pa.ipc.open_stream(stream), span.uri)


def _num_lines(lines: Iterable[bytes]) -> int:
    """Lines that are rows: those that are not empty."""
    return sum(bool(line.strip()) for line in lines)


def _table_rows(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[TextRow]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            for values in python_rows(batch.slice(start, _BATCH_ROWS)):
                address = partial("{}, row {}".format, name, number)
                yield TextRow(address, InvalidDocument(f"{address()}: {values}") if isinstance(values, str) else values)
                number += 1


def python_rows(table: pa.RecordBatch | pa.Table) -> list[dict[str, Any] | str]:
    """Rows as dictionaries.

    A text in place of one says which value Python cannot hold, and why: a time after the year 9999, a text that is not
    UTF-8.
    """
    try:
        found: list[dict[str, Any] | str] = table.to_pylist()
    except _VALUES:
        found = [_python_row(table.slice(row, 1)) for row in range(table.num_rows)]
    return found


def _python_row(row: pa.RecordBatch | pa.Table) -> dict[str, Any] | str:
    values = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            values[name] = column[0].as_py()
        except _VALUES as error:
            return f"column {name!r} ({column.type}) has a value that Python cannot hold ({error})"
    return values


def _line_rows(span: TextSpan) -> Iterator[TextRow]:
    position, content = read(f"bytes from {span.start} of {span.uri}", partial(_lines_from, span))
    for line in io.BytesIO(content):
        if line.strip():
            yield _json_row(line, partial(_line_address, span.uri, position))
        position += len(line)


def _lines_from(span: TextSpan) -> tuple[int, bytes]:
    """Lines that begin in the span, and the first position."""
    location = resolve_source(span.uri)
    with location.fs.open_input_file(location.path) as file:
        stop = file.size() if span.stop is None else span.stop
        # From one byte before: a line begins here if that byte ends one.
        first = max(span.start - 1, 0)
        file.seek(first)
        content: bytes = file.read(stop - first)
        while not content.endswith(b"\n") and (more := file.read(_MORE_BYTES)):
            content += more[: more.find(b"\n") + 1] or more
    if span.start == 0:
        return 0, content
    skipped = content.find(b"\n") + 1 or len(content)
    return first + skipped, content[skipped:]


def _line_address(uri: str, position: int) -> str:
    """Address of the line at byte `position`: `uri, line 3`.

    Counts lines, which is only worth it for a message.
    """
    location = resolve(uri)
    line = 1
    with location.fs.open_input_file(location.path) as file:
        while (left := position - file.tell()) > 0:
            line += file.read(min(left, 1 << 20)).count(b"\n")
    return f"{uri}, line {line}"


def _compressed_rows(span: TextSpan) -> Iterator[TextRow]:
    for number, line in enumerate(_compressed_lines(span), start=1):
        if line.strip():
            yield _json_row(line, partial("{}, line {}".format, span.uri, number))


def _compressed_lines(span: TextSpan) -> Iterator[bytes]:
    location = resolve(span.uri)
    codec = next(codec for suffix, codec in _CODECS.items() if location.path.endswith(suffix))
    with (
        location.fs.open_input_stream(location.path, compression=codec) as stream,
        replaced_errors(partial(_corrupt, span.uri), OSError),
    ):
        yield from io.BufferedReader(stream)


def _corrupt(uri: str, error: Exception) -> Exception:
    """Error of damaged content, or `error` itself if storage failed."""
    if isinstance(error, OSError) and not _DAMAGE.search(str(error)):
        return error
    return CorruptFile(
        f"{uri} is corrupt: it was cut off or damaged ({error}). Write or copy the file again, or leave it out.",
        uri=uri,
    )


def _json_row(line: bytes, address: Callable[[], str]) -> TextRow:
    """Row of a line.

    It may begin with a byte order mark. A zero byte is not taken for a mark of UTF-16, as `json.loads` does.
    """
    try:
        values = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_object)
        problem = _problem(values, line)
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 ({error.reason})"
    except (ValueError, RecursionError) as error:
        problem = f"is not JSON ({error})"
    return TextRow(address, InvalidDocument(f"{address()}: the line {problem}") if problem else values)


def _problem(values: Any, line: bytes) -> str | None:
    """Why a JSON value cannot be a row, or None."""
    if not isinstance(values, dict):
        return f"is a JSON {type(values).__name__}, not an object"
    if line.count(b"[") + line.count(b"{") > _DEEPEST and _depth(values) > _DEEPEST:
        return f"is nested deeper than {_DEEPEST} levels"
    if b"\\u" in line:
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            # Neither a tokenizer nor Arrow takes the half of a pair such as \ud83d\ude00.
            return f"has the escape {error.object[error.start]!a}, which is half of a character"
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Object of JSON. Raises `ValueError` for a key that it has twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the key {twice!r} twice")
    return found


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [*chain.from_iterable(inner)]
    return depth
