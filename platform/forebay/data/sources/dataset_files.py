"""Files of a dataset before footers are read.

They come from a listing, or from one version of a lake table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Field
from forebay.data.sources.delta import delta_table
from forebay.data.sources.field_ids import FieldIds
from forebay.data.sources.iceberg import iceberg_table, names_iceberg_table
from forebay.data.sources.lake_table import LakeTable
from forebay.data.sources.parquet_files import Listing, Uri, find_parquet
from forebay.data.sources.partitions import Values, partition_fields, partition_values
from forebay.errors import InvalidOption, NotPlainParquet, validate_type
from forebay.runtime.uris import split_options
from forebay.storage.boundary import allowed_locations
from forebay.storage.credentials import redact
from forebay.storage.filesystem import name_in_storage, resolve_source
from forebay.storage.retry import ReadPolicy
from forebay.storage.versions import FoundFile


@dataclass(frozen=True, slots=True, eq=False)
class SourceFile:
    """One file of a dataset.

    With the columns that it does not hold, and spans of rows that its table has deleted, int64 [n, 2].
    """

    file: FoundFile
    constants: Values = ()
    deleted: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sources:
    """Files of a dataset.

    Attributes:
        root: Folder of all files. Empty without a common one.
        files: The files.
        partitions: Columns that are constant in each file, with their types.
        table: Columns of the lake table. None for plain files.
        ids: Columns of the table by field id, if its files are read by id.
        snapshot: Version of the lake table, such as `delta 7`.
        notes: What the listing left out or followed.
    """

    root: str
    files: tuple[SourceFile, ...]
    partitions: tuple[Field, ...] = ()
    table: tuple[Field, ...] | None = None
    ids: FieldIds | None = None
    snapshot: str = ""
    notes: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """Text for errors."""
        if len(self.files) == 1:
            return self.files[0].file.uri
        return self.root or f"{len(self.files)} files without a common folder"


_READERS = {"Delta Lake": delta_table, "Iceberg": iceberg_table}
"""Readers of the table formats, by their names in `storage`."""


def find_sources(
    uri: Uri | Sequence[Uri],
    policy: ReadPolicy,
    *,
    version: int | None,
    partitions: bool,
    partition_types: Mapping[str, object] | None = None,
    allow_locations: Uri | Sequence[Uri] = (),
) -> Sources:
    """Find the files of a dataset.

    See `scan` for the arguments and errors.
    """
    types = partition_types or {}
    validate_type("partition_types", types, Mapping, 'types by column, such as {"day": "string"}')
    allowed = allowed_locations(allow_locations)
    if isinstance(uri, str | PurePath) and names_iceberg_table(str(uri)):
        _refuse_types(types, "the table has types")
        return _of_table(iceberg_table(str(uri), version, policy, allowed))
    try:
        listing = find_parquet(uri, policy)
    except NotPlainParquet as error:
        if (name := _table_at(uri, error)) is None:
            raise
        _refuse_types(types, "the table has types")
        return _of_table(_READERS[str(error.facts["format"])](name, version, policy, allowed))
    for option, given in (("version", version), ("allow_locations", [place.uri for place in allowed] or None)):
        if given is not None:
            raise InvalidOption(
                f"{option}={given!r:.200}: {redact(f'{uri!r:.200}')} is no Delta Lake or Iceberg table. Name the "
                "folder that holds _delta_log, or the table as iceberg://CATALOG/NAMESPACE.TABLE, or leave "
                f"{option} out.",
                **{option: given},
            )
    if partitions:
        return _of_listing(listing, types)
    _refuse_types(types, "partitions=False reads no columns from folders")
    return Sources(root=listing.root, files=_files(listing), notes=listing.left_out.notes())


def _refuse_types(types: Mapping[str, object], why: str) -> None:
    if types:
        raise InvalidOption(f"partition_types={dict(types)!r:.200} is for columns of folders, and {why}. Leave it out.")


def _table_at(uri: Uri | Sequence[Uri], error: NotPlainParquet) -> str | None:
    """URI of the table that `uri` names, or None.

    None if it names a table of another format, or a part of one.
    """
    if error.facts["format"] not in _READERS or not isinstance(uri, str | PurePath):
        return None
    location = resolve_source(uri)
    return location.uri if location.path.rstrip("/") == str(error.facts["table"]).rstrip("/") else None


def _of_table(table: LakeTable) -> Sources:
    root = table.root.rstrip("/")
    is_below = all(each.file.uri.startswith(f"{root}/") for each in table.files)
    return Sources(
        root=root if is_below else "",
        files=tuple(SourceFile(each.file, each.constants, each.deleted) for each in table.files),
        partitions=table.partitions,
        table=table.fields,
        ids=table.ids,
        snapshot=table.snapshot,
    )


def _files(listing: Listing) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(file) for file in listing.files)


def _of_listing(listing: Listing, types: Mapping[str, object]) -> Sources:
    skip = len(split_options(listing.root)[0])
    values = [partition_values(name_in_storage(file.uri, skip)) for file in listing.files]
    return Sources(
        root=listing.root,
        files=tuple(SourceFile(file, each) for file, each in zip(listing.files, values, strict=True)),
        partitions=partition_fields(values, types),
        notes=listing.left_out.notes(),
    )
