"""Versions of Delta Lake tables, read by the package deltalake."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.parquet.schemas import fields_of
from forebay.data.sources.deletion_vectors import FRAME_BYTES, MOST_BYTES, framed_spans, num_rows, row_spans, z85
from forebay.data.sources.delta_log import Vector, read_log
from forebay.data.sources.lake_table import LakeFile, LakeTable, refuse_twice, stat_files
from forebay.data.sources.partitions import Values
from forebay.errors import InvalidOption, NoFiles
from forebay.runtime.extras import extra_package
from forebay.runtime.threads import each_in_threads
from forebay.storage.boundary import Boundary
from forebay.storage.filesystem import Location, resolve_source
from forebay.storage.retry import ReadPolicy, read

_PARTITION = "partition."
_UUID_LETTERS = 20
_Z85_BYTES = 4
_MOST_THREADS = 16
_STORES = ("s3", "gs", "abfs", "abfss")


def delta_table(uri: str, version: int | None, policy: ReadPolicy, allowed: tuple[Location, ...] = ()) -> LakeTable:
    """Files of one version of a Delta Lake table.

    By default the newest one of the table at `uri`.

    Raises:
        MissingPackage: deltalake is missing or too old.
        InvalidOption: There is no such version, deltalake cannot read the table, its columns are mapped, or it names
            files outside of its folder and of the `allowed` locations.
        NoFiles: The version has no row.
        ReadFailed: Storage kept failing.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise InvalidOption(f"version={version!r}: give the number of a version of the table, such as 7.")
    location = resolve_source(uri)
    _refuse_other_stores(location)
    boundary = Boundary(table=f"The Delta Lake table {location.uri}", root=location, allowed=allowed)
    # A commit after the log was read is of the next version: deltalake would show its files with vectors of this one.
    version, vectors = read_log(location, version, boundary, policy)
    table, errors = _open(location, version)
    name = f"version {table.version()} of the Delta Lake table {location.uri}"
    _refuse_mapped_columns(table, name)
    try:
        actions = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    except errors as error:
        raise InvalidOption(f"{name} cannot be read ({_first_line(error)}). Choose another version.") from error
    paths = actions["path"]
    uris = [boundary.uri_of(path, is_encoded=True) for path in paths]
    refuse_twice(uris, name)
    if not paths:
        raise NoFiles(f"{name} has no row. Choose another version.", uri=uri)
    fields = fields_of(pa.schema(table.schema().to_arrow()))
    keys = table.metadata().partition_columns
    values = {key: _texts(actions.get(_PARTITION + key, [None] * len(paths))) for key in keys}
    deleted = _deleted(vectors, paths, name, boundary, policy)
    files = stat_files(uris, name, policy)
    constants: list[Values] = [tuple((key, values[key][number]) for key in keys) for number in range(len(paths))]
    return LakeTable(
        files=tuple(LakeFile(file, each, spans) for file, each, spans in zip(files, constants, deleted, strict=True)),
        fields=fields,
        partitions=tuple(field for field in fields if field.name in keys),
        snapshot=f"delta {table.version()}",
        root=location.uri,
    )


def _refuse_other_stores(location: Location) -> None:
    """Refuse a table that deltalake cannot locate.

    It would look for the log elsewhere than Forebay reads the files.
    """
    scheme, _, rest = location.uri.partition("://")
    if location.is_local or (scheme in _STORES and "?" not in rest):
        return
    found = "has options in its URI" if "?" in rest else f"is on {scheme}://"
    raise InvalidOption(
        f"The Delta Lake table {location.uri} {found}. deltalake reads the log of a table, with the settings of "
        "a store from environment variables alone. Set these (AWS_ENDPOINT_URL, AZURE_STORAGE_ACCOUNT_NAME), and give "
        f"a URI without options on one of {', '.join(_STORES)}, or a local folder.",
        uri=location.uri,
    )


def _open(location: Location, version: int | None) -> tuple[Any, type[Exception]]:
    """Open table, and the class of errors of deltalake."""
    with extra_package("deltalake", f"{location.uri} is a Delta Lake table, which"):
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import DeltaError  # noqa: PLC0415
    address = location.path if location.is_local else location.uri.partition("?")[0]
    try:
        return DeltaTable(address, version=version), DeltaError
    except (DeltaError, OSError) as error:
        wanted = "" if version is None else f" at version {version}"
        raise InvalidOption(
            f"The Delta Lake table {location.uri} cannot be opened{wanted} ({_first_line(error)}). Choose a version "
            "that its log still holds; the newest one needs no version=.",
            uri=location.uri,
            version=version,
        ) from error


def _refuse_mapped_columns(table: Any, name: str) -> None:
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise InvalidOption(
            f"{name} maps its columns by {mode} (delta.columnMapping.mode): its files name them otherwise, as after a "
            "column was renamed or dropped. Write the table anew without column mapping, and scan that.",
            mode=mode,
        )


def _texts(values: list[Any]) -> list[str | None]:
    """Partition values as text that Arrow casts back."""
    return [None if value is None else str(pa.scalar(value).cast(pa.string())) for value in values]


def _deleted(
    vectors: Mapping[str, Vector | None], paths: Sequence[str], name: str, boundary: Boundary, policy: ReadPolicy
) -> list[NDArray[np.int64] | None]:
    """Spans of deleted rows of each file, int64 [n, 2]. None for a file without a vector."""
    if not vectors:
        return [None] * len(paths)
    if unknown := [path for path in paths if path not in vectors]:
        raise InvalidOption(
            f"The log of {name} does not show whether rows of the file {unknown[0]!r:.300} are deleted: it was cleaned "
            "up during the scan. Scan again."
        )
    spans = partial(_spans_of, name=name, boundary=boundary, policy=policy)
    found = dict(each_in_threads(spans, [vectors[path] for path in paths], most=_MOST_THREADS, name="forebay-vectors"))
    return [found[number] for number in range(len(paths))]


def _spans_of(vector: Vector | None, name: str, boundary: Boundary, policy: ReadPolicy) -> NDArray[np.int64] | None:
    if vector is None:
        return None
    what = f"the deletion vector {vector.path!r:.300} of {name}"
    try:
        spans = read(what, partial(_read_spans, vector, boundary), policy)
        if num_rows(spans) != vector.num_rows:
            raise ValueError(f"it deletes {num_rows(spans)} rows, and the log states {vector.num_rows}")
    except (ValueError, FileNotFoundError) as error:
        raise InvalidOption(
            f"{what[0].upper()}{what[1:]} cannot be read ({error}). Rewrite the files of the table (REORG TABLE ... "
            "APPLY (PURGE), or OPTIMIZE), and scan the new version."
        ) from error
    return spans


def _read_spans(vector: Vector, boundary: Boundary) -> NDArray[np.int64]:
    if not (0 <= vector.size <= MOST_BYTES and vector.offset >= 0):
        raise ValueError(f"the log states {vector.size} bytes from byte {vector.offset} on, and {MOST_BYTES} are read")
    if vector.storage_type == "i":
        content = z85(vector.path)
        if not 0 <= len(content) - vector.size < _Z85_BYTES:
            raise ValueError(f"it has {len(content)} bytes, and the log states {vector.size}")
        return row_spans(content[: vector.size])
    if vector.storage_type not in ("u", "p"):
        raise ValueError(f"its kind {vector.storage_type!r:.20} is not known")
    path = vector.path
    if vector.storage_type == "u":
        folder, name = path[:-_UUID_LETTERS], uuid.UUID(bytes=z85(path[-_UUID_LETTERS:]))
        path = f"{folder}/deletion_vector_{name}.bin".lstrip("/")
    with resolve_source(boundary.uri_of(path, is_encoded=True)).open_input() as file:
        return framed_spans(file.read_at(vector.size + FRAME_BYTES, vector.offset))


def _first_line(error: Exception) -> str:
    return f"{error}".strip().partition("\n")[0][:300]
