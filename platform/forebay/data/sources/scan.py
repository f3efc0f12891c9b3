"""Scans Parquet files into a manifest: reads all footers, no pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from forebay.data.filters.filtering import CandidateRows, masked
from forebay.data.filters.skipping import RowName, without_rows
from forebay.data.filters.where import Where
from forebay.data.manifest.manifest import Field, File, Manifest
from forebay.data.parquet.footer import check_chunks, check_types, decode_footer, fetch_footer
from forebay.data.parquet.schemas import agree, leaves, read_schema, selected_columns
from forebay.data.parquet.statistics import check_statistics
from forebay.data.sources.parquet_files import Uri
from forebay.data.sources.scanned import Scanned, file_columns, with_absent
from forebay.data.sources.sources import SourceFile, Sources, find_sources
from forebay.errors import CorruptFile, InvalidOption, NoFiles, ReadFailed
from forebay.storage.credentials import Access
from forebay.storage.deadline import Cancellation
from forebay.storage.filesystem import path_below, resolve_source
from forebay.storage.retry import DEFAULT_POLICY, REMEDY, ReadPolicy, read
from forebay.storage.versions import etag_of

_MOST_THREADS = 16
_MOST = 1 << 53
"""Limit for the rows and bytes of a row group. Larger numbers are a sign of corruption."""

Progress = Callable[[int, int], None]


def scan(  # noqa: PLR0913 - public options, all but three keyword-only
    uri: Uri | Sequence[Uri],
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    skip: Iterable[RowName] = (),
    version: int | None = None,
    partitions: bool = True,
    progress: Progress | None = None,
    policy: ReadPolicy = DEFAULT_POLICY,
) -> Manifest:
    """Read the footers of Parquet files in parallel and list their row groups, sorted by (path, row group).

    Files and row groups without rows are skipped, and their schemas do not matter.

    Args:
        uri: A file, a folder, a pattern (`data/day=*/*.parquet`), or a sequence of these, on any known file system. Or
            the folder of a Delta Lake table (needs `forebay[delta]`), or an Iceberg table (needs `forebay[iceberg]`):
            `iceberg://CATALOG/NAMESPACE.TABLE`, or its metadata file. Rows that a table has deleted do not count.
        columns: The columns to train on, in order. None for all. Other columns may differ between files.
        where: A row filter, such as `"label is not None and day >= '2024-01-31'"`. Reads the columns that it compares
            once. Only rows for which it is true belong to the dataset. See `docs/reading.md`.
        skip: Names of rows that are left out, such as `day=1/a.parquet:3:128` or `day=1/a.parquet:3:128..223`: what
            `batch.rows()` has and `forebay rows` prints. See `docs/rows.md`.
        version: Version of a Delta Lake table, or id of a snapshot of an Iceberg table. None for the newest one, which
            the manifest then pins.
        partitions: Whether folders named `key=value` below the root are columns: int64, date32 or string, whichever
            holds all values.
        progress: Called with (files done, number of files), from the calling thread. Then, with `where`, with the same
            of row groups.
        policy: Attempts, deadline and waits of each footer.

    Raises:
        NoFiles: No file with rows was found, or or the filter leaves none.
        MixedSchemas, MissingColumn: The files disagree on a selected column, or none has it.
        CorruptFile: A footer cannot be decoded.
        ReadFailed: Storage kept failing.
        NotPlainParquet: The files belong to a Hudi table, or are a part of a Delta Lake or Iceberg table.
        MissingPackage: A Delta Lake table is read by the package deltalake, an Iceberg table by pyiceberg.
        InvalidOption: The filter, the selection or the version can never work, or a partition column is
            also in the files.
    """
    selection = selected_columns(columns)
    row_filter = None if where is None else Where(where)
    sources = find_sources(uri, policy, version=version, partitions=partitions)
    if selection is None and sources.table is not None:
        selection = tuple(field.name for field in sources.table)
    scan_file = partial(_scan_file, sources=sources, columns=selection, where=row_filter)
    scanned = _scan_all(sources.files, scan_file, progress, policy)
    with_rows = with_absent([one for one in scanned if one.has_rows], sources)
    if not with_rows:
        raise NoFiles(
            f"{sources.place}: none of the {len(scanned)} files has a row. Name files that have.",
            files=len(scanned),
        )
    schemas = [one.schema for one in with_rows]
    fields = agree(schemas, selection)
    manifest, rows = _manifest(sources, with_rows, fields)
    names = {field.name for schema in schemas for field in schema.fields}
    filter_fields = agree(schemas, row_filter.tops(names)) if row_filter else ()
    filtered = masked(manifest, rows, row_filter, filter_fields, policy=policy, progress=progress)
    return without_rows(filtered, skip, manifest)


def _scan_all(
    files: Sequence[SourceFile],
    scan_file: Callable[[SourceFile], Scanned],
    progress: Progress | None,
    policy: ReadPolicy,
) -> list[Scanned]:
    cancelled = Cancellation()

    def attempt(source: SourceFile) -> Scanned:
        file = source.file
        try:
            return read(file.uri, partial(scan_file, source), policy, cancelled)
        except FileNotFoundError as error:
            raise ReadFailed(
                f"{file.uri} was listed but no longer exists: {error}. Scan again.", what=file.uri
            ) from error
        except PermissionError as error:
            raise ReadFailed(f"{file.uri} was listed but may not be read: {error}. {REMEDY}", what=file.uri) from error

    threads = min(_MOST_THREADS, len(files))
    with ThreadPoolExecutor(threads, thread_name_prefix="forebay-scan") as pool:
        futures = [pool.submit(attempt, file) for file in files]
        try:
            _report(futures, progress)
            return [future.result() for future in futures]
        finally:
            # After an error or Ctrl-C: leave the pool at once, without waiting for the other footers.
            cancelled.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _report(futures: list[Future[Scanned]], progress: Progress | None) -> None:
    for done, future in enumerate(as_completed(futures), start=1):
        future.result()
        if progress is not None:
            progress(done, len(futures))


def _scan_file(
    source: SourceFile,
    *,
    sources: Sources,
    columns: tuple[str, ...] | None,
    where: Where | None,
) -> Scanned:
    file = source.file
    location = resolve_source(file.uri)
    with location.fs.open_input_file(location.path) as opened:
        file = replace(file, etag=file.etag or etag_of(location, opened))
        footer_bytes = fetch_footer(file.uri, opened)
    footer = decode_footer(file.uri, footer_bytes)
    schema = read_schema(file.uri, footer)
    selected = None if columns is None else {*columns, *_compared(where, source, schema, sources)}
    found = file_columns(source, schema, sources, selected)
    check_chunks(file.uri, footer, file.size)
    may_match = set(range(footer.num_row_groups))
    if where is not None and footer.num_rows:
        check_types(file.uri, footer)
        check_statistics(file.uri, footer_bytes, footer)
        bounds = where.bounds(found.kinds(footer.schema.to_arrow_schema()), file.uri)
        may_match = _may_match(file.uri, footer_bytes, bounds)
    names = None if columns is None else found.names_in_file(columns)
    groups = [(*facts, int(facts[0] in may_match)) for facts in _measure(footer, names)]
    if not all(0 <= count < _MOST for facts in groups for count in facts):
        raise CorruptFile(
            f"{file.uri} is corrupt: its footer counts rows or bytes below 0, or impossibly many. Write or copy the "
            "file again, or leave it out.",
            uri=file.uri,
        )
    return Scanned(
        file=file,
        columns=found,
        num_rows=footer.num_rows,
        groups=np.array(groups, dtype=np.int64).reshape(-1, 6).T,
        deleted=source.deleted,
    )


def _compared(where: Where | None, source: SourceFile, schema: pa.Schema, sources: Sources) -> tuple[str, ...]:
    """Columns that a filter compares, or of which it compares a field."""
    if where is None:
        return ()
    if sources.table is not None:
        return where.tops(field.name for field in sources.table)
    return where.tops([*schema.names, *(name for name, _ in source.constants)])


def _measure(footer: pq.FileMetaData, columns: Sequence[str] | None) -> list[tuple[int, ...]]:
    """Number, rows, bytes, source bytes and first row in the file of each row group that has rows."""
    chunks = range(footer.num_columns) if columns is None else leaves(footer, columns)
    all_rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    first_rows = list(accumulate(all_rows, initial=0))
    facts: list[tuple[int, ...]] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        if group.num_rows:
            sizes = [
                (chunk.total_uncompressed_size, chunk.total_compressed_size) for chunk in map(group.column, chunks)
            ]
            uncompressed, compressed = (sum(each) for each in zip(*sizes, strict=True)) if sizes else (0, 0)
            facts.append((number, group.num_rows, uncompressed, compressed, first_rows[number]))
    return facts


def _may_match(uri: str, footer: pa.Buffer, bounds: pc.Expression) -> set[int]:
    """Indices of the row groups whose statistics do not rule out a match."""
    fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(footer))
    try:
        return {group.id for group in fragment.subset(filter=bounds).row_groups}
    except pa.ArrowException as error:
        raise InvalidOption(
            f"where= does not fit the columns of {uri}: {error}. Compare each column with a value of its own type.",
            uri=uri,
        ) from error


def _manifest(sources: Sources, kept: list[Scanned], fields: tuple[Field, ...]) -> tuple[Manifest, CandidateRows]:
    """Manifest of all rows, and those that a filter may keep."""
    files = [(_relative(one.file.uri, sources.root), one) for one in kept]
    files.sort(key=lambda pair: pair[0])
    groups = np.concatenate([one.groups for _, one in files], axis=1)
    manifest = Manifest(
        root=sources.root,
        files=tuple(
            File(
                path=path,
                size=one.file.size,
                mtime_ns=one.file.mtime_ns,
                etag=one.file.etag,
                constants=one.columns.constants,
                stored=one.columns.stored,
            )
            for path, one in files
        ),
        fields=fields,
        columns=tuple(field.name for field in fields),
        file_of=np.repeat(np.arange(len(files)), [one.groups.shape[1] for _, one in files]),
        group_of=groups[0],
        rows=groups[1],
        bytes=groups[2],
        source_bytes=groups[3],
        access=Access([sources.root] if sources.root else [path for path, _ in files]),
        snapshot=sources.snapshot,
    )
    return manifest, CandidateRows([mask for _, one in files for mask in one.live()], groups[5] > 0)


def _relative(uri: str, root: str) -> str:
    """Path of a file below the root, as `Manifest.uri_of` expects it."""
    return path_below(uri, root) if root else uri
