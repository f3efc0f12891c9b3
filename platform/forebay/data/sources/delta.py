"""Versions of Delta Lake tables, read by the package deltalake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.parquet.schemas import fields_of
from forebay.data.sources.delta_log import check_log
from forebay.data.sources.lake_table import LakeFile, LakeTable, stat_files
from forebay.data.sources.partitions import Values
from forebay.errors import InvalidOption, NoFiles
from forebay.runtime.extras import extra_package
from forebay.storage.boundary import Boundary
from forebay.storage.filesystem import Location, resolve_source
from forebay.storage.retry import ReadPolicy

_PARTITION = "partition."
_WIDENING = {"typeWidening", "typeWidening-preview"}
_WITHOUT_MEANING = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features of Delta that change no row."""
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
    check_log(location, version, boundary, policy)
    table, errors = _open(location, version)
    name = f"version {table.version()} of the Delta Lake table {location.uri}"
    _refuse_mapped_columns(table, name)
    try:
        actions = pa.table(table.get_add_actions(flatten=True)).to_pydict()
        uris = [boundary.uri_of(path, is_encoded=True) for path in actions["path"]]
        masks = _masks(table)
    except errors as error:
        raise InvalidOption(
            f"{name} cannot be read ({_first_line(error)}). Its deletion vectors may be of an unknown kind, or it has "
            "deletion vectors and widened types: rewrite its files (REORG TABLE ... APPLY (PURGE), or OPTIMIZE), drop "
            "the feature deletionVectors if its types were widened, and scan the new version."
        ) from error
    paths = [unquote(path) for path in actions["path"]]
    if not paths:
        raise NoFiles(f"{name} has no row. Choose another version.", uri=uri)
    fields = fields_of(pa.schema(table.schema().to_arrow()))
    keys = table.metadata().partition_columns
    values = {key: _texts(actions.get(_PARTITION + key, [None] * len(paths))) for key in keys}
    deleted = _deleted(masks, paths, name)
    files = stat_files(uris, name, policy)
    constants: list[Values] = [tuple((key, values[key][number]) for key in keys) for number in range(len(paths))]
    return LakeTable(
        files=tuple(
            LakeFile(file, each, deleted.get(path)) for file, each, path in zip(files, constants, paths, strict=True)
        ),
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


def _masks(table: Any) -> Mapping[str, list[Any]]:
    """Deletion vectors as deltalake gives them.

    deltalake 1.6 plans no scan of a table with widened types, though its log is read. A table without the feature of
    deletion vectors has none.
    """
    features = set(table.protocol().reader_features or ())
    if features & _WIDENING and features <= _WIDENING | _WITHOUT_MEANING:
        return {"filepath": [], "selection_vector": []}
    found: Mapping[str, list[Any]] = pa.table(table.deletion_vectors()).to_pydict()
    return found


def _deleted(masks: Mapping[str, list[Any]], paths: list[str], name: str) -> dict[str, NDArray[np.int64]]:
    """Deleted rows by file, int64 [n].

    Only of files that have some.
    """
    by_name = {_last(path): path for path in paths}
    if masks["filepath"] and len(by_name) < len(paths):
        raise InvalidOption(f"{name} has deletion vectors, and two files of one name in different folders. Rewrite it.")
    return {
        by_name[_last(uri)]: np.flatnonzero(~np.array(keeps, dtype=np.bool_))
        for uri, keeps in zip(masks["filepath"], masks["selection_vector"], strict=True)
    }


def _last(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def _first_line(error: Exception) -> str:
    return f"{error}".strip().partition("\n")[0][:300]
