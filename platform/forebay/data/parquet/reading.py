"""Read row groups as tables.

They come from exactly the file versions in the manifest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.data.manifest.manifest import CONTENT_HASH, Field, Manifest, RowGroup
from forebay.data.parquet.arrow_checks import TimeOutOfRange
from forebay.data.parquet.arrow_types import constant_array, parse_type
from forebay.data.parquet.column_casts import cast_column, without_views
from forebay.data.parquet.column_paths import held_steps, require_path, steps_of, top_column
from forebay.data.parquet.decoded_table import (
    DECODE_ERRORS,
    DecodedTable,
    decode,
    is_too_much_nested_text,
    nested_columns,
)
from forebay.data.parquet.fetch import Pages, fetch
from forebay.data.parquet.footer import (
    Footer,
    FooterCache,
    FooterSizes,
    check_chunks,
    decode_footer,
    fetch_footer,
    read_codecs,
)
from forebay.data.parquet.schemas import fields_of, missing_column, read_schema
from forebay.errors import CorruptFile, LimitReached, ReadFailed, SourceChanged, UnsupportedColumn
from forebay.runtime.metrics import Counters
from forebay.storage.deadline import Cancellation, finished_before_exit
from forebay.storage.filesystem import resolve_source
from forebay.storage.retry import DEFAULT_POLICY, REMEDY, ReadPolicy, read
from forebay.storage.versions import FoundFile, OpenFiles, SharedFile, etag_of, stat, stat_etag


def open_input(uri: str) -> pa.NativeFile:
    """Open a file for random access.

    Readers open every Parquet file with this function.
    """
    return resolve_source(uri).open_input()


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Fetched pages of row group `index` of the manifest.

    With the columns to decode.

    A column of which only some fields were fetched is a struct of these.
    """

    index: int
    pages: Pages
    columns: tuple[str, ...]


class _Selection(NamedTuple):
    """Columns to decode, and their paths in the file."""

    columns: tuple[str, ...]
    stored: tuple[str, ...]


_MOST_CHECKED = 8


class RowGroupReader:
    """Reads the row groups of one manifest. Safe for threads.

    Counts `parquet_opens`, `source_bytes` (compressed, of the columns read), `retries`, and the seconds of both steps.
    Setting `cancelled` ends reads in progress with `forebay.errors.Cancelled`. With `maps_files`, pages of local files
    are mapped, not copied: `check_unchanged` must follow their decoding.
    """

    def __init__(
        self,
        manifest: Manifest,
        policy: ReadPolicy = DEFAULT_POLICY,
        counters: Counters | None = None,
        *,
        cancelled: Cancellation | None = None,
        footers: FooterCache | None = None,
        maps_files: bool = False,
    ) -> None:
        self.manifest = manifest
        self._maps_files = maps_files
        self._policy = policy
        self._counters = counters or Counters()
        self._cancelled = cancelled
        self._footers, self._footer_sizes = footers or FooterCache(), FooterSizes()
        self._selections: dict[tuple[object, ...], _Selection] = {}
        self._checked: deque[tuple[object, ...]] = deque(maxlen=_MOST_CHECKED)
        self._views = frozenset(f.name for f in manifest.fields if "string_view" in f.type or "binary_view" in f.type)

    @cached_property
    def _opened(self) -> OpenFiles:
        return OpenFiles()

    def read(self, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the dataset's rows of row group `index`.

        They are in file order. `columns` as in `fetch`.

        Same as `fetch` and then `decode`, without the rows that the manifest masks. Raises their errors.
        """
        table = self.decode(self.fetch(index, columns))
        kept = self.manifest.kept
        return table if kept is None else table.filter(pa.array(kept.mask.keeps(index)))

    def fetch(self, index: int, columns: Sequence[str] | None = None) -> Fetched:
        """Fetch the encoded pages of row group `index`.

        Takes storage time and hardly any processor time.

        `columns` are decoded in the given order. None is for the manifest's columns. A path, such as `user.age`, is for
        one field of a struct: its column then has only the fields that were asked for.

        Raises:
            SourceChanged: The file no longer exists, or is not the version in the manifest.
            CorruptFile: The footer cannot be decoded.
            MissingColumn: The manifest does not select such a column, or its struct has no such field.
            ReadFailed: Storage kept failing, or does not permit the read.
            LimitReached: The row group needs more memory than the policy allows, or than there is.
        """
        row_group = self.manifest[index]
        tops, stored = self._selected(row_group, self.manifest.columns if columns is None else tuple(columns))
        what = f"row group {row_group.index} of {row_group.uri}"
        attempt = partial(self._fetch_once, row_group, stored)
        try:
            with self._counters.timed("remote_read_s"):
                pages = read(what, attempt, self._policy, self._cancelled, self._count_retry)
        except SourceChanged:
            self._footers.forget(_version(row_group))  # or the next scan would find this version again
            raise
        except FileNotFoundError as error:
            raise _changed(row_group, "no longer exists") from error
        except PermissionError as error:
            raise ReadFailed(f"{row_group.uri} may not be read ({error}). {REMEDY}", what=what) from error
        except MemoryError as error:
            raise out_of_memory(row_group, error) from error
        self._counters.add("source_bytes", pages.source_bytes)
        return Fetched(index, pages, tops)

    def decode(self, fetched: Fetched) -> pa.Table:
        """Same as `decode_lazily`, as a table of Arrow."""
        return self.decode_lazily(fetched).to_table()

    def decode_lazily(self, fetched: Fetched) -> DecodedTable:
        """Decode all rows in one thread.

        Data workers run in parallel, and each should use one core.

        Columns of plain numbers become objects of Arrow when they are asked for.

        Raises:
            CorruptFile: A page cannot be decoded. It may have been damaged in transit: fetch it once more. A flipped
                bit is always found in files written with `write_page_checksum=True`. In other files it is found only if
                it breaks the encoding.
            UnsupportedColumn: A nested column holds more text in this row group than Arrow decodes (2 GiB), or a time
                of 96 bits does not fit nanoseconds.
            LimitReached: Memory does not suffice.
            Cancelled: The process is ending.
        """
        try:
            with self._counters.timed("decode_s"), finished_before_exit():
                row_group = self.manifest[fetched.index]
                has_views = not self._views.isdisjoint(fetched.columns)
                table = _as_of_table(decode(fetched.pages), row_group, has_views=has_views)
                return _with_constants(table, row_group, fetched.columns)
        except TimeOutOfRange as error:
            raise _time_out_of_range(self.manifest[fetched.index], error) from error
        except MemoryError as error:
            raise out_of_memory(self.manifest[fetched.index], error) from error
        except DECODE_ERRORS as error:
            row_group = self.manifest[fetched.index]
            if is_too_much_nested_text(error):
                raise _too_much_nested_text(row_group, fetched.pages) from error
            raise CorruptFile(
                f"Row group {row_group.index} of {row_group.uri} is corrupt: {error}. Write or copy the file again "
                "and scan again, or leave the file out.",
                uri=row_group.uri,
                row_group=row_group.index,
            ) from error

    def check_unchanged(self, index: int) -> None:
        """Check that a mapped file still has the manifest's version.

        Raises `SourceChanged`.
        """
        row_group = self.manifest[index]
        if self._maps_files and resolve_source(row_group.uri).is_local:
            _check_version(row_group)

    def _selected(self, row_group: RowGroup, names: tuple[str, ...]) -> _Selection:
        """Selection of columns from a row group.

        Computed once for all row groups with the same columns elsewhere.
        """
        elsewhere = tuple(name for name, *_ in row_group.constants)
        key = (names, elsewhere, row_group.stored)
        if key not in self._selections:
            tops = self._tops(names)
            there = {name: (name_there, kind) for name, _, name_there, kind in row_group.stored}
            stored = tuple(
                _path_there(name, top, *there[top]) if top in there else name
                for name, top in tops.items()
                if top not in elsewhere
            )
            self._selections[key] = _Selection(tuple(dict.fromkeys(tops.values())), stored)
        return self._selections[key]

    def _tops(self, names: tuple[str, ...]) -> dict[str, str]:
        """Column that each of `names` begins with. Raises `MissingColumn`."""
        known = frozenset(self.manifest.columns)
        top_of = {name: top_column(name, known) for name in names}
        for name in sorted(name for name, top in top_of.items() if top is None):
            raise missing_column(name, self.manifest.columns, self.manifest.root)
        tops = {name: str(top) for name, top in top_of.items()}
        if paths := [name for name, top in tops.items() if name != top]:
            types = {field.name: parse_type(field.type) for field in self.manifest.fields if field.name in known}
            for path in paths:
                require_path(path, types, self.manifest.root)
        return tops

    def _fetch_once(self, row_group: RowGroup, names: tuple[str, ...]) -> Pages:
        if not row_group.file_etag:  # with one, opening the file checks the version
            _check_version(row_group)
        known = None
        try:
            file, known = self._checked_file(row_group)
            pages, content = self._fetch_pages(row_group, names, file)
        except (OSError, CorruptFile):
            # The file was rewritten meanwhile, or storage failed: the error does not show which.
            if known is not None:
                self._opened.forget(_version(row_group))
            _check_version(row_group)
            raise
        # Once more: a file replaced during the read may have given pages of both versions.
        self._check_read(row_group, known)
        self._footers.put(_version(row_group), pages.footer, content)
        return pages

    def _fetch_pages(
        self, row_group: RowGroup, names: tuple[str, ...], opened: pa.NativeFile
    ) -> tuple[Pages, pa.Buffer | None]:
        """Fetch pages, and the footer if none is stored."""
        location = resolve_source(row_group.uri)
        with opened as file:
            content = None
            footer = self._footers.get(_version(row_group)) or self._stored_footer(row_group)
            if footer is None:
                content = fetch_footer(row_group.uri, file, self._footer_sizes)
                footer = self._decoded(row_group, content, file.size())
                _check_rows(row_group, footer.metadata)
            _check_size(row_group, footer, names, self._policy)
            local = location.is_local
            mapped = location.path if local and self._maps_files else ""
            return fetch(file, footer, row_group.index, names, local=local, mapped=mapped), content

    def _stored_footer(self, row_group: RowGroup) -> Footer | None:
        """Decode the stored footer, if it is right."""
        version = _version(row_group)
        if (content := self._footers.stored(version)) is None:
            return None
        try:
            footer = self._decoded(row_group, content, row_group.file_size)
            _check_rows(row_group, footer.metadata)
        except (CorruptFile, SourceChanged):
            self._footers.forget(version)
            return None
        return footer

    def _decoded(self, row_group: RowGroup, content: pa.Buffer, size: int) -> Footer:
        metadata = decode_footer(row_group.uri, content)
        check_chunks(row_group.uri, metadata, size)
        footer = Footer(metadata, read_codecs(content, metadata))
        key = footer.columns, row_group.stored, tuple(name for name, *_ in row_group.constants)
        if key not in self._checked:  # files of one schema share these facts
            _check_fields(row_group, metadata, self.manifest.fields)
            if footer.columns.is_shareable:
                self._checked.append(key)
        return footer

    def _checked_file(self, row_group: RowGroup) -> tuple[pa.NativeFile, Mapping[bytes, bytes] | None]:
        """Return a file of the right version, and its metadata where it is shared.

        On stores where opening is one request and holds no connection, readers share the file that a check has opened.
        """
        if not self._has_checked_files(row_group):
            return self._open(row_group), None
        file = self._opened.get(_version(row_group), partial(self._open, row_group))
        return pa.PythonFile(SharedFile(file), mode="r"), file.metadata()

    @staticmethod
    def _has_checked_files(row_group: RowGroup) -> bool:
        is_named = bool(row_group.file_etag) and not _is_content(row_group)
        return is_named and OpenFiles.keeps(resolve_source(row_group.uri))

    def _open(self, row_group: RowGroup) -> pa.NativeFile:
        self._counters.add("parquet_opens")
        file = open_input(row_group.uri)
        if row_group.file_etag and not _is_content(row_group):
            _check_etag(row_group, etag_of(resolve_source(row_group.uri), file))
        return file

    def _check_read(self, row_group: RowGroup, known: Mapping[bytes, bytes] | None) -> None:
        """Check the version after a read.

        Where that opens the file, the next reads use it. `known` is the metadata that an earlier check found.
        """
        location = resolve_source(row_group.uri)
        if not self._has_checked_files(row_group):
            _check_version(row_group)
            return
        file = open_input(row_group.uri)
        if not (etag := etag_of(location, file)):
            _check_version(row_group)
            return
        _check_etag(row_group, etag)
        self._opened.put(_version(row_group), file)
        if known is not None and known != file.metadata():  # another content, which was put back meanwhile
            raise OSError(f"{row_group.uri} was written again, and may have been another version during the read")

    def _count_retry(self) -> None:
        self._counters.add("retries")


def _path_there(path: str, top: str, name_there: str, kind_there: str) -> str:
    """Path in a file that stores column `top` otherwise.

    It ends at the struct that lacks a field of a newer table.
    """
    steps = steps_of(path, top)
    held = held_steps(parse_type(kind_there), steps)[0] if steps else []
    return ".".join([name_there, *held])


def _as_of_table(decoded: DecodedTable, row_group: RowGroup, *, has_views: bool) -> DecodedTable:
    """Rename and cast columns to the dataset's schema.

    Views become strings and binary values.
    """
    of_table = {there: (name, kind, held) for name, kind, there, held in row_group.stored if there in decoded.names}
    if not (of_table or has_views):
        return decoded
    table = decoded.to_table()
    arrays, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        name, kind, type_there = of_table.get(field.name, (field.name, "", ""))
        array = without_views(column if kind == type_there else cast_column(column, kind))
        arrays.append(array)
        fields.append(field.remove_metadata().with_name(name).with_type(array.type))
    found = pa.table(arrays, pa.schema(fields))
    return DecodedTable(found.column_names, found)


def _with_constants(table: DecodedTable, row_group: RowGroup, columns: tuple[str, ...]) -> DecodedTable:
    """Add the columns that the file does not hold.

    All are in the order of `columns`.
    """
    constants = [(name, kind, text) for name, kind, text in row_group.constants if name in columns]
    if not constants:
        return table
    return table.with_columns(
        {name: constant_array(kind, text, row_group.rows) for name, kind, text in constants}, columns
    )


def out_of_memory(row_group: RowGroup, error: MemoryError) -> LimitReached:
    """Error that a row group needs more memory than there is."""
    return LimitReached(
        f"Row group {row_group.index} of {row_group.uri} with {row_group.rows} rows needs more memory than there is "
        f"({error or 'out of memory'}), or is corrupt. {_SMALLER}, read fewer row groups at once, or give the process "
        "more memory.",
        uri=row_group.uri,
        row_group=row_group.index,
        rows=row_group.rows,
    )


_SMALLER = "Write smaller row groups (row_group_size=...), read fewer columns (columns=[...])"


def _check_size(row_group: RowGroup, footer: Footer, names: Sequence[str], policy: ReadPolicy) -> None:
    """Raise `LimitReached` for more decoded bytes than the policy allows."""
    needed, most = row_group.rows * footer.columns.row_bits(names) // 8, policy.row_group_limit()
    if needed > most:
        raise LimitReached(
            f"Row group {row_group.index} of {row_group.uri} has {row_group.rows} rows, which take at least {needed} "
            f"bytes in memory, and at most {most} are read. {_SMALLER}, or raise the limit: "
            "ReadPolicy(most_row_group_bytes=...).",
            uri=row_group.uri,
            row_group=row_group.index,
            rows=row_group.rows,
            bytes=needed,
        )


def _time_out_of_range(row_group: RowGroup, error: TimeOutOfRange) -> UnsupportedColumn:
    return UnsupportedColumn(
        f"Row group {row_group.index} of {row_group.uri}: {error}. INT96 is read as nanoseconds, which hold 1677-09-21 "
        "to 2262-04-11. Write the column as INT64 (Spark: spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS), or "
        "leave it out (columns=[...]).",
        uri=row_group.uri,
        row_group=row_group.index,
        columns=(error.column,),
    )


def _too_much_nested_text(row_group: RowGroup, pages: Pages) -> UnsupportedColumn:
    columns = nested_columns(pages)
    return UnsupportedColumn(
        f"Row group {row_group.index} of {row_group.uri} has {row_group.rows} rows, and more than 2 GiB of text in one "
        f"of its nested columns {', '.join(map(repr, columns))}: Arrow does not decode that. Write the file with fewer "
        "rows per row group (row_group_size=...) and scan again, or leave the column out (columns=[...]).",
        uri=row_group.uri,
        row_group=row_group.index,
        columns=columns,
    )


def _version(row_group: RowGroup) -> FoundFile:
    return FoundFile(
        uri=row_group.uri,
        size=row_group.file_size,
        mtime_ns=row_group.file_mtime_ns,
        etag=row_group.file_etag,
        stamp=row_group.file_stamp,
    )


def _is_content(row_group: RowGroup) -> bool:
    """Whether the content identifies the version.

    Then the file's name holds its hash, and a copy is as good.
    """
    return row_group.file_etag.startswith(CONTENT_HASH)


def _check_version(row_group: RowGroup) -> None:
    if _is_content(row_group):
        if (size := stat(row_group.uri).size) != row_group.file_size:
            raise _changed(row_group, f"has {size} bytes", size=size)
        return
    if row_group.file_etag and (etag := stat_etag(row_group.uri)):
        _check_etag(row_group, etag)
        return
    now = stat(row_group.uri)
    if (now.size, now.mtime_ns) != (row_group.file_size, row_group.file_mtime_ns):
        raise _changed(
            row_group, f"has {now.size} bytes, modified at {now.mtime_ns} ns", size=now.size, mtime_ns=now.mtime_ns
        )
    if row_group.file_stamp not in ("", now.stamp):
        raise _changed(
            row_group,
            "has the same size and time, but was replaced, or its mode, owner or links were changed: its inode and the "
            f"time of its last change are {now.stamp} and were {row_group.file_stamp}. Copies on several nodes differ "
            "in them, too: those are read with manifest.for_copies()",
            stamp=now.stamp,
        )


def _check_etag(row_group: RowGroup, etag: str) -> None:
    """Compare the etag with the manifest.

    Times of object stores are whole seconds, so only it separates versions of one second.
    """
    if etag and etag != row_group.file_etag:
        raise _changed(row_group, f"is version {etag}, and was {row_group.file_etag}", etag=etag)


def _check_rows(row_group: RowGroup, footer: pq.FileMetaData) -> None:
    """Compare the row count with the manifest.

    In stores without modification times, this finds some rewrites of equal size.
    """
    groups = footer.num_row_groups
    rows = footer.row_group(row_group.index).num_rows if row_group.index < groups else None
    if rows != row_group.rows:
        raise _changed(
            row_group, f"has {groups} row groups; number {row_group.index} has {rows or 'no'} rows", rows=rows
        )


def _check_fields(row_group: RowGroup, footer: pq.FileMetaData, fields: tuple[Field, ...]) -> None:
    """Compare the columns with the manifest.

    Every file of a dataset has each column once, with one type.
    """
    found: dict[str, list[str]] = {}
    for field in fields_of(read_schema(row_group.uri, footer)):
        found.setdefault(field.name, []).append(field.type)
    elsewhere = {name for name, *_ in row_group.constants}
    stored = {name: (there, type_there) for name, _, there, type_there in row_group.stored}
    for field in fields:
        if field.name in elsewhere:
            continue
        name, kind = stored.get(field.name, (field.name, field.type))
        types = found.get(name, [])
        if types != [kind]:
            raise _changed(row_group, f"has column {name!r} as {', '.join(types) or 'nothing'}, not {kind}")


def _changed(row_group: RowGroup, now: str, **facts: object) -> SourceChanged:
    return SourceChanged(
        f"{row_group.uri} changed since the scan: the manifest has {row_group.file_size} bytes, modified at "
        f"{row_group.file_mtime_ns} ns, with {row_group.rows} rows in row group {row_group.index}; now the file {now}. "
        "Scan again, and build the plan from the new manifest.",
        uri=row_group.uri,
        row_group=row_group.index,
        found=facts,
    )
