"""Rows of JSON Lines, and of `datasets` folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.data.transform.fingerprint.values import canonical, digest
from forebay.errors import InvalidDocument, InvalidOption, SourceChanged
from forebay.llm.score.source.row_source import RowBlock, RowReader
from forebay.llm.source.text_files import FROM_ARROW, TextFiles, TextSpan, cut_spans
from forebay.llm.source.text_rows import TextRow, count_rows, rows_of
from forebay.runtime.threads import each_in_threads
from forebay.runtime.uris import has_local_name
from forebay.storage.versions import stat

_SAMPLE_ROWS, _THREADS = 1000, 8


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows of files that were counted. A `RowSource`.

    Attributes:
        name: Name for messages.
        found: Files.
        ends: Number of the row behind each span.
        types: Columns and their types, by the first rows. None: values of several types.
    """

    name: str
    found: TextFiles
    ends: tuple[int, ...]
    types: Mapping[str, pa.DataType | None]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.types)

    @property
    def num_rows(self) -> int:
        return self.ends[-1]

    @property
    def identity(self) -> str:
        return digest(canonical({file.uri: file.without_stamp for file in self.found.files}).encode())

    @property
    def from_arrow(self) -> bool:
        return self.found.format in FROM_ARROW

    def open(self, columns: Sequence[str], keep: Sequence[str]) -> RowReader:
        return TextReader(self, columns, keep)


class TextReader:
    """`RowReader` of text files.

    Keeps its position in the last span.
    """

    def __init__(self, source: TextRows, columns: Sequence[str], keep: Sequence[str]) -> None:
        self._source, self._columns = source, tuple(columns)
        self._types = {name: _known_type(source, name) for name in keep}
        self._spans = cut_spans(source.found, None)
        self._versions = source.found.versions
        self._span, self._next = -1, 0
        self._rows: Iterator[TextRow] = iter(())

    def read(self, start: int, stop: int) -> RowBlock:
        rows: list[dict[str, Any]] = []
        errors: dict[int, str] = {}
        for at, row in enumerate(self._range(start, stop)):
            values = row.values
            rows.append({})
            if isinstance(values, InvalidDocument):
                errors[at] = str(values)
            elif (wrong := self._misfit(values)) is not None:
                errors[at] = f"{row.address()}: {wrong}"
            else:
                rows[at] = {name: values.get(name) for name in self._columns}
        kept = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in self._types.items()}
        return RowBlock(rows=rows, kept=kept, errors=errors)

    def _range(self, start: int, stop: int) -> Iterator[TextRow]:
        while start < stop:
            span = int(np.searchsorted(self._source.ends, start, side="right"))
            if span != self._span or self._next > start:
                self._open(span)
            end = min(stop, self._source.ends[span])
            # Rows before `start` belong to other workers.
            found = list(islice(self._rows, start - self._next, end - self._next))
            self._next = end
            if len(found) != end - start or (has_local_name(self._spans[span].uri) and self._is_changed(span)):
                raise _changed(self._spans[span].uri)
            yield from found
            start = end

    def _open(self, span: int) -> None:
        if self._is_changed(span):
            raise _changed(self._spans[span].uri)
        self._rows = rows_of(self._spans[span], self._source.found.format, None)
        self._span, self._next = span, self._source.ends[span - 1] if span else 0

    def _is_changed(self, span: int) -> bool:
        uri = self._spans[span].uri
        return stat(uri).version != self._versions[uri]

    def _misfit(self, values: Mapping[str, Any]) -> str | None:
        """Why a row cannot be kept, or None."""
        for name, kind in self._types.items():
            value = values.get(name)
            try:
                is_held = _is_held(value, pa.array([value], kind)[0].as_py())
            except NOT_IN_ARROW:
                is_held = False
            if not is_held:
                return f"column {name!r} is {str(value)[:60]!r}, and it has {kind} in the first rows"
        return None


def count_text_rows(name: str, found: TextFiles) -> TextRows:
    """Make the source of the rows of files.

    Reads them once, to count their rows.

    Raises `InvalidOption` for files without rows, and `ReadFailed`.
    """
    spans = cut_spans(found, None)
    counted = partial(count_rows, file_format=found.format)
    counts = [count for _, count in sorted(each_in_threads(counted, spans, most=_THREADS, name="forebay-count"))]
    if not sum(counts):
        raise InvalidOption(f"{name} has no rows. Give data with text, or correct the path.")
    ends = tuple(int(end) for end in np.cumsum(counts))
    return TextRows(name=name, found=found, ends=ends, types=_types_of(spans, found))


def _types_of(spans: Sequence[TextSpan], found: TextFiles) -> dict[str, pa.DataType | None]:
    rows = chain.from_iterable(rows_of(span, found.format, None) for span in spans)
    sample = [row.values for row in islice(rows, _SAMPLE_ROWS) if not isinstance(row.values, InvalidDocument)]
    names = dict.fromkeys(name for values in sample for name in values)
    return {name: _type_of([values.get(name) for values in sample]) for name in names}


NOT_IN_ARROW = (pa.ArrowException, OverflowError, ValueError, TypeError)
"""Errors for values of another type, integers from 2**63 on, and halves of characters."""


def _type_of(values: list[Any]) -> pa.DataType | None:
    try:
        kind = pa.array(values).type
    except NOT_IN_ARROW:
        kinds = {kind for value in values if value is not None and (kind := _own_type(value)) is not None}
        return kinds.pop() if len(kinds) == 1 else None
    return pa.string() if pa.types.is_null(kind) else kind


def _own_type(value: object) -> pa.DataType | None:
    """Type of one value. None if Arrow has none for it."""
    try:
        return pa.array([value]).type
    except NOT_IN_ARROW:
        return None


def _is_held(value: object, held: object) -> bool:
    """Whether Arrow holds a value as it was written.

    A struct leaves out unknown fields without an error, and has null for fields that are missing.
    """
    if isinstance(value, dict) and isinstance(held, dict):
        return all(name in held and _is_held(each, held[name]) for name, each in value.items())
    if isinstance(value, list) and isinstance(held, list):
        return len(value) == len(held) and all(map(_is_held, value, held))
    is_bool = isinstance(value, bool), isinstance(held, bool)
    return is_bool[0] == is_bool[1] and (value == held or value != value)  # noqa: PLR0124 - a NaN


def _known_type(source: TextRows, name: str) -> pa.DataType:
    kind = source.types[name]
    if kind is None:
        raise InvalidOption(
            f"keep= names {name!r}, which has values of several types in the first rows of {source.name}. Leave it "
            "out: the answers have the number of each row."
        )
    return kind


def _changed(uri: str) -> SourceChanged:
    return SourceChanged(f"{uri} was changed while it was scored. Score the new version into another folder.", uri=uri)
