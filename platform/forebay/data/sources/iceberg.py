"""Snapshots of Iceberg tables, read by the package pyiceberg."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.data.parquet.schemas import fields_of
from forebay.data.sources.deletion_vectors import FRAME_BYTES, MOST_BYTES, framed_spans
from forebay.data.sources.field_ids import FieldIds
from forebay.data.sources.lake_table import LakeFile, LakeTable, errors_of_content, refuse_twice, stat_files
from forebay.data.sources.partitions import Values
from forebay.errors import ForebayError, InvalidOption, NoFiles
from forebay.runtime.extras import extra_package
from forebay.runtime.foreign_code import replaced_errors
from forebay.storage.arrow_stores import ARROW_SCHEMES
from forebay.storage.atomic import is_there, read_small
from forebay.storage.boundary import SAME_STORE, Boundary, check_stored_uri
from forebay.storage.filesystem import Location, below, resolve_source
from forebay.storage.globs import children
from forebay.storage.retry import ReadPolicy, read

T = TypeVar("T")

_SCHEME = "iceberg://"
_METADATA = ".metadata.json"
_HINT = "metadata/version-hint.text"
_HINTED = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_NUMBER = re.compile(r"v?(\d+)")
# The deadline covers one call, but a plan reads every manifest of a snapshot.
_PATIENCE = 10
_OTHER = "Choose another snapshot, or repair its schema."
_VECTOR, _REFERENCED = "deletion-vector-v1", "referenced-data-file"
_MOST_PUFFIN_BYTES = 1 << 30
_MOST_HINT_BYTES = 1 << 12
_REWRITE = (
    "Rewrite the table's files (in Spark: CALL system.rewrite_data_files(table => '...', options => "
    "map('delete-file-threshold', '1'))), and scan the new snapshot."
)


def names_iceberg_table(uri: str) -> bool:
    """Whether `uri` names an Iceberg table.

    It names the table of a catalog, or a metadata file.
    """
    return uri.startswith(_SCHEME) or uri.endswith(_METADATA)


def iceberg_table(uri: str, version: int | None, policy: ReadPolicy, allowed: tuple[Location, ...] = ()) -> LakeTable:
    """Files of one snapshot of an Iceberg table.

    By default the current one of the table at `uri`.

    Args:
        uri: `iceberg://CATALOG/NAMESPACE.TABLE` with a catalog of pyiceberg's configuration, a metadata file
            (`.../00003-<uuid>.metadata.json`), or the folder of a table whose `metadata/version-hint.text` names one.
        version: Id of a snapshot.
        policy: Attempts, deadline and waits of each read.
        allowed: Locations outside of the folder of the table that it may name.

    Raises:
        MissingPackage: pyiceberg is missing or too old.
        InvalidOption: There is no such table or snapshot, pyiceberg cannot read it, it has equality deletes, or it
            names files twice or outside of its folder and of the `allowed` locations.
        NoFiles: The snapshot has no row.
        ReadFailed: Storage kept failing.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise InvalidOption(f"version={version!r}: give the id of a snapshot of the table, a whole number.")
    uri = uri if uri.startswith(_SCHEME) else resolve_source(uri).uri  # without credentials, which errors would show
    patient = replace(policy, deadline_s=policy.deadline_s * _PATIENCE)
    table, boundary = _call(f"The Iceberg table {uri}", "be opened", partial(_open, uri, allowed), patient)
    snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if snapshot is None and version is not None:
        known = [each.snapshot_id for each in table.snapshots()]
        raise InvalidOption(
            f"The Iceberg table {uri} has no snapshot {version}: it never had, or it was expired. Its newest are "
            f"{', '.join(map(str, known[-5:])) or 'none'}; the current one needs no version=.",
            uri=uri,
            version=version,
        )
    scan = table.scan(snapshot_id=version)
    name = f"snapshot {snapshot.snapshot_id if snapshot else '(none)'} of the Iceberg table {uri}"
    tasks = _call(name, "be planned", lambda: list(scan.plan_files()), patient, _REWRITE) if snapshot else []
    if not tasks:
        raise NoFiles(f"{name} has no row. Choose another snapshot.", uri=uri)
    schema = _call(name, "be read", lambda: _small(scan.projection().as_arrow()), patient, _OTHER)
    uris = [boundary.uri_of(_parquet(task, name), is_encoded=False) for task in tasks]
    for path in {delete.file_path for task in tasks for delete in task.delete_files}:
        boundary.uri_of(path, is_encoded=False)
    refuse_twice(uris, name)
    files = stat_files(uris, name, policy)
    deleted = _deleted(tasks, name, boundary, policy)
    names = {field.field_id: field.name for field in scan.projection().fields}
    constants = [_identity_partitions(table.specs()[task.file.spec_id], task.file, names, schema) for task in tasks]
    return LakeTable(
        files=tuple(
            LakeFile(file, each, deleted.get(task.file.file_path))
            for file, each, task in zip(files, constants, tasks, strict=True)
        ),
        fields=fields_of(schema),
        partitions=(),
        snapshot=f"iceberg {snapshot.snapshot_id}",
        ids=_call(name, "be read", lambda: _field_ids(table, scan.projection(), schema), patient, _OTHER),
        root=boundary.root.uri,
    )


def _call(what: str, verb: str, call: Callable[[], T], policy: ReadPolicy, remedy: str = "") -> T:
    """Call pyiceberg, and retry if storage fails.

    Raises `InvalidOption` for errors of pyiceberg and its catalogs.
    """

    def as_ours(error: Exception) -> Exception:
        if isinstance(error, ForebayError) or (isinstance(error, OSError) and not isinstance(error, FileNotFoundError)):
            return error
        text = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:300]
        return InvalidOption(f"{what} cannot {verb} ({text}). {remedy or 'Check its name and its catalog.'}")

    def attempt() -> T:
        with replaced_errors(as_ours):
            return call()

    return read(what, attempt, policy)


def _open(uri: str, allowed: tuple[Location, ...]) -> tuple[Any, Boundary]:
    """Table of pyiceberg, and the folders that its files must be in."""
    with extra_package("pyiceberg", f"{uri} is an Iceberg table, which"):
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        from forebay.data.sources.iceberg_io import BoundedIO, static_table, table_of_catalog  # noqa: PLC0415
    what = f"The Iceberg table {uri}"
    if uri.startswith(_SCHEME):
        catalog, _, name = uri.removeprefix(_SCHEME).partition("/")
        if not (catalog and "." in name):
            raise InvalidOption(f"{uri} names no table. Write it as {_SCHEME}CATALOG/NAMESPACE.TABLE.", uri=uri)
        table = table_of_catalog(load_catalog(catalog), name)
        root = _folder_of(_uri(table.metadata_location))
        check_stored_uri(root, what, None, allowed)
        boundary = Boundary(table=what, root=resolve_source(root), allowed=allowed)
        table.io = BoundedIO(boundary, table.io)
        return table, boundary
    location = resolve_source(uri)
    if "?" in location.uri and not location.is_local:
        raise InvalidOption(
            f"{location.uri} has options. pyiceberg reads the metadata of a table, with the settings of a store from "
            f"its own configuration. Set these, and give a URI without options, or {_SCHEME}CATALOG/NAMESPACE.TABLE.",
            uri=location.uri,
        )
    metadata = location.uri if uri.endswith(_METADATA) else _current_metadata(location.uri)
    root = _folder_of(metadata) if uri.endswith(_METADATA) else location.uri
    boundary = Boundary(table=what, root=resolve_source(root), allowed=allowed)
    return static_table(metadata, boundary), boundary


def _folder_of(metadata: str) -> str:
    """Folder of the table of a metadata file.

    What the file says about it may be any other.
    """
    folder = metadata.rpartition("/")[0]
    return folder.removesuffix("/metadata") or "/"


def _current_metadata(root: str) -> str:
    """Metadata file that the hint of a folder names. Raises `InvalidOption`."""
    _refuse_unnamed(root)
    hint = read_small(resolve_source(below(root, _HINT)), _MOST_HINT_BYTES).decode(errors="replace").strip()
    if not _HINTED.fullmatch(hint):
        raise InvalidOption(
            f"{below(root, _HINT)} names {hint!r:.200}, which is no metadata file beside it. Name the metadata file.",
            uri=root,
        )
    name = hint if hint.endswith(_METADATA) else f"{'v' if hint.isdecimal() else ''}{hint}{_METADATA}"
    return below(root, f"metadata/{name}")


def _refuse_unnamed(root: str) -> None:
    """Refuse a folder without a current metadata file.

    It does not say which of its metadata files is current: the last may never have been committed.
    """
    if is_there(below(root, _HINT)):
        return
    folder = resolve_source(below(root, "metadata"))
    names = [info.base_name for info in children(folder.fs, folder.path) if info.base_name.endswith(_METADATA)]
    numbered = {int(match[1]): name for name in names if (match := _NUMBER.match(name))}
    newest = numbered[max(numbered)] if numbered else "..." + _METADATA
    raise InvalidOption(
        f"The Iceberg table {root} belongs to a catalog, which knows the current one of its {len(names)} metadata "
        f"files. Name the table by its catalog ({_SCHEME}CATALOG/NAMESPACE.TABLE), or a metadata file, such as "
        f"{below(root, f'metadata/{newest}')}.",
        uri=root,
    )


def _parquet(task: Any, name: str) -> str:
    """Path of a data file. Raises `InvalidOption` for other formats."""
    if task.file.file_format.value != "PARQUET":
        raise InvalidOption(
            f"{name} has files of format {task.file.file_format.value}, such as {task.file.file_path}. Forebay reads "
            "Parquet: set write.format.default=parquet, and rewrite the table's files.",
            uri=task.file.file_path,
        )
    path: str = task.file.file_path
    return path


def _uri(path: str) -> str:
    """URI of a path in a catalog.

    The path is not percent-encoded.
    """
    scheme, mark, rest = path.partition("://")
    if not mark:
        return path.removeprefix("file:")
    host, _, name = rest.partition("/")
    if scheme == "file":
        return f"/{name}"
    scheme = SAME_STORE.get(scheme, scheme)
    # Arrow decodes the paths of its URIs. fsspec uses them as they are.
    return f"{scheme}://{host}/{quote(name, safe='/=,:@+') if scheme in ARROW_SCHEMES else name}"


def _small(schema: pa.Schema) -> pa.Schema:
    """Schema without large types, as files hold them.

    String, binary and list take the place of their large forms.
    """
    return pa.schema([_small_field(field) for field in schema])


def _small_field(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_large_string(kind):
        return field.with_type(pa.string())
    if pa.types.is_large_binary(kind):
        return field.with_type(pa.binary())
    if pa.types.is_large_list(kind):
        return field.with_type(pa.list_(_small_field(kind.value_field)))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_small_field(each) for each in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_small_field(kind.key_field), _small_field(kind.item_field)))
    return field


def _field_ids(table: Any, projection: Any, schema: pa.Schema) -> FieldIds:
    mapping = table.name_mapping()
    defaults = {field.name: field.initial_default for field in projection.fields if field.initial_default is not None}
    return FieldIds(
        schema=schema,
        names={name: each.field_id for each in mapping or () for name in each.names if each.field_id is not None},
        defaults={name: _text(value, schema.field(name).type) for name, value in defaults.items()},
    )


def _identity_partitions(spec: Any, file: Any, names: Mapping[int, str], schema: pa.Schema) -> Values:
    """Partition values that a file may not hold.

    Files written by another system may leave them out.
    """
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415

    found = []
    for index, field in enumerate(spec.fields):
        name = names.get(field.source_id)
        if isinstance(field.transform, IdentityTransform) and name is not None:
            value = file.partition[index]
            found.append((name, None if value is None else _text(value, schema.field(name).type)))
    return tuple(found)


def _text(value: object, kind: pa.DataType) -> str:
    """Value of pyiceberg as text that Arrow casts back.

    Dates and times are numbers there. Bytes that are no UTF-8 become a text that Arrow refuses.
    """
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    try:
        return str(pa.scalar(value, kind).cast(pa.string()))
    except pa.ArrowException:
        return str(value)


def _deleted(tasks: Iterable[Any], name: str, boundary: Boundary, policy: ReadPolicy) -> dict[str, NDArray[np.int64]]:
    """Spans of deleted rows by data file, int64 [n, 2].

    Only of files that have some.
    """
    positions: dict[str, Mapping[str, NDArray[np.int64]]] = {}
    found: dict[str, NDArray[np.int64]] = {}
    for task in tasks:
        of_file = [found[task.file.file_path]] if task.file.file_path in found else []
        for delete in task.delete_files:
            if delete.file_path not in positions:
                positions[delete.file_path] = _positions(delete, name, boundary, policy)
            of_file.append(positions[delete.file_path].get(task.file.file_path, np.empty((0, 2), np.int64)))
        if of_file:
            found[task.file.file_path] = np.concatenate(of_file)
    return found


def _positions(delete: Any, name: str, boundary: Boundary, policy: ReadPolicy) -> dict[str, NDArray[np.int64]]:
    """Spans of deleted rows by data file, from one delete file."""
    kind, uri = delete.file_format.value, boundary.uri_of(delete.file_path, is_encoded=False)
    readers = {"PARQUET": _of_parquet, "PUFFIN": _of_puffin}
    if kind not in readers:
        raise InvalidOption(
            f"{name} has a delete file of unknown kind {kind}: {uri}. Parquet and Puffin are known. {_REWRITE}", uri=uri
        )
    return _call(f"The delete file {uri} of {name}", "be read", partial(readers[kind], uri), policy, _REWRITE)


def _of_parquet(uri: str) -> dict[str, NDArray[np.int64]]:
    content = pa.BufferReader(read_small(resolve_source(uri)))
    with errors_of_content():
        table = pq.read_table(content, columns=["file_path", "pos"]).combine_chunks()
    paths = table["file_path"].chunk(0).dictionary_encode() if len(table) else pa.DictionaryArray.from_arrays([], [])
    numbers = paths.indices.to_numpy()
    positions = table["pos"].to_numpy().astype(np.int64)[np.argsort(numbers, kind="stable")]
    ends = np.cumsum(np.bincount(numbers, minlength=len(paths.dictionary)))[:-1]
    spans = np.split(np.stack([positions, positions + 1], axis=1), ends)
    return dict(zip(paths.dictionary.to_pylist(), spans, strict=True))


def _of_puffin(uri: str) -> dict[str, NDArray[np.int64]]:
    from pyiceberg.table.puffin import PuffinFile  # noqa: PLC0415

    content = read_small(resolve_source(uri), _MOST_PUFFIN_BYTES)
    found = {}
    for blob in PuffinFile(content).footer.blobs:
        if blob.type != _VECTOR:
            continue
        if blob.compression_codec is not None or blob.offset < 0 or not 0 <= blob.length <= MOST_BYTES + FRAME_BYTES:
            raise ValueError(f"a vector of {blob.length} bytes from byte {blob.offset} on is compressed or too large")
        found[blob.properties[_REFERENCED]] = framed_spans(content[blob.offset : blob.offset + blob.length])
    return found
