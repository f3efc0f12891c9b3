"""Scan Parquet files into a manifest.

Reads all footers, no pages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial

import numpy as np

from forebay.data.filters.filtering import CandidateRows, masked
from forebay.data.filters.skipping import RowName, without_rows
from forebay.data.filters.where import Where
from forebay.data.manifest.manifest import Field, File, Manifest, check_rows
from forebay.data.parquet.footer import FooterCache
from forebay.data.parquet.footer_facts import FooterFacts
from forebay.data.parquet.footer_store import FooterStore
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.parquet.schemas import Agreement, agree, selected_columns
from forebay.data.parquet.type_promotion import is_same_parquet_type
from forebay.data.sources.dataset_files import Sources, find_sources
from forebay.data.sources.file_columns import Scanned, retyped, with_absent
from forebay.data.sources.file_scan import FileScan
from forebay.data.sources.parquet_files import Uri
from forebay.errors import NoFiles, ReadFailed, validate_type
from forebay.runtime.threads import each_in_threads
from forebay.storage.credentials import Access
from forebay.storage.deadline import Cancellation
from forebay.storage.filesystem import path_below
from forebay.storage.retry import DEFAULT_POLICY, REMEDY, ReadPolicy, read

log = logging.getLogger(__name__)

_MOST_THREADS = 16
_STORED_AT_ONCE = 1000

Progress = Callable[[int, int], None]


def scan(  # noqa: PLR0913 - public options, all but three keyword-only
    uri: Uri | Sequence[Uri],
    columns: Sequence[str] | None = None,
    *,
    where: str | None = None,
    skip: Iterable[RowName] = (),
    version: int | None = None,
    allow_locations: Uri | Sequence[Uri] = (),
    partitions: bool = True,
    partition_types: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    policy: ReadPolicy = DEFAULT_POLICY,
    footers: str | os.PathLike[str] | bool = True,
) -> Manifest:
    """List the row groups of Parquet files.

    Footers are read in parallel, and row groups sorted by (path, row group).

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
        allow_locations: Folders and files outside of the folder of a table that the table may name, as a shallow clone
            does, or an Iceberg table after `add_files`. Without these, a table reads nothing but its own folder.
        partitions: Whether folders named `key=value` below the root are columns: int64, date32 or string, whichever
            holds all values as they are written. `007` is no int64.
        partition_types: Types of such columns, by name: `{"day": "string", "hour": "int32"}`.
        progress: Called with (files done, number of files), from the calling thread. Then, with `where`, with the same
            of row groups.
        policy: Attempts, deadline and waits of each footer.
        footers: Folder of a node's cache, as in `CacheSpec`. Beside it, the footers of unchanged files are kept for the
            next scan. True for `~/.cache/forebay`. False reads every footer from its file.

    Raises:
        NoFiles: No file with rows was found, or the filter leaves none.
        MixedSchemas, MissingColumn: The files disagree on a selected column, or none has it. Types that one type holds
            without loss do not disagree: a warning names them.
        CorruptFile: A footer cannot be decoded.
        ReadFailed: Storage kept failing.
        NotPlainParquet: The files belong to a Hudi table, or are a part of a Delta Lake or Iceberg table.
        MissingPackage: A Delta Lake table is read by the package deltalake, an Iceberg table by pyiceberg.
        InvalidOption: The filter, the selection or the version can never work, a partition column is also in the
            files, or a table names files outside of its folder and of `allow_locations`.
    """
    selection = selected_columns(columns)
    row_filter = None if where is None else Where(where)
    sources = find_sources(
        uri,
        policy,
        version=version,
        partitions=partitions,
        partition_types=partition_types,
        allow_locations=allow_locations,
    )
    if selection is None and sources.table is not None:
        selection = tuple(field.name for field in sources.table)
    with _opened(footers) as store:
        file_scan = FileScan(sources=sources, columns=selection, where=row_filter, store=store)
        scanned = _scan_all(file_scan, progress, policy)
        with_rows = with_absent([one for one in scanned if one.has_rows], sources)
        if not with_rows:
            raise NoFiles(
                f"{sources.description}: none of the {len(scanned)} files has a row. Name files that have.",
                files=len(scanned),
            )
        agreed, compared, with_rows = _agreed(with_rows, sources, selection, row_filter)
        manifest, rows = _manifest(sources, with_rows, agreed.fields)
        check_rows(manifest)
        filtered = masked(
            manifest,
            rows,
            row_filter,
            compared.fields,
            make_reader=partial(RowGroupReader, policy=policy, footers=FooterCache(file_scan.store)),
            progress=progress,
        )
        return without_rows(filtered, skip, manifest)


@contextmanager
def _opened(footers: str | os.PathLike[str] | bool) -> Iterator[FooterStore | None]:
    validate_type("footers", footers, bool | str | os.PathLike, "the folder of a cache, True or False")
    if footers is False:
        yield None
        return
    with closing(FooterStore(None if footers is True else os.fspath(footers))) as store:
        yield store


def _scan_all(file_scan: FileScan, progress: Progress | None, policy: ReadPolicy) -> list[Scanned]:
    files = file_scan.sources.files
    found: dict[int, Scanned] = {}

    def add(number: int, scanned: Scanned) -> None:
        found[number] = scanned
        if progress is not None:
            progress(len(found), len(files))

    unread: dict[int, FooterFacts | None] = {}
    for number, source in enumerate(files):
        facts = file_scan.stored_facts(source)
        scanned = file_scan.from_facts(source, facts) if facts else None
        if scanned is None:
            unread[number] = facts
        else:
            add(number, scanned)
    if unread:
        _read_all(file_scan, unread, add, policy)
    return [found[number] for number in range(len(files))]


def _read_all(
    file_scan: FileScan,
    unread: Mapping[int, FooterFacts | None],
    add: Callable[[int, Scanned], None],
    policy: ReadPolicy,
) -> None:
    """Scan files by their footers, in threads."""
    cancelled = Cancellation()

    def attempt(number: int) -> Scanned:
        source = file_scan.sources.files[number]
        file = source.file
        try:
            return read(file.uri, partial(file_scan.from_file, source, unread[number]), policy, cancelled)
        except FileNotFoundError as error:
            raise ReadFailed(
                f"{file.uri} was listed but no longer exists: {error}. Scan again.", what=file.uri
            ) from error
        except PermissionError as error:
            raise ReadFailed(f"{file.uri} was listed but may not be read: {error}. {REMEDY}", what=file.uri) from error

    numbers = list(unread)
    try:
        for index, scanned in each_in_threads(attempt, numbers, most=_MOST_THREADS, name="forebay-scan"):
            add(numbers[index], scanned)
            file_scan.put_new(_STORED_AT_ONCE)
    finally:
        # After an error or Ctrl-C: do not wait for the other footers.
        cancelled.set()
        file_scan.put_new()


def _agreed(
    scanned: list[Scanned], sources: Sources, selection: tuple[str, ...] | None, row_filter: Where | None
) -> tuple[Agreement, Agreement, list[Scanned]]:
    """Agree on the types of selected and compared columns.

    Returns both, and the files with these types.
    """
    schemas = [one.schema for one in scanned]
    table = {field.name: field for field in sources.table or () if sources.ids is None}
    agreed = agree(schemas, selection, table)
    names = {field.name for schema in schemas for field in schema.fields}
    compared = agree(schemas, row_filter.tops(names) if row_filter else (), table)
    if types := agreed.types | compared.types:
        _say({**compared.promoted, **agreed.promoted}, types)
        scanned = [retyped(one, types) for one in scanned]
    return agreed, compared, scanned


def _say(promoted: Mapping[str, Sequence[str]], types: Mapping[str, str]) -> None:
    """Warn of columns with narrower types or other zones in some files.

    Other hints of Arrow say nothing about values.
    """
    for name, there in promoted.items():
        if any("tz=" in each or not is_same_parquet_type(each, types[name]) for each in there):
            found = " and ".join(there)
            log.warning("Column %r is %s in different files, and is read as %s.", name, found, types[name])


def _manifest(sources: Sources, kept: list[Scanned], fields: tuple[Field, ...]) -> tuple[Manifest, CandidateRows]:
    """Manifest of all rows, and the filter's candidates."""
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
                stamp=one.file.stamp,
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
        notes=sources.notes,
    )
    return manifest, CandidateRows([mask for _, one in files for mask in one.live()], groups[5] > 0)


def _relative(uri: str, root: str) -> str:
    """Path below the root, as in `Manifest.uri_of`."""
    return path_below(uri, root) if root else uri
