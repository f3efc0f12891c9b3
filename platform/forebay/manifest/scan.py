"""Scans Parquet files into a manifest: reads all footers, no pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.errors import CorruptFile, InvalidOption, NoFiles, ReadFailed
from forebay.manifest.footer import check_chunks, check_types, decode_footer, fetch_footer
from forebay.manifest.manifest import Field, File, Manifest
from forebay.manifest.rows.filtering import filtered
from forebay.manifest.rows.where import Where
from forebay.manifest.schemas import FileSchema, agree, leaves, missing_column, read_fields
from forebay.manifest.statistics import check_statistics
from forebay.storage.credentials import Access
from forebay.storage.filesystem import resolve_source
from forebay.storage.listing.parquet_files import Uri, find_parquet
from forebay.storage.retry import DEFAULT_POLICY, REMEDY, ReadPolicy, read
from forebay.storage.versions import FoundFile, etag_of

_MOST_THREADS = 16
_MOST = 1 << 53
"""Limit for the rows and bytes of a row group. Larger numbers are a sign of corruption."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Scanned:
    """Facts of one footer.

    `groups` is int64 [5, n]: number, rows, bytes, source bytes of each row group, and 0 if the filter is true for none
    of its rows according to its statistics.
    """

    file: FoundFile
    schema: FileSchema
    has_rows: bool
    groups: NDArray[np.int64]


def scan(
    uri: Uri | Sequence[Uri],
    columns: Sequence[str] | None = None,
    predicate: pc.Expression | None = None,
    *,
    where: str | None = None,
    progress: Progress | None = None,
    policy: ReadPolicy = DEFAULT_POLICY,
) -> Manifest:
    """Read the footers of Parquet files in parallel and list their row groups, sorted by (path, row group).

    Files and row groups without rows are skipped, and their schemas do not matter.

    Args:
        uri: A file, a folder, a pattern (`data/day=*/*.parquet`), or a sequence of these, on any known file system.
        columns: The columns to train on, in order. None for all. Other columns may differ between files.
        predicate: An expression such as `pyarrow.compute.field("day") >= 20`. Leaves out a row group if its statistics
            show that the predicate is true for none of its rows. Rows inside the other row groups are not filtered.
        where: A row filter, such as `"label is not None and day >= '2024-01-31'"`. Reads the columns that it compares
            once. Only rows for which it is true belong to the data set. See `docs/filters.md`.
        progress: Called with (files done, number of files), from the calling thread. Then, with `where`, with the same
            of row groups.
        policy: Attempts, deadline and waits of each footer.

    Raises:
        NoFiles: No file with rows was found, or the predicate or the filter leaves none.
        MixedSchemas, MissingColumn: The files disagree on a selected column, or none has it.
        CorruptFile: A footer cannot be decoded.
        ReadFailed: Storage kept failing.
        NotPlainParquet: The files belong to a Delta Lake, Iceberg or Hudi table.
        InvalidOption: The predicate, the filter or the selection can never work.
    """
    selection = _check_columns(columns)
    if predicate is not None and not isinstance(predicate, pc.Expression):
        raise InvalidOption(
            f'predicate={predicate!r} is not a pyarrow expression. Write it as pyarrow.compute.field("day") >= 20.'
        )
    row_filter = None if where is None else Where(where)
    listing = find_parquet(uri, policy)
    scan_file = partial(_scan_file, columns=selection, predicate=predicate, where=row_filter)
    scanned = _scan_all(listing.files, scan_file, progress, policy)
    place = listing.root or f"{len(listing.files)} files without a common folder"
    with_rows = [one for one in scanned if one.has_rows]
    if not with_rows:
        raise NoFiles(
            f"{place}: none of the {len(scanned)} files has a row. Name files that have.",
            files=len(scanned),
        )
    fields = agree([one.schema for one in with_rows], selection)
    kept = [one for one in with_rows if one.groups.shape[1]]
    if not kept:
        raise NoFiles(
            f"{place}: predicate {predicate} leaves no row group of {len(with_rows)} files with rows. "
            "Loosen it, or check its values.",
            predicate=str(predicate),
        )
    manifest, may_match = _manifest(listing.root, kept, fields)
    if row_filter is None:
        return manifest
    return filtered(
        manifest,
        row_filter,
        agree([one.schema for one in with_rows], row_filter.columns),
        may_match=may_match,
        policy=policy,
        progress=progress,
    )


def _check_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, AbstractSet):
        raise InvalidOption(f"columns={columns!r} has no order, and every process would make another one. Give a list.")
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or len(set(names)) < len(names):
        raise InvalidOption(f"columns={columns!r}: select at least one column, and each once; None selects all.")
    return names


def _scan_all(
    files: Sequence[FoundFile],
    scan_file: Callable[[FoundFile], _Scanned],
    progress: Progress | None,
    policy: ReadPolicy,
) -> list[_Scanned]:
    cancelled = threading.Event()

    def attempt(file: FoundFile) -> _Scanned:
        try:
            return read(file.uri, partial(scan_file, file), policy, cancelled)
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


def _report(futures: list[Future[_Scanned]], progress: Progress | None) -> None:
    for done, future in enumerate(as_completed(futures), start=1):
        future.result()
        if progress is not None:
            progress(done, len(futures))


def _scan_file(
    file: FoundFile, *, columns: tuple[str, ...] | None, predicate: pc.Expression | None, where: Where | None
) -> _Scanned:
    location = resolve_source(file.uri)
    with location.fs.open_input_file(location.path) as opened:
        file = replace(file, etag=file.etag or etag_of(location, opened))
        footer_bytes = fetch_footer(file.uri, opened)
    footer = decode_footer(file.uri, footer_bytes)
    schema = FileSchema(file.uri, read_fields(file.uri, footer))
    check_chunks(file.uri, footer, file.size)
    kept: Sequence[int] = range(footer.num_row_groups)
    may_match = set(kept)
    if (predicate is not None or where is not None) and footer.num_rows:
        check_types(file.uri, footer)
        check_statistics(file.uri, footer_bytes, footer)
        kept = kept if predicate is None else _survivors(schema, footer_bytes, predicate)
        if where is not None:
            kinds = {each.name: each.type for each in footer.schema.to_arrow_schema()}
            may_match = set(_survivors(schema, footer_bytes, where.expression(kinds, file.uri)))
    groups = [(*facts, int(facts[0] in may_match)) for facts in _measure(footer, kept, columns)]
    if not all(0 <= count < _MOST for facts in groups for count in facts):
        raise CorruptFile(
            f"{file.uri} is corrupt: its footer counts rows or bytes below 0, or impossibly many. Write or copy the "
            "file again, or leave it out.",
            uri=file.uri,
        )
    return _Scanned(file, schema, footer.num_rows > 0, np.array(groups, dtype=np.int64).reshape(-1, 5).T)


def _measure(footer: pq.FileMetaData, kept: Sequence[int], columns: tuple[str, ...] | None) -> list[tuple[int, ...]]:
    """Number, rows, bytes and source bytes of each row group that has rows."""
    chunks = range(footer.num_columns) if columns is None else leaves(footer, columns)
    facts: list[tuple[int, ...]] = []
    for number in kept:
        group = footer.row_group(number)
        if group.num_rows:
            sizes = [
                (chunk.total_uncompressed_size, chunk.total_compressed_size) for chunk in map(group.column, chunks)
            ]
            facts.append((number, group.num_rows, sum(size for size, _ in sizes), sum(size for _, size in sizes)))
    return facts


def _survivors(schema: FileSchema, footer: pa.Buffer, predicate: pc.Expression) -> list[int]:
    fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(footer))
    try:
        return [group.id for group in fragment.subset(filter=predicate).row_groups]
    except pa.ArrowException as error:
        if "No match for FieldRef" in str(error):
            name = str(error).partition("FieldRef.Name(")[2].partition(")")[0]
            raise missing_column(name, [field.name for field in schema.fields], schema.uri) from error
        raise InvalidOption(
            f"predicate {predicate} does not fit the columns of {schema.uri}: {error}. Compare each column with a "
            "value of its own type.",
            predicate=str(predicate),
            uri=schema.uri,
        ) from error


def _manifest(root: str, kept: list[_Scanned], fields: tuple[Field, ...]) -> tuple[Manifest, NDArray[np.bool_]]:
    """Manifest, and whether the filter may be true for a row of each row group, bool [row groups]."""
    files = [(_relative(one.file.uri, root), one) for one in kept]
    files.sort(key=lambda pair: pair[0])
    groups = np.concatenate([one.groups for _, one in files], axis=1)
    manifest = Manifest(
        root=root,
        files=tuple(
            File(path=path, size=one.file.size, mtime_ns=one.file.mtime_ns, etag=one.file.etag) for path, one in files
        ),
        fields=fields,
        columns=tuple(field.name for field in fields),
        file_of=np.repeat(np.arange(len(files)), [one.groups.shape[1] for _, one in files]),
        group_of=groups[0],
        rows=groups[1],
        bytes=groups[2],
        source_bytes=groups[3],
        access=Access([root] if root else [path for path, _ in files]),
    )
    return manifest, groups[4] > 0


def _relative(uri: str, root: str) -> str:
    """Path of a file below the root, as `Manifest.uri_of` expects it."""
    if not root:
        return uri
    folder, mark, options = root.partition("?") if "://" in root else (root, "", "")
    return uri[len(folder) :].removesuffix(mark + options).lstrip("/")
